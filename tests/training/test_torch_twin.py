"""Training beside an independent implementation in PyTorch: the same losses, update by update.

`test_reference` compares a forward and a backward pass. Here the real Trainer's updates are
compared too: Adam, its schedule, and the loss of batches of different sizes. All of it is in
float32.

This compares base on real text, and prints a line of both losses for each update:

    TWIN_UPDATES=200 .venv/bin/python -m pytest tests/training/test_torch_twin.py -k base -s
"""

import itertools
import os

import numpy as np
import pytest
from paths import DATA

from pipelines.batching import Batching
from t2t_repro import config, experiment
from t2t_repro.config import Train
from t2t_repro.distributed.strategy import default_strategy
from t2t_repro.training.trainer import Trainer
from t2t_repro.workdir import Workdir

torch = pytest.importorskip("torch", reason="a dev extra")
torch_twin = pytest.importorskip("torch_twin")

SIZES = {"num_layers": 2, "d_model": 12, "num_heads": 3, "d_k": 4, "d_v": 4}
SAMPLE = DATA / "wmt_train_sample"
UPDATES = int(os.environ.get("TWIN_UPDATES", "0"))


def twin_of(model, settings):
    """Return the twin with our model's weights, ready to train."""
    return torch_twin.Training(
        torch_twin.Twin(model), settings.warmup_steps, settings.label_smoothing
    )


def losses(trainer, twin, batches):
    """Yield (tokens, our loss, the twin's loss) of each update."""
    for source, target in batches:
        smoothed, _, tokens, _ = trainer.step(source, target).numpy()
        yield int(tokens), float(smoothed / tokens), twin.step(np.array(source), np.array(target))


# A small model


def random_ids(rng, rows):
    """Return random sentences of 1 to 8 pieces, each followed by EOS and padding: ids [rows, n]."""
    lengths = rng.integers(1, 9, rows)
    places = np.arange(lengths.max())
    ids = rng.integers(2, 23, (rows, len(places)))
    ids[places == lengths[:, None] - 1] = 1
    return np.where(places < lengths[:, None], ids, 0).astype("int32")


def random_batches(count):
    """Return batches of different shapes; the last row of one is empty, as from `Batching`."""
    rng = np.random.default_rng(1)
    batches = [(random_ids(rng, rows), random_ids(rng, rows)) for rows in range(2, 2 + count)]
    for ids in batches[-1]:
        ids[-1] = 0
    return batches


@pytest.fixture(scope="module")
def small(build):
    """Return (the first update's gradient errors by name, losses of 40 updates [40, 2]).

    The losses are ours and theirs. All weights, including biases, are random; the batches are
    repeated ten times, so that the model learns them.
    """
    strategy, settings = default_strategy(), Train(warmup_steps=200)
    with strategy.scope():
        model = build(dropout=0.0, **SIZES)
    trainer, twin = Trainer(model, settings, strategy), twin_of(model, settings)
    first, *rest = list(itertools.chain(*[random_batches(4)] * 10))
    begin = list(losses(trainer, twin, [first]))
    errors = gradient_errors(trainer, twin.twin)
    _, ours, theirs = zip(*begin, *losses(trainer, twin, rest), strict=True)
    return errors, np.array([ours, theirs]).T


def gradient_errors(trainer, twin):
    """Return {(torch's name, rows): (|ours - theirs|, |theirs|)} of gradients after one update.

    The norms are Euclidean. Adam's first moment is then (1 - beta_1) times the gradient.
    """
    parameters = dict(twin.named_parameters())
    variables, moments = trainer.model.trainable_variables, trainer.optimizer._momentums
    moment_of = {v.path: moment for v, moment in zip(variables, moments, strict=True)}
    errors = {}
    for name, rows, variable in torch_twin.counterparts(trainer.model):
        theirs = parameters[name].grad[rows].numpy()
        ours = moment_of[variable.path].numpy().T / (1 - trainer.optimizer.beta_1)
        errors[name, str(rows)] = np.linalg.norm(ours - theirs), np.linalg.norm(theirs)
    assert len(errors) == len(variables)
    return errors


def test_gradients_are_the_twins(small):
    """They agree to 1e-5; summing float32 products in another order changes up to 2.4e-6 here."""
    errors, _ = small
    # A bias of keys adds the same number to all scores of a query, so its gradient is only rounding
    # error.
    keys = {(name, rows) for name, rows in errors if name.endswith("in_proj_bias")}
    keys = {(name, rows) for name, rows in keys if rows == str(slice(12, 24))}
    assert len(keys) == 3 * 2
    for (name, rows), (error, norm) in errors.items():
        weight = (name.replace("bias", "weight"), rows)
        scale = errors[weight][1] if (name, rows) in keys else norm
        assert error < 1e-5 * scale, (name, rows)


def test_losses_follow_the_twins(small):
    """They agree to 1e-5. Rounding causes 2.4e-7, a beta_2 of 0.999 1e-3, steps from 0 3e-2."""
    _, both = small
    assert both[-4:].mean() < 0.8 * both[:4].mean()
    np.testing.assert_allclose(both[:, 0], both[:, 1], rtol=1e-5)


# Base on real text


def lay_out_sample(data_dir):
    """Put the sample into TFDS's download cache: a third of it as each corpus."""
    import wmt_archives as wmt  # imports tensorflow_datasets, which takes seconds

    def third(language, number):
        lines = wmt.lines(f"wmt_train_sample/train.tok.{language}.gz")[number::3]
        return b"".join(line + b"\n" for line in lines)

    archives = {wmt.DEV: wmt.dev_files("de-en")}
    for number, url in enumerate((wmt.EUROPARL, wmt.CRAWL, wmt.NEWS)):
        archives[url] = {
            wmt.INSIDE[url].format(pair="de-en", language=language): third(language, number)
            for language in ("en", "de")
        }
    wmt.put_into_cache(data_dir, {url: wmt.pack(url, files) for url, files in archives.items()})


@pytest.mark.skipif(not UPDATES, reason="TWIN_UPDATES=200 trains base twice, 20 minutes on 2 cores")
@pytest.mark.skipif(not SAMPLE.exists(), reason=f"needs real parallel text in {SAMPLE}")
@pytest.mark.timeout(7200)
def test_losses_of_base_follow_the_twins(tmp_path):
    """Train wmt14_ende from its text on: reader, vocabulary, batches, model, schedule and Trainer.

    Its batches are smaller, and its vocabulary is one that the sample is large enough for. Losses
    agree to 1e-3. Rounding errors grow, because Adam moves even a weight whose gradient is little
    but rounding error by the whole rate, such as those of a hidden unit that one token barely
    activates.
    """
    lay_out_sample(tmp_path)
    smaller = {"vocabulary_size": 8000, "embedding_rows": None, "tokens_per_batch": 640}
    settings = config.resolve(
        "wmt14_ende", overrides=smaller | {"dropout": 0.0, "data_dir": str(tmp_path)}
    )
    run = experiment.build(settings, Workdir(tmp_path / "run"), default_strategy())
    trainer = Trainer(run.model, settings.train, run.strategy)
    batching = Batching(
        run.corpus.train(),
        tokens_per_batch=settings.data.tokens_per_batch,
        max_shapes=settings.data.max_shapes,
        count_padding=settings.data.count_padding,
        seed=settings.train.seed,
    )
    batches = itertools.islice(batching.batches(epoch=0), UPDATES)
    both = []
    print("update  target tokens  ours  PyTorch's  difference")
    for tokens, ours, theirs in losses(trainer, twin_of(run.model, settings.train), batches):
        both.append((ours, theirs))
        print(f"{len(both):6} {tokens:6} {ours:.6f} {theirs:.6f} {ours - theirs:+.1e}", flush=True)
    np.testing.assert_allclose(*np.transpose(both), rtol=1e-3)
