"""A run's text: the length that it expects of outputs, and the pairs that it holds out."""

import numpy as np
import pytest

from pipelines.errors import BadInput
from t2t_repro import config as configs
from t2t_repro import run_text
from t2t_repro.workdir import Workdir

SOURCE = [f"a cat number {n} sees {n + 7} dogs" for n in range(80)]
TARGET = [f"{line} and {line}" for line in SOURCE]


@pytest.fixture
def text(tmp_path):
    for name, lines in (("text.en", SOURCE), ("text.de", TARGET)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    files = {side: [str(tmp_path / f"text.{side[:2]}")] for side in ("en", "de")}
    return {"source_files": files["en"], "target_files": files["de"]}


@pytest.mark.parametrize("stream", [False, True])
def test_the_expected_length_is_that_of_the_training_text(tmp_path, text, stream):
    dev = {f"dev_{name}": files for name, files in text.items()}
    settings = {"vocabulary_size": 320, "stream": stream, "held_out_share": 0} | text | dev
    config = configs.resolve("parallel_text", overrides=settings)
    corpus = run_text.corpus_of(config, Workdir(tmp_path / "run"))
    measured = run_text.with_length_ratio(config, corpus)
    encoded = [corpus.vocabulary.encode(lines) for lines in (SOURCE, TARGET)]
    source, target = (np.sum([len(ids) for ids in side]) for side in encoded)
    assert measured.decode.length_ratio == pytest.approx(target / source, abs=5e-4)
    assert measured.decode.length_ratio > 1.5
    assert configs.override(measured, {"length_ratio": None}) == config


@pytest.mark.parametrize(("measured", "expected"), [(0.0093, 0.01), (480.0, 100), (0.5, 0.5)])
def test_a_ratio_beyond_the_bounds_of_the_setting_is_the_nearest_one(measured, expected):
    class Text:
        def length_ratio(self):
            return measured

    config = run_text.with_length_ratio(configs.resolve("parallel_text"), Text())
    assert config.decode.length_ratio == expected


@pytest.mark.parametrize("split", ["dev", "test"])
def test_a_resumed_run_does_not_train_on_pairs_that_were_held_out(tmp_path, text, split):
    workdir = Workdir(tmp_path / "run")
    workdir.save_config(workdir.config_to_train("parallel_text", None, text))
    files = {f"{split}_{name}": files for name, files in text.items()}
    with pytest.raises(BadInput, match=f"--{split}_source_files: the {split} text of the run in"):
        workdir.config_to_train(None, None, files)
    assert workdir.config(files).data.held_out_share  # `evaluate`
    own = Workdir(tmp_path / "own")
    own.save_config(own.config_to_train("parallel_text", None, text | files))
    moved = {name: [f"{file}.moved" for file in given] for name, given in files.items()}
    own.config_to_train(None, None, moved)


@pytest.mark.parametrize("given", [0.5, 2])
def test_a_given_ratio_stays(tmp_path, text, given):
    config = configs.resolve("parallel_text", overrides=text | {"length_ratio": given})
    corpus = run_text.corpus_of(config, Workdir(tmp_path / "run"))
    assert run_text.with_length_ratio(config, corpus) == config
    assert not (tmp_path / "run").exists()  # nothing was read


def test_without_a_ratio_outputs_are_expected_as_long_as_inputs():
    assert configs.resolve("parallel_text").decode.expected_ratio == 1
    assert (
        configs.resolve("parallel_text", overrides={"length_ratio": 1.25}).decode.expected_ratio
        == 1.25
    )
