"""The CTranslate2 export: the same model token for token, and a search that agrees with ours."""

import dataclasses
import json
import re
import shutil
import sys
from itertools import islice

import commands
import numpy as np
import pytest
import sentencepiece
from paths import ROOT

from pipelines.errors import BadInput
from pipelines.toy import toy_ende
from pipelines.vocabulary import EOS, Vocabulary
from t2t_repro import experiment
from t2t_repro.config import Decode
from t2t_repro.decoding.decoder import make_scorer
from t2t_repro.decoding.translator import translate_lines
from t2t_repro.model.table1_layers import RestrictedSelfAttention
from t2t_repro.model.transformer import Transformer
from t2t_repro.serving import ctranslate2 as ctranslate2_export
from t2t_repro.serving import exports
from t2t_repro.workdir import Workdir

ctranslate2 = pytest.importorskip("ctranslate2")
PAGE = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def pairs():
    return list(islice(toy_ende.examples("dev"), 60))


@pytest.fixture(scope="module")
def vocabulary(tiny_run):
    return Vocabulary.load(tiny_run)


def tokens(vocabulary, lines):
    """Return the pieces of lines as CTranslate2 expects them, without EOS."""
    return [[vocabulary.pieces[i] for i in ids[:-1]] for ids in vocabulary.encode(lines)]


def padded(rows):
    width = max(map(len, rows))
    return np.array([row + [0] * (width - len(row)) for row in rows], np.int32)


def our_log_probs(model, vocabulary, sources, targets):
    """Return the log-probability of every target token, EOS included, over producible pieces."""
    sources, targets = vocabulary.encode(sources), vocabulary.encode(targets)
    logits = np.asarray(model(padded(sources), padded(targets)), np.float64)[
        :, :, : vocabulary.size
    ]
    logits = np.where(vocabulary.producible, logits, -np.inf)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return [
        [row[t, token] for t, token in enumerate(target)]
        for row, target in zip(log_probs, targets, strict=True)
    ]


def their_log_probs(directory, vocabulary, sources, targets, **options):
    translator = ctranslate2.Translator(str(directory), intra_threads=1, **options)
    results = translator.score_batch(tokens(vocabulary, sources), tokens(vocabulary, targets))
    return [result.log_probs for result in results]


# The model


@pytest.mark.parametrize(
    "changes",
    [
        {},  # d_k < d_v, and neither equals d_model / h
        {"d_k": 7, "d_v": 5},
        {"d_k": 4, "d_v": 4},
        {"learned_positions": 6},  # fewer than the sentences need: the last row repeats
        {"num_layers": 1},
    ],
    ids=str,
)
def test_every_token_has_the_same_probability(build, vocabulary, pairs, tmp_path, changes):
    """This includes the first token, which is predicted from the zero vector."""
    model = build(embedding_rows=510, **changes)
    ctranslate2_export.write_model(model, vocabulary, Decode(), tmp_path, "float32")
    texts = [[pair[side] for pair in pairs[:20]] for side in ("source", "target")]
    ours = our_log_probs(model, vocabulary, *texts)
    theirs = their_log_probs(tmp_path, vocabulary, *texts, compute_type="float32")
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(their, our, atol=2e-5)


def test_special_pieces_of_other_names(build, pairs, tmp_path):
    foreign = tmp_path / "foreign.model"
    texts = [[pair[side] for pair in pairs] for side in ("source", "target")]
    with foreign.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([*texts[0], *texts[1]] * 3),
            model_writer=file,
            minloglevel=2,
            **{"model_type": "bpe", "byte_fallback": True, "vocab_size": 330},
            **{"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
            **{"eos_piece": "<eos>", "unk_piece": "<unknown>"},
        )
    vocabulary, model = Vocabulary.given(foreign), build(embedding_rows=330)
    ctranslate2_export.write_model(model, vocabulary, Decode(), tmp_path, "float32")
    texts = [lines[:5] for lines in texts]
    ours = our_log_probs(model, vocabulary, *texts)
    theirs = their_log_probs(tmp_path, vocabulary, *texts, compute_type="float32")
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(their, our, atol=2e-5)


def test_int8_has_a_quarter_of_the_size(build, vocabulary, tmp_path):
    sizes = {}
    model = build(d_model=96, d_ff=384, num_layers=1, embedding_rows=510)
    for weights in ("float32", "int8"):
        (directory := tmp_path / weights).mkdir()
        # Few positions are exported, because their table stays in float32.
        spec = ctranslate2_export.transformer_spec(model, vocabulary, Decode())
        table = spec.encoder.position_encodings.encodings.nbytes
        ctranslate2_export.write_model(model, vocabulary, Decode(), directory, weights)
        sizes[weights] = (directory / "model.bin").stat().st_size - table
    assert sizes["int8"] < 0.3 * sizes["float32"]


def test_int8_is_near(tiny_run, vocabulary, pairs, tmp_path):
    """The median error is 0.013, or 0.10 on an AMD processor without VNNI (docs/engines.md).

    With random weights it is 0.94 there, so the model has to be one that has learnt.
    """
    run = experiment.restore(Workdir(tiny_run), {})
    ctranslate2_export.write_model(run.model, vocabulary, Decode(), tmp_path, "int8")
    texts = [[pair[side] for pair in pairs[:20]] for side in ("source", "target")]
    ours = our_log_probs(run.model, vocabulary, *texts)
    theirs = their_log_probs(tmp_path, vocabulary, *texts, compute_type="int8")
    errors = np.abs(np.concatenate(theirs) - np.concatenate(ours))
    assert 1e-4 < np.median(errors) < 0.3  # another type, but the same model


def test_what_may_not_be_produced_never_is(build, vocabulary, tmp_path):
    model = build(embedding_rows=510)
    ctranslate2_export.write_model(model, vocabulary, Decode(), tmp_path, "float32")
    spec = ctranslate2_export.transformer_spec(model, vocabulary, Decode())
    assert spec.decoder.projection.weight.shape == (vocabulary.size, 12)  # no row beyond the pieces
    forbidden = [vocabulary.pieces[i] for i in np.flatnonzero(~vocabulary.producible)]
    assert {"<pad>", "<unk>", "<0x0A>"} <= set(forbidden)
    translator = ctranslate2.Translator(str(tmp_path), intra_threads=1)
    results = translator.score_batch([["a"]] * len(forbidden), [[piece] for piece in forbidden])
    assert max(result.log_probs[0] for result in results) < -9000


def test_the_longest_source_has_positions(build, vocabulary, tmp_path):
    decode = Decode(max_source_length=20)
    model = build(embedding_rows=510)
    ctranslate2_export.write_model(model, vocabulary, decode, tmp_path, "float32")
    translator = ctranslate2.Translator(str(tmp_path), intra_threads=1)
    long = [vocabulary.pieces[300]] * 5000
    assert translator.translate_batch([long], max_decoding_length=3)


# The search


@pytest.fixture(scope="module")
def exported(tiny_run, tmp_path_factory):
    directory = tmp_path_factory.mktemp("ctranslate2") / "1"
    ctranslate2_export.save(experiment.restore(Workdir(tiny_run), {}), directory)
    return directory


def test_the_directory_is_all_it_takes(exported, tiny_run):
    names = {path.name for path in exported.iterdir()}
    assert names == {
        *("model.bin", "config.json", "shared_vocabulary.json", "settings.json"),
        *("vocabulary.model", "vocabulary.vocab"),
    }
    vocabulary = Vocabulary.load(exported)
    assert vocabulary.fingerprint == Vocabulary.load(tiny_run).fingerprint
    pieces = json.loads((exported / "shared_vocabulary.json").read_text(encoding="utf-8"))
    assert pieces == vocabulary.pieces
    assert pieces[EOS] == "</s>"
    config = json.loads((exported / "config.json").read_text(encoding="utf-8"))
    assert config["layer_norm_epsilon"] == 1e-6  # too small to affect any result here
    settings = json.loads((exported / "settings.json").read_text(encoding="utf-8"))
    assert (settings["format"], settings["weights"]) == ("ctranslate2", "float32")
    assert (settings["training_step"], settings["decode"]["max_extra_length"]) == (500, 20)


def test_the_example_of_the_serving_page_translates_like_us(exported, tiny_run):
    """The exception is outputs in which EOS is never among the four likeliest continuations.

    They occur because this model is poor, 6 in 100 times after training on one machine; the demo's
    model translates all of 1,000 sentences alike.
    """
    lines = [pair["source"] for pair in islice(toy_ende.examples("dev"), 200)]
    run = experiment.restore(
        Workdir(tiny_run), {"max_extra_length": 200}
    )  # practically unlimited, like theirs
    ours = list(translate_lines(run.translator(), lines))

    (code,) = re.findall(
        r"```python\n(import json\n\nimport ctranslate2\n.*?)```", PAGE, flags=re.DOTALL
    )
    assert 'export = "runs/toy_ende/ct2/1"' in code
    code = code.replace("runs/toy_ende/ct2/1", str(exported))
    example = {}
    exec(code.replace('device="cpu"', 'device="cpu", intra_threads=1'), example)
    theirs = example["translate"](lines)
    same = [
        their == our.translation
        for their, our in zip(theirs, ours, strict=True)
        if our.translation  # "" is EOS alone, which they find only if EOS is among those four
    ]
    assert len(same) > 100
    assert np.mean(same) >= 0.9
    assert len(set(theirs)) > 100

    # The page's formula gives our score for the same translation.
    line, our = next(
        (line, our)
        for line, our, their in zip(lines, ours, theirs, strict=True)
        if our.translation == their
    )
    (source,) = example["pieces"].encode([line], out_type=str)
    (result,) = example["translator"].translate_batch(
        [source], return_scores=True, **example["settings"]
    )
    scores = {
        example["pieces"].decode(hypothesis): example["paper_score"](source, hypothesis, score)
        for hypothesis, score in zip(result.hypotheses, result.scores, strict=True)
    }
    assert scores[our.translation] == pytest.approx(our.score, abs=1e-3)


def test_scores_contain_alpha_and_the_length_reward(tiny_run, tmp_path, pairs):
    settings = {"alpha": 1.5, "length_reward": 0.7, "length_ratio": 0.8}
    run = experiment.restore(Workdir(tiny_run), settings)
    ctranslate2_export.save(run, tmp_path / "1")
    sources = run.vocabulary.encode([pair["source"] for pair in pairs])
    targets, scores = zip(*exports.open_export(tmp_path / "1").translate_ids(sources), strict=True)
    score = make_scorer(run.model, run.config.decode, run.vocabulary.producible)
    _, own = score(padded(sources), padded(targets))
    np.testing.assert_allclose(scores, own, atol=5e-3)
    for lines in exports.open_export(tmp_path / "1").nbest([p["source"] for p in pairs], 3):
        assert [line.score for line in lines] == sorted((x.score for x in lines), reverse=True)


def test_a_translation_is_cut_at_its_own_limit(tiny_run, pairs, tmp_path):
    """Whatever is translated beside it, and its score is that of its pieces and EOS.

    German has more pieces than English, so that many translations are cut at the source's length.
    """
    run = experiment.restore(Workdir(tiny_run), {"max_extra_length": 1, "length_reward": 1})
    ctranslate2_export.save(run, tmp_path / "1")
    translator = exports.open_export(tmp_path / "1")
    lines = [pair["source"] for pair in pairs]
    lines += [" ".join(lines[:3]), " ".join(lines[3:9])]  # with limits of their own
    sources = run.vocabulary.encode(lines)
    found = translator.translate_ids(sources)
    targets, scores = zip(*found, strict=True)
    extra = [len(target) - len(source) for source, target in zip(sources, targets, strict=True)]
    assert max(extra) == 1
    assert extra.count(1) > 5
    score = make_scorer(run.model, run.config.decode, run.vocabulary.producible)
    _, own = score(padded(sources), padded(targets))
    np.testing.assert_allclose(scores, own, atol=5e-3)
    for source, (target, together) in zip(sources, found, strict=True):
        ((alone, score_alone),) = translator.translate_ids([source])
        assert alone == target
        assert score_alone == pytest.approx(together, abs=1e-3)
    best, more = translator.nbest(lines, 1), translator.nbest(lines, 3)
    assert [row[0] for row in best] == [row[0] for row in more]


def always(piece, tiny_run, **settings):
    """Return a run that writes a piece, whatever comes before it."""
    run = experiment.restore(Workdir(tiny_run), settings)
    last = run.model.decoder[-1].feed_forward_norm.norm
    last.gamma.assign(np.zeros_like(last.gamma))  # so the decoder's output is beta
    last.beta.assign(10 * np.asarray(run.model.embedding.matrix)[piece])
    return run


def test_the_longest_output_has_positions(tiny_run, tmp_path):
    """Lengths are rounded up to a multiple of 32, here to 1,056; the export has fewer positions."""
    sizes = {"max_source_length": 1030, "max_extra_length": 3, "beam_size": 1}
    ctranslate2_export.save(always(300, tiny_run, **sizes), tmp_path / "1")
    ((ids, _),) = exports.open_export(tmp_path / "1").translate_ids([[301] * 1029 + [EOS]])
    assert ids == [300] * 1032 + [EOS]


def test_a_translation_can_be_empty(tiny_run, tmp_path):
    """CTranslate2 by itself makes at least one piece, however likely EOS is."""
    ctranslate2_export.save(always(EOS, tiny_run), tmp_path / "1")
    assert exports.open_export(tmp_path / "1").translate_ids([[300, EOS]])[0][0] == [EOS]


def test_scores_samples_and_beginnings_by_the_examples_of_the_page(exported, tiny_run, pairs):
    first, second = re.findall(
        r"```python\n(.*?)```", PAGE.partition("## CTranslate2")[2], re.DOTALL
    )
    example = {}
    code = first.replace("runs/toy_ende/ct2/1", str(exported)) + second
    exec(code.replace('device="cpu"', 'device="cpu", intra_threads=1'), example)
    sources, targets = ([pair[side] for pair in pairs[:20]] for side in ("source", "target"))
    run = experiment.restore(Workdir(tiny_run), {})
    ours = our_log_probs(run.model, run.vocabulary, sources, targets)
    for our, their in zip(ours, example["log_probs"](sources, targets), strict=True):
        np.testing.assert_allclose(their, our, atol=2e-4)
    ctranslate2.set_random_seed(1)
    drawn = example["sample"](sources, 3)
    assert [len(each) for each in drawn] == [3] * 20
    assert sum(len(set(each)) == 3 for each in drawn) > 10
    likeliest = example["sample"](sources, 1, topk=1)
    assert likeliest == example["sample"](sources, 1, topk=1)
    beginnings = [" ".join(target.split()[:2]) for target in targets]
    for text, beginning in zip(example["complete"](sources, beginnings), beginnings, strict=True):
        assert text.startswith(beginning)


# Mistakes

FUZZ = """
import random, sys
from pathlib import Path
from pipelines.errors import BadInput
from t2t_repro.serving import export_files, exports

rng, directory = random.Random(1), Path(sys.argv[1])
path = directory / "model.bin"
whole = path.read_bytes()
for number in range(200):
    content = bytearray(whole)
    if number % 4 == 0:
        content = content[: rng.randrange(len(content))]
    for _ in range(rng.randint(1, 4) if number % 4 else 0):
        content[rng.randrange((64, 2000, len(content))[number % 4 - 1])] = rng.randrange(256)
    path.unlink()
    path.write_bytes(content)
    export_files.write_settings(directory, export_files.settings(directory))
    try:
        next(exports.load(directory)(["The old house."], 1))
        print("loads")
    except BadInput as error:
        print(str(error).startswith(str(directory)))
"""


@pytest.mark.slow
def test_no_changed_byte_kills_the_process(exported, tmp_path):
    """Not even with the right SHA-256 beside it; a changed weight loads."""
    copy = shutil.copytree(exported, tmp_path / "1")
    printed = commands.python("-c", FUZZ, copy, OMP_NUM_THREADS="1").stdout.decode().split()
    assert set(printed) == {"loads", "True"}
    assert len(printed) == 200
    assert printed.count("True") > 50


def test_a_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(BadInput, match=r'pip install "t2t_repro\[ctranslate2\]"'):
        ctranslate2_export.check_installed()


def test_another_self_attention_than_the_papers_is_refused(tiny_run, tmp_path):
    run = experiment.restore(Workdir(tiny_run), {})
    restricted = RestrictedSelfAttention(4, d_model=48, num_heads=3, d_k=12, d_v=20)
    model = Transformer(run.config.model, run.vocabulary.size, self_attention=restricted)
    with pytest.raises(BadInput, match="wanted full self-attention in the encoder"):
        ctranslate2_export.save(dataclasses.replace(run, model=model), tmp_path / "1")
    assert not list(tmp_path.iterdir())
