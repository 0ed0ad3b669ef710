"""Train one configuration with several seeds at once on a GPU, through Keras's JAX backend.

    python -m t2t_repro.prepare --problem=multi30k_ende --workdir=D --train_steps=8500
    KERAS_BACKEND=jax python docs/notebook/many_seeds.py D OUT --seeds 1 2 3 4 --translate val.en

D is a run that is prepared but need not be trained. Its model, loss, Adam and alterations of the
text are those of `t2t_repro.train`; neither TensorFlow nor the raw text is needed. The batches
differ: they have one of a few shapes, since each is compiled, the seeds share the order of the
shapes, and alterations end within an epoch where `train` finishes it. Gradients are not clipped or
accumulated, and neither `ema`, `freeze`, `init_from` nor checkpoints exist. The weights that
translate are the mean of those after the last `average_last` multiples of `checkpoint_steps`.
OUT/val.en.1 gets seed 1's translations of val.en, and OUT/val.en.1+2 those of seeds 1 and 2
together, whose probabilities are averaged, by the search that the configuration describes.

Axes: r runs (one for each seed), b batch, s source, t target.
"""

import argparse
import collections
import concurrent.futures
import functools
import itertools
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.batching import Batching
from pipelines.corpus import Corpus
from pipelines.vocabulary import EOS, PAD
from pipelines.workers import cores
from t2t_repro import run_text
from t2t_repro.config import Config, override
from t2t_repro.workdir import Workdir

# The shares of the training pairs that fit into each shape. Multi30k has shapes of 15, 17, 19, 23,
# 31 and 79 pieces.
SHARES = 0.35, 0.52, 0.67, 0.86, 0.98, 1
LONGER = 1.5  # times the longest pair: alterations make pairs longer
# The share of tokens_per_batch that the longer sides of a batch's pairs have, without padding.
# Batches then have 104 of Multi30k's captions, as those of `t2t_repro.train` do.
FULL = 0.81
AHEAD = 3  # epochs of each run that are made before they are needed
SENTENCES = 1024  # translated at once, the last ones again where fewer are left
PIECES = 32  # sources have a multiple of this length; each shape of batch is compiled

Decoder = Callable[[list[Any], Any], Any]
Batches = dict[int, tuple[np.ndarray, np.ndarray]]  # by shape: int32 [batches, b, s], [..., t]


class Text:
    """The training batches of a prepared run, for any seed.

    Args:
        workdir: The run's work directory.
    """

    def __init__(self, workdir: Path):
        self.workdir = Workdir(workdir)
        self.config: Config = self.workdir.config()
        self.corpus: Corpus = run_text.corpus_of(self.config, self.workdir, read_only=True)

    @functools.cached_property
    def lengths(self) -> list[int]:
        """The longest side of a batch's pairs, for each shape.

        Odd, so that attention is the plain formula: no kernel for it has been tried on a GPU with
        several runs at once.
        """
        longest = np.quantile(self.corpus.train().lengths.max(1), SHARES).round().astype(int)
        longest[-1] = LONGER * longest[-1]
        return sorted(set((longest | 1).tolist()))

    @functools.cached_property
    def rows(self) -> list[int]:
        """The rows of a batch, for each of `lengths`."""
        longest = self.corpus.train().lengths.max(1)
        shapes = np.searchsorted(self.lengths, longest)
        tokens = FULL * self.config.data.tokens_per_batch
        means = [
            longest[shapes == i].mean() if (shapes == i).any() else length
            for i, length in enumerate(self.lengths)
        ]
        return [max(1, round(tokens / mean)) for mean in means]

    def epoch(self, seed: int, epoch: int, is_altered: bool) -> Batches:
        """Return the batches of an epoch; pairs longer than the last of `lengths` are left out."""
        updates = 0 if is_altered else self.config.train.train_steps
        split = _batching(self, seed).for_epoch(epoch, updates).split
        shapes = np.searchsorted(self.lengths, split.lengths.max(1))
        rng = np.random.default_rng([seed, epoch])
        batches = {}
        for shape, (length, rows) in enumerate(zip(self.lengths, self.rows, strict=True)):
            pairs = rng.permutation(np.flatnonzero(shapes == shape))
            count = -(-len(pairs) // rows)
            if count:
                parts = np.array_split(pairs, count)
                grid = [np.pad(p, (0, rows - len(p)), constant_values=-1) for p in parts]
                sides = split.padded(np.concatenate(grid), length, length)
                batches[shape] = tuple(  # type: ignore[assignment]
                    side.reshape(count, rows, length) for side in sides
                )
        return batches


@functools.cache
def _batching(text: Text, seed: int) -> Batching:
    """Return the batching of `t2t_repro.train` with that seed, for its alterations."""
    batching = run_text.training_batches(override(text.config, {"seed": seed}), text.corpus)
    assert isinstance(batching, Batching), "a stream has no epochs"
    return batching


@functools.cache
def _text(workdir: Path) -> Text:
    """Return the text, which each process reads once."""
    return Text(workdir)


def _epoch(workdir: Path, seed: int, epoch: int, is_altered: bool) -> Batches:
    return _text(workdir).epoch(seed, epoch, is_altered)


def batches_of(seeds: list[int], text: Text) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield the shape, sources [r, b, s] and targets [r, b, t] of each update."""
    train = text.config.train
    context = multiprocessing.get_context("spawn")  # JAX has threads
    with concurrent.futures.ProcessPoolExecutor(cores(), context) as pool:
        for is_altered in (True, False):
            updates = train.altered_updates if is_altered else train.train_steps
            first = 0 if is_altered else train.altered_updates
            epochs = [_epochs(pool, text.workdir.path, seed, is_altered) for seed in seeds]
            yield from itertools.islice(_in_step(epochs, seeds[0]), updates - first)


def _epochs(
    pool: concurrent.futures.Executor, workdir: Path, seed: int, is_altered: bool
) -> Iterator[Batches]:
    """Yield one epoch after another, while the pool makes the next ones."""
    numbers = itertools.count(0 if is_altered else 10_000)
    futures: collections.deque[Any] = collections.deque()
    for number in numbers:
        futures.append(pool.submit(_epoch, workdir, seed, number, is_altered))
        if len(futures) > AHEAD:
            yield futures.popleft().result()


def _in_step(
    runs: list[Iterator[Batches]], seed: int
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield batches of all runs in the first one's order of shapes."""
    queues: list[Any] = [collections.defaultdict(collections.deque) for _ in runs]

    def add(run: int) -> list[int]:
        """Add an epoch to the run's queues and return its shapes."""
        epoch = next(runs[run])
        for shape, sides in epoch.items():
            queues[run][shape].extend(zip(*sides, strict=True))
        return [shape for shape, sides in epoch.items() for _ in sides[0]]

    for shuffle in itertools.count():
        for shape in np.random.default_rng([seed, shuffle, 1]).permutation(add(0)):
            for run in range(len(runs)):
                while not queues[run][shape]:
                    add(run)
            rows = [queue[shape].popleft() for queue in queues]
            sources, targets = (np.stack(side) for side in zip(*rows, strict=True))
            yield int(shape), sources, targets


def trained(seeds: list[int], text: Text) -> tuple[Any, Any]:
    """Train and return a Transformer, and the weights of all runs that translate, each [r, ...]."""
    import jax
    import jax.numpy as jnp
    import keras

    from t2t_repro.bench.jax import Step
    from t2t_repro.model.transformer import Transformer

    config = text.config
    rows = config.model.embedding_rows or text.corpus.vocabulary.size
    states = []
    for seed in seeds:
        keras.utils.set_random_seed(seed)
        model = Transformer(config.model, rows, config.train.precision)
        states.append(Step(model, config.train).state)
    step = Step(model, config.train)
    state = jax.tree.map(lambda *values: jnp.stack(values), *states)
    update = jax.jit(jax.vmap(step.update), donate_argnums=0)
    shapes = zip(text.rows, text.lengths, strict=True)
    batches = [jax.ShapeDtypeStruct((len(seeds), *shape), jnp.int32) for shape in shapes]
    lowered = [update.lower(state, batch, batch) for batch in batches]
    last, every = config.train.train_steps, config.train.checkpoint_steps
    kept: collections.deque[Any] = collections.deque(maxlen=config.decode.average_last)
    with concurrent.futures.ThreadPoolExecutor(len(lowered)) as threads:
        compiled = [threads.submit(program.compile) for program in lowered]
        for number, (shape, *sides) in enumerate(batches_of(seeds, text), 1):
            state, sums = compiled[shape].result()(state, *sides)
            if number == last or (every and number % every == 0):
                kept.append(jax.tree.map(jnp.copy, state[0]))
            if number % 500 == 0 or number == last:
                perplexities = np.exp(np.asarray(sums[:, 1] / sums[:, 2]))
                print(f"{number}: perplexity {perplexities.round(2)}", file=sys.stderr)
    return model, jax.tree.map(lambda *weights: sum(weights) / len(weights), *kept)


def decoder_of(models: list[Any], text: Text) -> Decoder:
    """Return a function of the models' weights and source ids [b, s], which gives output ids."""
    import jax
    import keras

    from t2t_repro.decoding.decoder import make_decoder

    producible, (model, *others) = text.corpus.vocabulary.producible, models
    decoder = make_decoder(model, text.config.decode, producible, EOS, others=others)
    variables = [variable for one in models for variable in one.trainable_variables]

    def decode(weights: list[Any], source: Any) -> Any:
        with keras.StatelessScope(list(zip(variables, weights, strict=True))):
            return decoder(source)[0][:, 0]

    return jax.jit(decode)


def translated(decode: Decoder, weights: list[Any], text: Text, lines: list[str]) -> list[str]:
    """Translate lines with a decoder and the weights of its models."""
    vocabulary = text.corpus.vocabulary
    ids = vocabulary.encode(lines)
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    outputs: dict[int, np.ndarray] = {}
    for some in (order[i : i + SENTENCES] for i in range(0, len(order), SENTENCES)):
        some += some[-1:] * (SENTENCES - len(some))
        width = -(-len(ids[some[-1]]) // PIECES) * PIECES
        source = np.array([ids[i] + [PAD] * (width - len(ids[i])) for i in some], np.int32)
        outputs.update(zip(some, np.asarray(decode(weights, source)), strict=True))
    return vocabulary.decode(outputs[i] for i in range(len(ids)))


def main(workdir: Path, out: Path, seeds: list[int], files: list[Path]) -> None:
    """Train all seeds and write their translations, and those of each two together."""
    from t2t_repro.model.transformer import Transformer

    text = Text(workdir)
    model, weights = trained(seeds, text)
    other = Transformer(text.config.model, model.rows, text.config.train.precision)
    decoders = [decoder_of([model, other][:count], text) for count in (1, 2)]
    out.mkdir(parents=True, exist_ok=True)
    pairs = zip(range(0, len(seeds), 2), range(1, len(seeds), 2), strict=False)
    for runs in [*((run,) for run in range(len(seeds))), *pairs]:
        own = [weight[run] for run in runs for weight in weights]
        for file in files:
            lines = file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
            outputs = translated(decoders[len(runs) - 1], own, text, lines)
            name = f"{file.name}.{'+'.join(str(seeds[run]) for run in runs)}"
            text_out = "".join(f"{line}\n" for line in outputs)
            (out / name).write_text(text_out, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workdir", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--translate", type=Path, nargs="+", required=True)
    given = parser.parse_args()
    main(given.workdir, given.out, given.seeds, given.translate)
