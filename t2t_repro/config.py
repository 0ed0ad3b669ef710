"""Every hyperparameter, once: frozen dataclasses whose defaults are the paper's base model.

A configuration is made of, later ones winning: these defaults, configs/<problem>.yaml, a row of
configs/table3.yaml (`--variant`), what the problem's file says of that row or of one of its own,
and flags. Names are unique over the four groups: a key in a YAML file, a field here and a flag of
the commands are one and the same word.

    >>> config = resolve("multi30k_ende", variant="big", overrides={"seed": 7})
    >>> config.model.d_model, config.train.train_steps
    (1024, 300000)
"""

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipelines.errors import BadInput
from t2t_repro.settings import from_text, nearest, setting, setting_value

AUTO = 0  # of max_tokens_per_replica


@dataclass(frozen=True)
class Model:
    """Section 3, and the row "base" of Table 3."""

    num_layers: int = setting(6, "N, layers of the encoder and of the decoder (3.1)", low=1)
    d_model: int = setting(512, "width of every sub-layer and embedding (3.1); even", low=2)
    d_ff: int = setting(2048, "width of the feed-forward layer (3.3)", low=1)
    num_heads: int = setting(8, "h, attention heads (3.2.2)", low=1)
    d_k: int = setting(64, "width of a head's queries and keys (3.2.2)", low=1)
    d_v: int = setting(64, "width of a head's values (3.2.2)", low=1)
    dropout: float = setting(0.1, "P_drop on sub-layers and embeddings (5.4)", low=0, below=1)
    attention_dropout: float = setting(
        0.0, "dropout of attention weights; the paper: parsing only (6.3)", low=0, below=1
    )
    # 37,000 rows would give base 63.08M parameters; Table 3's 65M needs 40,960.
    embedding_rows: int | None = setting(
        40960, "rows of the shared matrix (3.4); none: as many as the vocabulary", low=3
    )
    learned_positions: int = setting(
        0, "0: sinusoids (3.5); n: a learned table of n positions (Table 3 E)", low=0
    )


@dataclass(frozen=True)
class Data:
    """Section 5.1, and where the text is."""

    vocabulary_size: int = setting(
        37000, "pieces of the shared BPE vocabulary (5.1)", low=260, decides_text=True
    )
    # Not stated in the paper; 256 is the authors' first code.
    max_length: int = setting(
        256, "pairs with more pieces on a side are not trained on", low=2, decides_text=True
    )
    tokens_per_batch: int = setting(
        25000, "source and target tokens of a batch each, over all replicas (5.1)", low=1
    )
    # Not stated in the paper; the authors' first code counts padding.
    count_padding: bool = setting(True, "whether tokens_per_batch includes padding")
    # On 4.5M pairs of news text 512 shapes leave 1.2 % of the cells empty, 64 leave 6.2 %.
    max_shapes: int = setting(
        512, "most shapes of batches; 64 and less suit compiled steps, and pad more", low=1
    )
    data_dir: str | None = setting(
        None,
        "directory that holds the problem's data (wmt14: or will hold it); none: TFDS's own",
        may_change=True,
    )
    prepared_dir: str | None = setting(
        None,
        "directory or gs://... for vocabulary and training text as ids, which runs may share; "
        "none: in the work directory",
        may_change=True,
    )
    tokenized: bool = setting(
        False, "multi30k_ende: its lower-cased tokenised text", decides_text=True
    )
    source_files: tuple[str, ...] = setting((), "parallel_text: training text, source side")
    target_files: tuple[str, ...] = setting((), "parallel_text: training text, target side")
    tsv_files: tuple[str, ...] = setting((), "parallel_text: instead, lines source<TAB>target")
    dev_source_files: tuple[str, ...] = setting(
        (), "parallel_text: dev text, source side", may_change=True, decides_text=True
    )
    dev_target_files: tuple[str, ...] = setting(
        (), "parallel_text: dev text, target side", may_change=True
    )
    test_source_files: tuple[str, ...] = setting(
        (), "parallel_text: test text, source side", may_change=True, decides_text=True
    )
    test_target_files: tuple[str, ...] = setting(
        (), "parallel_text: test text, target side", may_change=True
    )
    extra_tree_files: tuple[str, ...] = setting(
        (), "wsj_parsing: more trees to train on (6.3)", decides_text=True
    )
    gold_repeats: int = setting(
        1, "wsj_parsing: copies of the treebank beside them", low=1, decides_text=True
    )
    altered_copies: int = setting(
        0,
        "wsj_parsing: for small treebanks, copies of trees with other words",
        low=0,
        decides_text=True,
    )
    spell_words: bool = setting(
        False, "wsj_parsing: words in the target, for small treebanks", decides_text=True
    )
    held_out_share: float = setting(
        0.01,
        "parallel_text: share split off for dev, and for test, if not given",
        low=0,
        below=0.5,
        decides_text=True,
    )
    target_language: str = setting("de", "language of the target, for BLEU's tokeniser")


@dataclass(frozen=True)
class Train:
    """Sections 5.2 to 5.4, and how often to log, save and score."""

    train_steps: int = setting(100_000, "updates to make in all (5.2)", low=1, may_change=True)
    warmup_steps: int = setting(4000, "updates of rising learning rate (5.3)", low=1)
    learning_rate_scale: float = setting(1.0, "factor on equation 3; the paper: 1", low=0)
    cooldown_share: float = setting(
        0.0, "last share of train_steps, the rate falling to 0", low=0, below=1, may_change=True
    )
    beta_1: float = setting(0.9, "Adam (5.3)", low=0, below=1)
    beta_2: float = setting(0.98, "Adam (5.3)", low=0, below=1)
    epsilon: float = setting(1e-9, "Adam (5.3)", low=0)
    bpe_dropout: float = setting(
        0.0, "share of merges left out of training text before a cool-down", low=0, below=1
    )
    auxiliary_tasks: bool = setting(
        False, "before a cool-down, every pair once more with words reversed or replaced"
    )
    label_smoothing: float = setting(0.1, "eps_ls (5.4)", low=0, below=1)
    accumulate: int = setting(
        1,
        "parts of a batch that a replica works through one after another; less memory, same step",
        low=1,
        may_change=True,
    )
    max_tokens_per_replica: int | None = setting(
        None,
        "most tokens of a side that a replica takes at once; its share then comes in more parts; "
        "auto: as many as its memory holds, which is tried",
        low=0,
        words={"auto": AUTO},
        may_change=True,
    )
    precision: str = setting(
        "float32", "of the matrix products", among=("float32", "mixed_bfloat16")
    )
    # On two CPU cores a compiled step takes 1.1 times a plain one, base and tiny of `bench train`.
    xla: bool = setting(
        False, "compile the step, for each shape of batch; slower on a CPU", may_change=True
    )
    seed: int = setting(1, "of initial weights, dropout and the order of the data", low=0)
    checkpoint_minutes: float = setting(
        10.0, "minutes between checkpoints (6.1)", low=0, may_change=True
    )
    checkpoint_steps: int = setting(
        0, "updates between checkpoints, instead of minutes, if not 0", low=0, may_change=True
    )
    keep_checkpoints: int = setting(20, "checkpoints kept, the last ones", low=1, may_change=True)
    log_steps: int = setting(100, "updates between TensorBoard points", low=1, may_change=True)
    eval_sentences: int = setting(
        1000, "dev sentences translated at a checkpoint, for BLEU", low=0, may_change=True
    )
    eval_share: float = setting(
        0.02, "most of the time that dev scores may take; the last apart", low=0, may_change=True
    )


@dataclass(frozen=True)
class Decode:
    """Section 6.1."""

    beam_size: int = setting(4, "hypotheses kept (6.1); 1 is greedy", low=1, may_change=True)
    alpha: float = setting(
        0.6, "exponent of the length penalty ((5 + length) / 6)^alpha (6.1)", low=0, may_change=True
    )
    max_extra_length: int = setting(
        50, "output at most input length + this many pieces (6.1)", low=0, may_change=True
    )
    max_source_length: int = setting(
        1024, "longer sources are cut to this many pieces, with a note", low=2, may_change=True
    )
    average_last: int = setting(
        5, "checkpoints to average, the last ones; fewer if there are fewer (6.1)", low=1,
        may_change=True,
    )  # fmt: skip


@dataclass(frozen=True)
class Config:
    """One run: its problem, its row of Table 3, and all hyperparameters."""

    problem: str
    variant: str
    model: Model
    data: Data
    train: Train
    decode: Decode


GROUPS: dict[str, type] = {"model": Model, "data": Data, "train": Train, "decode": Decode}


def fields() -> Iterator[tuple[str, dataclasses.Field]]:
    """(group, field) of every hyperparameter, in the order above."""
    for group, cls in GROUPS.items():
        for field in dataclasses.fields(cls):
            yield group, field


_VARIANTS = "variants"  # in a problem's file: {row of Table 3 or of its own: what differs}
_HEAD = ("problem", "variant")  # of a saved configuration, before the fields
FIELDS = {field.name: field for _, field in fields()}
_TYPES = {
    name: hint for cls in GROUPS.values() for name, hint in typing.get_type_hints(cls).items()
}


def config_dir() -> Path:
    """The folder of the YAML files: in an installed wheel inside the package, else beside it."""
    here = Path(__file__).resolve().parent
    return here / "configs" if (here / "configs").is_dir() else here.parent / "configs"


def problem_names() -> list[str]:
    """Every problem has one file in configs/; the paper's tables are beside them."""
    stems = {path.stem for path in config_dir().glob("*.yaml")}
    return sorted(stem for stem in stems if not stem.startswith("table"))


def variants(problem: str | None = None) -> dict[str, dict[str, Any]]:
    """Rows of Table 3 by name, each with what differs from base; of a problem its own as well."""
    table = {name: row or {} for name, row in _read_yaml(config_dir() / "table3.yaml").items()}
    if problem is None:
        return table
    _check_problem(problem)
    own = _read_yaml(config_dir() / f"{problem}.yaml").get(_VARIANTS, {})
    return table | {name: table.get(name, {}) | row for name, row in own.items()}


def resolve(
    problem: str, variant: str = "base", overrides: Mapping[str, Any] | None = None
) -> Config:
    """Defaults, the problem's file, the variant's row and what the file adds to it, `overrides`.

    Raises:
        BadInput: an unknown problem, variant or key (names the nearest), or a value out of place.
    """
    known = variants(problem)
    if variant not in known:
        raise BadInput(
            f"unknown variant '{variant}'{nearest(variant, known)} Variants: {', '.join(known)}"
        )
    path = config_dir() / f"{problem}.yaml"
    own = {name: value for name, value in _read_yaml(path).items() if name != _VARIANTS}
    values = _checked(own, str(path))
    values |= _checked(known[variant], f"table3.yaml or {path}, variant {variant}")
    values |= _checked(overrides or {}, "flag")
    return _build(problem, variant, values)


def override(config: Config, overrides: Mapping[str, Any]) -> Config:
    """`config` with some hyperparameters replaced; raises BadInput like `resolve`."""
    return _build(config.problem, config.variant, flat(config) | _checked(overrides, "flag"))


def flat(config: Config) -> dict[str, Any]:
    """{name: value} of every hyperparameter."""
    return {field.name: getattr(getattr(config, group), field.name) for group, field in fields()}


def text_settings(config: Config) -> dict[str, Any]:
    """Return the problem and the settings that decide how its training text is encoded.

    A setting that lists files counts only as given or not: a fingerprint covers their text.
    """
    values = {name: flat(config)[name] for name in FIELDS if FIELDS[name].metadata["decides_text"]}
    marks = {name: bool(v) if isinstance(v, tuple) else v for name, v in values.items()}
    return {"problem": config.problem} | marks


def save(config: Config, path: Path) -> None:
    """Writes the resolved configuration, all of it, as YAML that `load` reads."""
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in flat(config).items()}
    head = {"problem": config.problem, "variant": config.variant}
    path.write_text(yaml.safe_dump(head | plain, sort_keys=False), encoding="utf-8")


def load(path: Path) -> Config:
    """The configuration that `save` wrote; raises BadInput if it is not one, or not all of it."""
    values = _read_yaml(path)
    checked = _checked({k: v for k, v in values.items() if k not in _HEAD}, str(path))
    if missing := [name for name in (*_HEAD, *FIELDS) if name not in values]:
        raise BadInput(
            f"{path}: no '{missing[0]}' in it; is it a run's config.yaml, and whole? A line of an "
            "earlier version may be missing: add it"
        )
    _check_problem(values["problem"])
    return _build(values["problem"], values["variant"], checked)


def conflicts(saved: Config, wanted: Config) -> list[str]:
    """What a run may not change when it resumes, as "name: wanted (the run has saved)"."""
    old, new = flat(saved), flat(wanted)
    return [
        f"{name}: {new[name]} (the run has {old[name]})"
        for name, field in FIELDS.items()
        if new[name] != old[name] and not field.metadata["may_change"]
    ]


def parse(name: str, text: str) -> Any:
    """The value of a flag: `text` as the type of a field; raises BadInput if it is none."""
    hint = _TYPES[name]
    return setting_value(FIELDS[name], hint, from_text(hint, text), "flag")


def _check_problem(problem: str) -> None:
    if problem not in (known := problem_names()):
        raise BadInput(
            f"unknown problem '{problem}'{nearest(str(problem), known)} "
            f"Problems: {', '.join(known)}"
        )


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadInput(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    if values is not None and not isinstance(values, dict):
        raise BadInput(f"{path}: wanted lines 'name: value', got a {type(values).__name__}")
    return values or {}


def _build(problem: str, variant: str, values: Mapping[str, Any]) -> Config:
    groups = {
        group: cls(**{f.name: values[f.name] for f in dataclasses.fields(cls) if f.name in values})
        for group, cls in GROUPS.items()
    }
    if groups["model"].d_model % 2:
        raise BadInput(f"d_model: wanted an even number, got {groups['model'].d_model}")
    return Config(problem, variant, **groups)


def _checked(values: Mapping[str, Any], origin: str) -> dict[str, Any]:
    unknown = [name for name in values if name not in FIELDS]
    if unknown:
        raise BadInput(f"{origin}: unknown key '{unknown[0]}'{nearest(unknown[0], FIELDS)}")
    return {
        name: setting_value(FIELDS[name], _TYPES[name], value, origin)
        for name, value in values.items()
    }
