"""The paper's numbers, the order in which sources override each other, and error messages."""

import dataclasses
import re

import pytest

from pipelines.errors import BadInput
from t2t_repro import config, train, yaml_files
from t2t_repro.config import FIELDS, flat, resolve
from t2t_repro.paper import table3

# Sections 3, 5 and 6.1 of the paper.
BASE = {
    "num_layers": 6,
    "d_model": 512,
    "d_ff": 2048,
    "num_heads": 8,
    "d_k": 64,
    "d_v": 64,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "embedding_rows": 40960,
    "learned_positions": 0,
    "vocabulary_size": 37000,
    "tokens_per_batch": 25000,
    "train_steps": 100_000,
    "warmup_steps": 4000,
    "learning_rate_scale": 1.0,
    "beta_1": 0.9,
    "beta_2": 0.98,
    "epsilon": 1e-9,
    "label_smoothing": 0.1,
    "checkpoint_minutes": 10.0,
    "checkpoint_steps": 0,
    "beam_size": 4,
    "alpha": 0.6,
    "max_extra_length": 50,
    "average_last": 5,
}

# Table 3: the cells printed in each row, in the order of the columns.
TABLE_3 = {
    "base": {},
    "A1": {"num_heads": 1, "d_k": 512, "d_v": 512},
    "A2": {"num_heads": 4, "d_k": 128, "d_v": 128},
    "A3": {"num_heads": 16, "d_k": 32, "d_v": 32},
    "A4": {"num_heads": 32, "d_k": 16, "d_v": 16},
    "B1": {"d_k": 16},
    "B2": {"d_k": 32},
    "C1": {"num_layers": 2},
    "C2": {"num_layers": 4},
    "C3": {"num_layers": 8},
    "C4": {"d_model": 256, "d_k": 32, "d_v": 32},
    "C5": {"d_model": 1024, "d_k": 128, "d_v": 128},
    "C6": {"d_ff": 1024},
    "C7": {"d_ff": 4096},
    "D1": {"dropout": 0.0},
    "D2": {"dropout": 0.2},
    "D3": {"label_smoothing": 0.0},
    "D4": {"label_smoothing": 0.2},
    "big": {
        "d_model": 1024,
        "d_ff": 4096,
        "num_heads": 16,
        "dropout": 0.3,
        "train_steps": 300_000,
        "average_last": 20,  # 6.1
    },
}


def defaults():
    return {name: field.default for name, field in FIELDS.items()}


def refusal(*arguments, **options):
    """Return the message of the BadInput that `resolve` raises."""
    with pytest.raises(BadInput) as raised:
        resolve(*arguments, **options)
    message = str(raised.value)
    assert "\n" not in message
    return message


# The paper's numbers


def test_defaults_are_the_base_model():
    assert defaults().items() >= BASE.items()


@pytest.mark.parametrize("row", TABLE_3)
def test_row_of_table_3(row):
    assert config.variants()[row] == TABLE_3[row]


def test_row_e_learns_its_positions_and_nothing_else():
    (name, rows), *others = config.variants()["E"].items()
    assert name == "learned_positions"
    assert rows > 0
    assert not others


def test_table_3_has_no_further_rows():
    assert set(config.variants()) == {*TABLE_3, "E"}


@pytest.mark.parametrize("row", config.variants())
def test_every_row_resolves(row):
    assert resolve("toy_ende", row).variant == row


# One definition: names, types, help


def test_every_problem_resolves():
    for name in config.problem_names():
        assert resolve(name).problem == name


def test_big_english_french_has_its_own_dropout():
    """Table 2: "for English-to-French used dropout rate P_drop = 0.1, instead of 0.3" (6.1)."""
    big = {name: config.resolve(f"wmt14_{name}", "big").model for name in ("ende", "enfr")}
    assert (big["ende"].dropout, big["enfr"].dropout) == (0.3, 0.1)
    assert big["enfr"].d_model == 1024
    assert config.resolve("wmt14_enfr", "big", {"dropout": 0.2}).model.dropout == 0.2
    assert config.resolve("wmt14_enfr", "D2").model.dropout == 0.2


def test_parsing_as_the_paper_says():
    """Section 6.3 gives these values; configs/wsj_parsing.yaml explains those it does not give."""
    wsj, more = (flat(resolve("wsj_parsing", row)) for row in ("base", "semi_supervised"))
    both = {"num_layers": 4, "d_model": 1024, "d_ff": 2048, "num_heads": 8, "alpha": 0.3}
    both |= {"beam_size": 21, "max_extra_length": 300, "train_steps": 100_000}
    assert wsj.items() >= (both | {"vocabulary_size": 16000}).items()
    assert more.items() >= (both | {"vocabulary_size": 32000}).items()
    assert min(wsj["attention_dropout"], wsj["dropout"]) > 0


def test_rows_of_a_problem_are_its_own():
    assert resolve("wsj_parsing", "semi_supervised").variant == "semi_supervised"
    own = {"semi_supervised", "small_treebank"}
    assert set(config.variants("wsj_parsing")) == {*config.variants(), *own}
    assert config.variants("wmt14_ende") == config.variants()
    assert config.variants("wmt14_enfr")["big"]["dropout"] == 0.1
    message = refusal("wmt14_ende", "semi_supervised")
    assert message.startswith("unknown variant 'semi_supervised'")
    assert message.endswith("E, big")
    assert "did you mean 'semi_supervised'" in refusal("wsj_parsing", "semi_superwised")


def test_rows_of_a_problem_are_listed():
    lines = list(table3.listing("wsj_parsing", {}))
    assert [line.split()[0] for line in lines] == list(config.variants("wsj_parsing"))
    assert "vocabulary_size 32000" in lines[-2]
    assert lines[-1].split()[1] == "3,659,776"  # as training counts it, on 4,000 pieces


def test_problem_files_list_only_what_differs():
    for name in config.problem_names():
        listed = yaml_files.read(config.config_dir() / f"{name}.yaml")
        listed.pop("variants", None)
        before = flat(resolve(listed.pop("like"))) if "like" in listed else defaults()
        same = {key for key, value in listed.items() if value == before[key]}
        assert not same, f"{name}.yaml repeats the paper's base, or the problem that it is like"


def test_names_are_unique_over_the_groups():
    names = [field.name for _, field in config.fields()]
    assert len(names) == len(set(names))


def test_every_field_has_help():
    assert not [name for name, field in FIELDS.items() if not field.metadata["help"].strip()]


def test_every_default_is_a_value_its_field_accepts():
    assert flat(config.override(resolve("toy_ende"), defaults())) == defaults()


def test_every_field_is_a_flag_of_train_that_sets_it():
    samples = {int: "3", float: "0.25", str: "word", type(None): "word", tuple: "file"}
    for name, field in FIELDS.items():
        text = "mixed_bfloat16" if name == "precision" else samples.get(type(field.default), "true")
        text = "512" if field.metadata["low"] == 260 else text
        given = train.parser().parse_args([f"--{name}", text])
        assert set(vars(given)) == {"list_variants", "profile_steps", "strict", name}


# Later sources override earlier ones


@pytest.fixture
def config_dir(tmp_path, monkeypatch):
    """Set one hyperparameter in each source, which overrides the sources before it."""
    (tmp_path / "mine.yaml").write_text("d_k: 2\nd_v: 2\nd_ff: 2\n")
    (tmp_path / "table3.yaml").write_text("base:\nrow: {d_v: 3, d_ff: 3}\n")
    monkeypatch.setattr(config, "config_dir", lambda: tmp_path)
    return tmp_path


@pytest.mark.usefixtures("config_dir")
def test_flags_beat_the_variant_beats_the_problem_beats_the_defaults():
    model = resolve("mine", "row", {"d_ff": 4}).model
    assert (model.d_model, model.d_k, model.d_v, model.d_ff) == (512, 2, 3, 4)


def test_a_problem_like_another_beats_it_and_is_beaten_by_its_variant(config_dir):
    (config_dir / "first.yaml").write_text("d_k: 5\nd_v: 5\nvariants: {row: {d_ff: 6}, raw: {}}\n")
    (config_dir / "mine.yaml").write_text("like: first\nd_v: 7\nvariants: {row: {num_heads: 1}}\n")
    base, row = (resolve("mine", variant).model for variant in ("base", "row"))
    assert (base.d_k, base.d_v, base.d_ff, base.num_heads) == (5, 7, 2048, 8)
    assert (row.d_k, row.d_v, row.d_ff, row.num_heads) == (5, 3, 6, 1)
    assert resolve("mine", "raw").variant == "raw"


def test_problems_share_a_variant_in_a_file_of_its_own(config_dir):
    (config_dir / "variant_small.yaml").write_text("d_ff: 6\n")
    (config_dir / "mine.yaml").write_text("d_k: 5\nvariants: {small: variant_small.yaml}\n")
    model = resolve("mine", "small").model
    assert (model.d_k, model.d_ff) == (5, 6)
    assert config.problem_names() == ["mine"]
    (config_dir / "variant_small.yaml").write_text("d_fff: 6\n")
    assert "variant_small.yaml: unknown key 'd_fff'" in refusal("mine", "small")
    (config_dir / "variant_small.yaml").unlink()
    assert "mine.yaml: variant small: wanted names and values, or a file" in refusal("mine")


def test_other_languages_of_multi30k_differ_in_the_target_language_only():
    for name, language in (("multi30k_deen", "en"), ("multi30k_enfr", "fr")):
        for variant in ("base", "raw", "big"):
            first, other = (flat(resolve(p, variant)) for p in ("multi30k_ende", name))
            assert other == first | {"target_language": language}


def test_the_papers_recipe_on_multi30k_has_only_other_sizes_and_steps():
    ours, base = flat(resolve("multi30k_ende", "paper")), flat(resolve("wmt14_ende"))
    sizes = {"num_layers", "d_model", "d_ff", "num_heads", "dropout", "embedding_rows"}
    steps = {"train_steps", "warmup_steps", "tokens_per_batch", "checkpoint_steps", "average_last"}
    other = {"vocabulary_size", "tokenized", "precision", "eval_sentences", "eval_share"}
    assert {name for name in ours if ours[name] != base[name]} <= sizes | steps | other


def test_override_keeps_what_it_does_not_name():
    before = resolve("toy_ende", "E", {"seed": 7})
    after = config.override(before, {"alpha": 1.5})
    assert flat(after) == flat(before) | {"alpha": 1.5}
    assert (after.problem, after.variant) == ("toy_ende", "E")


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (("toy_end",), "toy_ende"),
        (("toy_ende", "bigg"), "big"),
        (("toy_ende", "base", {"warm_up_steps": 5}), "warmup_steps"),
    ],
)
def test_error_suggests_the_most_similar_name(arguments, suggestion):
    assert f"did you mean '{suggestion}'?" in refusal(*arguments)


def test_unknown_key_of_a_file_names_the_file(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("d_modell: 2\n")
    (tmp_path / "table3.yaml").write_text("base: {}\n")
    monkeypatch.setattr(config, "config_dir", lambda: tmp_path)
    assert "mine.yaml: unknown key 'd_modell'; did you mean 'd_model'?" in refusal("mine")


@pytest.mark.parametrize(
    ("like", "expected"),
    [
        ("mime", "unknown problem 'mime'; did you mean 'mine'? Problems: "),
        ("table3", "unknown problem 'table3'"),
        ("", "unknown problem None"),
        ("[mine]", "unknown problem ['mine']"),
        ("other", "other, whose own file has a line 'like: ...'; wanted a problem"),
        ("second", "second, whose own file has a line 'like: ...'; wanted a problem"),
    ],
)
def test_like_what(config_dir, like, expected):
    """Neither an unknown problem nor a circle nor a chain: `second` is like `mine`."""
    (config_dir / "second.yaml").write_text("like: mine\n")
    (config_dir / "other.yaml").write_text(f"like: {like}\n")
    assert refusal("other").startswith(f"{config_dir / 'other.yaml'}: like: {expected}")


@pytest.mark.parametrize("language", ["zh-CN", "ZH", "german", ""])
def test_a_language_is_a_code_that_chooses_a_tokeniser(language):
    """Chinese that is scored with the tokeniser for words has a BLEU of 0."""
    message = refusal("toy_ende", overrides={"target_language": language})
    assert message == (
        "target_language: wanted a code of two or three small letters, such as de or zh, got "
        f"{language!r}"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_layers", True),
        ("num_layers", 1.5),
        ("num_layers", "2"),
        ("num_layers", None),
        ("num_layers", [2]),
        ("dropout", True),
        ("dropout", "a lot"),
        ("dropout", [0.1]),
        ("tokenized", 1),
        ("tokenized", "yes"),
        ("target_language", False),  # YAML reads a bare `no` as False
        ("embedding_rows", "all"),
        ("source_files", [1]),
        ("source_files", 7),
    ],
)
def test_wrong_type(name, value):
    message = refusal("toy_ende", overrides={name: value})
    assert f"{name}: wanted" in message
    assert f"got {value!r}" in message


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("num_layers", 0, "at least 1, got 0"),
        ("dropout", -0.1, "at least 0, got -0.1"),
        ("dropout", 1.0, "less than 1, got 1.0"),
        ("epsilon", float("nan"), "at least 0, got nan"),
        ("d_model", 7, "an even number, got 7"),
        ("precision", "float16", "float32 or mixed_bfloat16, got 'float16'"),
        ("embedding_rows", 0, "at least 3, got 0"),
    ],
)
def test_value_out_of_range(name, value, wanted):
    assert f"{name}: wanted {wanted}" in refusal("toy_ende", overrides={name: value})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("epsilon", "1e-9", 1e-9),  # YAML reads it as a string
        ("alpha", "1", 1.0),
        ("num_layers", "3", 3),
        ("tokenized", "true", True),
        ("embedding_rows", "none", None),
        ("data_dir", "none", None),
        ("data_dir", "2024", "2024"),
        ("data_dir", "~", "~"),
        ("data_dir", "a: b", "a: b"),
        ("target_language", "no", "no"),
    ],
)
def test_flag_becomes_the_type_of_its_field(name, text, value):
    parsed = config.parse(name, text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize("text", ["[", "*", "1.0", "three", "", "true"])
def test_flag_that_is_no_number(text):
    with pytest.raises(BadInput, match="num_layers: wanted a whole number"):
        config.parse("num_layers", text)


# On disk


def test_saved_configuration_loads_as_it_was(tmp_path):
    files = ("a.en", "b c.en")
    overrides = {"source_files": files, "target_language": "no", "epsilon": 1e-12}
    saved = resolve("parallel_text", "E", overrides)
    config.save(saved, tmp_path / "config.yaml")
    loaded = config.load(tmp_path / "config.yaml")
    assert loaded == saved
    assert loaded.data.source_files == files
    assert loaded.data.data_dir is None
    assert loaded.model.embedding_rows is None


def test_a_configuration_that_could_not_be_loaded_is_not_saved(tmp_path):
    files = [f"/corpus/{number:0100}" for number in range(5_000)]
    named = resolve("parallel_text", overrides={"source_files": files, "target_files": files})
    with pytest.raises(BadInput, match=r"wanted at most 1,000,000: join the files"):
        config.save(named, tmp_path / "config.yaml")
    assert not list(tmp_path.iterdir())


def test_saved_configuration_does_not_move_with_the_defaults(tmp_path):
    config.save(resolve("toy_ende"), tmp_path / "config.yaml")
    text = (tmp_path / "config.yaml").read_text()
    assert not [name for name in FIELDS if f"\n{name}:" not in text]


@pytest.mark.parametrize("text", ["- a list", "seed: 1", "seed: [", "problem: toy_ende"])
def test_file_that_is_not_a_saved_configuration(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(BadInput, match=str(path)):
        config.load(path)


def test_no_file(tmp_path):
    with pytest.raises(BadInput, match=r"config\.yaml: cannot be read"):
        config.load(tmp_path / "config.yaml")


# Resuming


def test_conflicts_are_what_may_not_change():
    saved = resolve("toy_ende")
    change = {"d_model": 64, "train_steps": 9, "data_dir": "/data", "beam_size": 2, "seed": 5}
    assert config.conflicts(saved, config.override(saved, change)) == [
        "d_model: 64 (the run has 128)",
        "seed: 5 (the run has 1)",
    ]


@pytest.mark.parametrize(
    ("altered_share", "cooldown_share", "updates"),
    [(None, 0.25, 75), (None, 0.0, 100), (0.8, 0.25, 80), (0.8, 0.0, 80), (0.0, 0.25, 0)],
)
def test_text_is_altered_for_its_share_of_the_updates(altered_share, cooldown_share, updates):
    train = config.Train(
        train_steps=100, altered_share=altered_share, cooldown_share=cooldown_share
    )
    assert train.altered_updates == updates


def test_a_resumed_run_may_change_only_what_it_does_not_train_on():
    free = {name for name, field in FIELDS.items() if field.metadata["may_change"]}
    decode = {field.name for field in dataclasses.fields(config.Decode)}
    assert free - decode == {
        "data_dir",
        "prepared_dir",
        "dev_source_files",
        "dev_target_files",
        "test_source_files",
        "test_target_files",
        "target_language",
        "train_steps",
        "cooldown_share",
        "accumulate",
        "xla",
        "checkpoint_minutes",
        "checkpoint_steps",
        "keep_checkpoints",
        "keep_best",
        "early_stopping",
        "log_steps",
        "eval_sentences",
        "eval_share",
        "max_tokens_per_replica",
        "skip_nonfinite",
    }
    assert decode <= free


def test_every_problem_has_a_file_and_every_file_a_problem():
    from t2t_repro.problems import PROBLEMS

    assert sorted(PROBLEMS) == config.problem_names()


def test_the_line_that_an_earlier_version_lacks_is_named(tmp_path):
    path = tmp_path / "config.yaml"
    config.save(resolve("toy_ende"), path)
    whole = path.read_text()
    for line in ("clip_norm: 0.0\n", "source_files: []\n", "data_dir: null\n"):
        path.write_text(whole.replace(f"\n{line}", "\n", 1))
        with pytest.raises(BadInput, match=re.escape(f"add the line '{line.strip()}'")):
            config.load(path)
