"""All hyperparameters: frozen dataclasses whose defaults are the paper's base model.

A configuration is built in this order, and a later source overrides an earlier one: the defaults
below, configs/<problem>.yaml, a row of configs/table3.yaml (`--variant`), the changes that the
problem's file makes to that row or the variant that it defines, and flags. A problem's file may say
`like: <problem>`: that problem's file then comes before it. A variant may be the name of a file,
which problems share. Names are unique over the four groups, so a field here has the same name as
its key in the YAML files and as its flag.

    >>> config = resolve("multi30k_ende", variant="big", overrides={"seed": 7})
    >>> config.model.d_model, config.train.train_steps
    (1024, 300000)
"""

import dataclasses
import re
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipelines import storage
from pipelines.errors import BadInput
from t2t_repro import yaml_files
from t2t_repro.settings import from_text, nearest, setting, setting_value, shown

AUTO = 0  # max_tokens_per_replica="auto"


@dataclass(frozen=True)
class Model:
    """Sections 3 and 5.4: the Transformer, with the row "base" of Table 3 as defaults."""

    num_layers: int = setting(
        6, "N, number of layers in the encoder and in the decoder (3.1)", low=1, high=1_000
    )
    d_model: int = setting(
        512,
        "width of every sub-layer's output and of the embeddings (3.1); even",
        low=2,
        high=65_536,
    )
    d_ff: int = setting(2048, "inner width of the feed-forward layer (3.3)", low=1, high=262_144)
    num_heads: int = setting(8, "h, number of attention heads (3.2.2)", low=1, high=1_024)
    d_k: int = setting(64, "width of a head's queries and keys (3.2.2)", low=1, high=65_536)
    d_v: int = setting(64, "width of a head's values (3.2.2)", low=1, high=65_536)
    dropout: float = setting(
        0.1, "P_drop, dropout of sub-layer outputs and embeddings (5.4)", low=0, below=1
    )
    attention_dropout: float = setting(
        0.0,
        "dropout of attention weights; the paper uses it for parsing only (6.3)",
        low=0,
        below=1,
    )
    # With 37,000 rows base would have 63.08M parameters; 40,960 rows give Table 3's 65M.
    embedding_rows: int | None = setting(
        40960,
        "rows of the shared embedding matrix (3.4); none: one for each piece of the vocabulary",
        low=3,
        high=1_000_000,
    )
    learned_positions: int = setting(
        0,
        "0: sinusoidal positions (3.5); n: a learned table of n positions (Table 3, row E)",
        low=0,
        high=1_000_000,
    )


@dataclass(frozen=True)
class Data:
    """Section 5.1: the text, its vocabulary and its batches."""

    vocabulary_size: int = setting(
        37000,
        "number of pieces in the shared BPE vocabulary (5.1)",
        low=260,
        high=1_000_000,
        decides_text=True,
    )
    vocabulary: str | None = setting(
        None,
        "model file of sentencepiece, or work directory of a run, whose vocabulary is used; none: "
        "learnt on the training text",
    )
    # Not stated in the paper; 256 is the value in the authors' first code.
    max_length: int = setting(
        256,
        "maximum pieces per side; longer training pairs are left out",
        low=2,
        high=100_000,
        decides_text=True,
    )
    # Not in the paper, which does not say how its text was filtered.
    max_ratio: float | None = setting(
        None,
        "maximum pieces on one side for each piece on the other; training pairs beyond it are "
        "left out; none: any",
        low=1,
        high=100_000,
        decides_text=True,
    )
    drop_duplicates: bool = setting(
        False, "leave out training pairs that repeat an earlier one", decides_text=True
    )
    drop_copies: bool = setting(
        False, "leave out training pairs whose target is their source", decides_text=True
    )
    tokens_per_batch: int = setting(
        25000,
        "source tokens per batch, and as many target tokens, over all replicas (5.1); but at least "
        "9 pairs, however long: --max_tokens_per_replica bounds memory",
        low=1,
        high=100_000_000,
    )
    # Not stated in the paper; the authors' first code counts padding tokens.
    count_padding: bool = setting(True, "whether tokens_per_batch counts padding tokens")
    # On 4.5M pairs of news text 1.1 % of the cells are padding with 512 shapes, 6.3 % with 64.
    max_shapes: int = setting(
        512,
        "maximum number of batch shapes; with --xla use 64 or fewer, which adds padding",
        low=1,
        high=10_000,
    )
    data_dir: str | None = setting(
        None,
        "directory with the problem's data (wmt14: downloaded to it); none: TFDS's default",
        may_change=True,
    )
    prepared_dir: str | None = setting(
        None,
        "directory or gs://... for the vocabulary and the encoded training text, which several "
        "runs may share; none: inside the work directory",
        may_change=True,
    )
    stream: bool = setting(
        False, "read and encode the training text while training, instead of preparing it first"
    )
    tokenized: bool = setting(
        False,
        "multi30k_*: use its lower-cased, tokenised files; parallel_text: the text is tokenised",
        decides_text=True,
    )
    source_files: tuple[str, ...] = setting((), "parallel_text: training text, source side")
    target_files: tuple[str, ...] = setting((), "parallel_text: training text, target side")
    tsv_files: tuple[str, ...] = setting(
        (), "parallel_text: training text as lines source<TAB>target, instead of the two above"
    )
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
        1,
        "wsj_parsing: copies of the treebank in the training text, beside --extra_tree_files",
        low=1,
        high=1_000,
        decides_text=True,
    )
    altered_copies: int = setting(
        0,
        "wsj_parsing: extra copies of each tree with other words, for small treebanks",
        low=0,
        high=1_000,
        decides_text=True,
    )
    spell_words: bool = setting(
        False, "wsj_parsing: write words into the target, for small treebanks", decides_text=True
    )
    held_out_share: float = setting(
        0.01,
        "parallel_text: share of the pairs held out for dev, and again as many for test, if no "
        "files are given for them",
        low=0,
        below=0.5,
        decides_text=True,
    )
    target_language: str = setting(
        "de",
        "code of the target language, such as zh, which selects BLEU's tokeniser",
        may_change=True,
    )


@dataclass(frozen=True)
class Train:
    """Sections 5.2 to 5.4: training, and how often to log, save and score."""

    train_steps: int = setting(
        100_000, "total number of updates (5.2)", low=1, high=1_000_000_000, may_change=True
    )
    warmup_steps: int = setting(
        4000, "updates during which the learning rate rises (5.3)", low=1, high=1_000_000_000
    )
    learning_rate_scale: float = setting(
        1.0, "factor on equation 3; 1 in the paper", low=0, high=1e30
    )
    init_from: str | None = setting(
        None,
        "work directory of another run, whose weights and vocabulary this one starts with; none: "
        "random weights",
    )
    freeze: str | None = setting(
        None, "parts whose weights stay as they are, such as embedding,encoder; none: all learn"
    )
    cooldown_share: float = setting(
        0.0,
        "last share of train_steps, over which the learning rate falls to 0; 0 in the paper",
        low=0,
        below=1,
        may_change=True,
    )
    beta_1: float = setting(0.9, "Adam's beta_1 (5.3)", low=0, below=1)
    beta_2: float = setting(0.98, "Adam's beta_2 (5.3)", low=0, below=1)
    epsilon: float = setting(1e-9, "Adam's epsilon (5.3)", low=0, high=1)
    ema: float = setting(
        0.0,
        "decay of the weights' moving average, which is then what is scored and averaged, such as "
        "0.999; 0: none, as in the paper",
        low=0,
        below=1,
    )
    weight_decay: float = setting(
        0.0,
        "decoupled weight decay (Loshchilov and Hutter 2019): each update also subtracts the "
        "learning rate times this times the weight, from matrices alone; 0 in the paper",
        low=0,
        high=1000,
    )
    clip_norm: float = setting(
        0.0,
        "largest L2 norm of a gradient, to which a larger one is scaled down; 0: any, as in the "
        "paper, which states no clipping",
        low=0,
        high=1e30,
    )
    skip_nonfinite: int = setting(
        0,
        "most steps in a row that may be skipped because the gradient is not finite; 0: stop at "
        "the first",
        low=0,
        high=1_000_000,
        may_change=True,
    )
    bpe_dropout: float = setting(
        0.0,
        "share of BPE merges skipped at random in training text, during altered_share",
        low=0,
        below=1,
    )
    misspelt_share: float = setting(
        0.0,
        "share of the sources' longer words misspelt at random in training text, during "
        "altered_share",
        low=0,
        high=1,
    )
    auxiliary_tasks: bool = setting(
        False, "train on every pair again with words reversed or replaced, during altered_share"
    )
    altered_share: float | None = setting(
        None,
        "epochs that begin in this first share of train_steps have bpe_dropout, misspelt_share and "
        "auxiliary_tasks; none: 1 - cooldown_share",
        low=0,
        high=1,
    )
    label_smoothing: float = setting(0.1, "eps_ls, label smoothing (5.4)", low=0, below=1)
    accumulate: int = setting(
        1,
        "micro-batches into which a replica splits its batch; saves memory, same update",
        low=1,
        high=100_000,
        may_change=True,
    )
    max_tokens_per_replica: int | None = setting(
        None,
        "maximum tokens per side in a micro-batch; overrides an --accumulate that is too small; "
        "auto, or 0: as many as fit in the memory, found by trial",
        low=0,
        high=100_000_000,
        words={"auto": AUTO},
        may_change=True,
    )
    precision: str = setting(
        "float32",
        "precision of the matrix products: float32 or mixed_bfloat16",
        among=("float32", "mixed_bfloat16"),
    )
    # On two CPU cores a compiled step takes 1.2 (tiny of `bench train`, float32), 2.1 (bfloat16),
    # 0.9 to 1.2 (base, float32) and 2.5 times (bfloat16) as long.
    xla: bool = setting(
        False,
        "compile the training step, once for each batch shape; slower on a CPU",
        may_change=True,
    )
    seed: int = setting(
        1,
        "random seed of initial weights, dropout and the order of the data",
        low=0,
        high=2**32 - 1,
    )
    checkpoint_minutes: float = setting(
        10.0, "minutes between checkpoints (6.1)", low=0, high=1_000_000, may_change=True
    )
    checkpoint_steps: int = setting(
        0,
        "updates between checkpoints; 0: use checkpoint_minutes",
        low=0,
        high=1_000_000_000,
        may_change=True,
    )
    keep_checkpoints: int = setting(
        20, "number of latest checkpoints to keep", low=1, high=1_000_000, may_change=True
    )
    keep_best: int = setting(
        0,
        "number of checkpoints to keep in addition to the latest: those with the best dev scores",
        low=0,
        high=1_000_000,
        may_change=True,
    )
    early_stopping: int = setting(
        0,
        "dev scores in a row without gain after which training ends; 0: train_steps alone counts",
        low=0,
        high=1_000_000,
        may_change=True,
    )
    log_steps: int = setting(
        100, "updates between TensorBoard points", low=1, high=1_000_000_000, may_change=True
    )
    eval_sentences: int = setting(
        1000,
        "dev sentences translated at a checkpoint to compute BLEU",
        low=0,
        high=1_000_000,
        may_change=True,
    )
    eval_share: float = setting(
        0.02,
        "largest share of the time that dev scores may take; the final ones are always computed",
        low=0,
        high=1,
        may_change=True,
    )

    @property
    def updates_before_cooldown(self) -> int:
        """The number of updates before the learning rate begins to fall to 0, or all updates."""
        return round((1 - self.cooldown_share) * self.train_steps)

    @property
    def altered_updates(self) -> int:
        """The number of updates whose text is altered, if the run alters any."""
        if self.altered_share is None:
            return self.updates_before_cooldown
        return round(self.altered_share * self.train_steps)

    @property
    def cooldown_begins(self) -> int:
        """The update after which the cool-down begins; 0 if there is none."""
        return self.updates_before_cooldown if self.cooldown_share else 0


@dataclass(frozen=True)
class Decode:
    """Section 6.1: beam search and checkpoint averaging."""

    beam_size: int = setting(
        4,
        "number of hypotheses kept (6.1); 1: follow the likeliest piece that is not EOS, then cut "
        "the output where its score is best",
        low=1,
        high=1_000,
        may_change=True,
    )
    alpha: float = setting(
        0.6,
        "exponent of the length penalty ((5 + length) / 6)^alpha (6.1)",
        low=0,
        high=10,
        may_change=True,
    )
    length_reward: float = setting(
        0.0,
        "added to the log-probability for each piece up to the expected length of the output, "
        "the input's length times the length ratio; not in the paper",
        low=0,
        high=10,
        may_change=True,
    )
    length_ratio: float | None = setting(
        None,
        "expected pieces of an output for each piece of the input; none: as in the training text, "
        "which a new run measures",
        low=0.01,
        high=100,
        may_change=True,
    )
    max_extra_length: int = setting(
        50,
        "maximum output length: input length + this many pieces (6.1)",
        low=0,
        high=10_000,
        may_change=True,
    )
    max_source_length: int = setting(
        1024,
        "maximum source pieces; longer sources are truncated, with a warning",
        low=2,
        high=100_000,
        may_change=True,
    )
    average_last: int = setting(
        5,
        "number of latest checkpoints to average; all of them if there are fewer (6.1)",
        low=1,
        high=1_000_000,
        may_change=True,
    )

    @property
    def expected_ratio(self) -> float:
        """The length ratio, or 1 where none has been measured or given."""
        return 1.0 if self.length_ratio is None else self.length_ratio


@dataclass(frozen=True)
class Config:
    """A run: its problem, its variant (a row of Table 3) and all hyperparameters."""

    problem: str
    variant: str
    model: Model
    data: Data
    train: Train
    decode: Decode


GROUPS: dict[str, type] = {"model": Model, "data": Data, "train": Train, "decode": Decode}


def fields() -> Iterator[tuple[str, dataclasses.Field]]:
    """Yield (group, field) for every hyperparameter, in the order of their definition."""
    for group, cls in GROUPS.items():
        for field in dataclasses.fields(cls):
            yield group, field


_VARIANTS = "variants"  # key of a problem's file: {variant: the hyperparameters that it changes}
_LIKE = "like"  # key of a problem's file: the problem whose file it starts from
_HEAD = ("problem", "variant")  # the first keys of a saved configuration
_LANGUAGE = re.compile("[a-z]{2,3}")
FIELDS = {field.name: field for _, field in fields()}
_TYPES = {
    name: hint for cls in GROUPS.values() for name, hint in typing.get_type_hints(cls).items()
}


def config_dir() -> Path:
    """Return the folder of the YAML files: inside an installed package, else beside it."""
    here = Path(__file__).resolve().parent
    return here / "configs" if (here / "configs").is_dir() else here.parent / "configs"


def problem_names() -> list[str]:
    """Return the names of all problems: files of configs/ that are neither table nor variant."""
    stems = {path.stem for path in config_dir().glob("*.yaml")}
    return sorted(stem for stem in stems if not stem.startswith(("table", "variant")))


def variants(problem: str | None = None) -> dict[str, dict[str, Any]]:
    """Return {variant: what differs from base}: the rows of Table 3, then the problem's own."""
    path = config_dir() / "table3.yaml"
    table = _rows(path, yaml_files.read(path))
    if problem is None:
        return table
    _check_name("problem", problem, problem_names())
    for path, values in _files(problem):
        own = _rows(path, values.get(_VARIANTS))
        table |= {name: table.get(name, {}) | row for name, row in own.items()}
    return table


def _files(problem: str) -> list[tuple[Path, dict[Any, Any]]]:
    """Return path and content of a problem's file, and before it of the file that it is like."""
    path = config_dir() / f"{problem}.yaml"
    own = yaml_files.read(path)
    if _LIKE not in own:
        return [(path, own)]
    like = own.pop(_LIKE)
    try:
        _check_name("problem", like, problem_names())
    except BadInput as error:
        raise BadInput(f"{path}: {_LIKE}: {error}") from None
    first = config_dir() / f"{like}.yaml"
    values = yaml_files.read(first)
    if _LIKE in values:  # one step only, so no chain has to be followed and no circle can be made
        raise BadInput(
            f"{path}: {_LIKE}: {like}, whose own file has a line '{_LIKE}: ...'; wanted a problem "
            "whose file has none: name that problem, or write the settings out"
        )
    return [(first, values), (path, own)]


def _rows(path: Path, rows: Any) -> dict[str, dict[str, Any]]:
    """Return {variant: what it changes}, as read from a file."""
    rows = {} if rows is None else rows
    if not isinstance(rows, dict) or not all(isinstance(name, str) for name in rows):
        raise BadInput(f"{path}: wanted lines 'variant: what it changes', got {shown(rows)}")
    return {name: _row(path, name, row) for name, row in rows.items()}


def _row(path: Path, name: str, row: Any) -> dict[str, Any]:
    """Return what a variant changes, which its file has if `row` is the name of one."""
    if isinstance(row, str) and (shared := path.parent / row).is_file():
        return _checked(yaml_files.read(shared), str(shared))
    if not isinstance(row, dict | None):
        raise BadInput(
            f"{path}: variant {name}: wanted names and values, or a file beside it that has them, "
            f"got {shown(row)}"
        )
    return row or {}


def resolve(
    problem: str, variant: str = "base", overrides: Mapping[str, Any] | None = None
) -> Config:
    """Return the configuration of a problem and a variant, with some values overridden.

    Args:
        problem: A file of configs/, without ".yaml".
        variant: A row of Table 3 or a variant of the problem's file.
        overrides: {name: value}, which override all else.

    Raises:
        BadInput: A problem, variant or key is unknown (the message suggests the most similar one),
            or a value has a wrong type or is out of bounds.
    """
    known = variants(problem)
    _check_name("variant", variant, known)
    values: dict[str, Any] = {}
    origins = ["table3.yaml"]
    for path, content in _files(problem):
        own = {name: value for name, value in content.items() if name != _VARIANTS}
        values |= _checked(own, str(path))
        origins.append(str(path))
    values |= _checked(known[variant], f"{' or '.join(origins)}, variant {variant}")
    values |= _checked(overrides or {}, "flag")
    return _build(problem, variant, values)


def override(config: Config, overrides: Mapping[str, Any]) -> Config:
    """Return `config` with some hyperparameters replaced; raise BadInput like `resolve`."""
    return _build(config.problem, config.variant, flat(config) | _checked(overrides, "flag"))


def flat(config: Config) -> dict[str, Any]:
    """Return {name: value} of every hyperparameter."""
    return {field.name: getattr(getattr(config, group), field.name) for group, field in fields()}


def text_settings(config: Config) -> dict[str, Any]:
    """Return the problem and the settings that decide how its training text is encoded.

    A setting that lists files counts only as given or not: a fingerprint covers their text.
    """
    return {"problem": config.problem} | {
        name: bool(value) if isinstance(value, tuple) else value
        for name, value in flat(config).items()
        if FIELDS[name].metadata["decides_text"]
    }


def save(config: Config, path: Path) -> None:
    """Write the whole resolved configuration as YAML that `load` reads.

    Raises:
        BadInput: It would be larger than `load` allows, or cannot be written.
    """
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in flat(config).items()}
    head = {"problem": config.problem, "variant": config.variant}
    content = yaml.safe_dump(head | plain, sort_keys=False).encode()
    if len(content) > yaml_files.MOST_BYTES:
        raise BadInput(
            f"{path}: the names of so many text files take {len(content):,} bytes; wanted at most "
            f"{yaml_files.MOST_BYTES:,}: join the files into fewer"
        )
    storage.write(str(path.parent), path.name, content)


def load(path: Path) -> Config:
    """Return the configuration that `save` wrote.

    Raises:
        BadInput: The file cannot be read, or a line is missing or wrong.
    """
    values = yaml_files.read(path)
    checked = _checked({k: v for k, v in values.items() if k not in _HEAD}, str(path))
    if missing := [name for name in (*_HEAD, *FIELDS) if name not in values]:
        line = _line(FIELDS[missing[0]]) if missing[0] in FIELDS else f"{missing[0]}: ..."
        raise BadInput(
            f"{path}: no '{missing[0]}' in it; wanted the whole config.yaml of a run; add the line "
            f"'{line}' if an earlier version wrote the file"
        )
    try:
        _check_name("problem", values["problem"], problem_names())
        _check_name("variant", values["variant"], variants(values["problem"]))
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    return _build(values["problem"], values["variant"], checked)


def _line(field: dataclasses.Field) -> str:
    """Return the line of a saved configuration in which a setting has its default."""
    default = list(field.default) if isinstance(field.default, tuple) else field.default
    return yaml.safe_dump({field.name: default}).strip()


def conflicts(saved: Config, wanted: Config) -> list[str]:
    """Return the changes that a resumed run may not make: "name: wanted (the run has saved)"."""
    old, new = flat(saved), flat(wanted)
    return [
        f"{name}: {new[name]} (the run has {old[name]})"
        for name, field in FIELDS.items()
        if new[name] != old[name] and not field.metadata["may_change"]
    ]


def parse(name: str, text: str) -> Any:
    """Return a flag's text as the type of its field; raise BadInput if it is not a value of it."""
    hint = _TYPES[name]
    return setting_value(FIELDS[name], hint, from_text(hint, text), "flag")


def _check_name(kind: str, name: Any, known: Collection[str]) -> None:
    if not isinstance(name, str) or name not in known:
        raise BadInput(
            f"unknown {kind} {shown(name)}{nearest(name, known)} {kind.capitalize()}s: "
            f"{', '.join(known)}"
        )


def _build(problem: str, variant: str, values: Mapping[str, Any]) -> Config:
    groups = {
        group: cls(**{f.name: values[f.name] for f in dataclasses.fields(cls) if f.name in values})
        for group, cls in GROUPS.items()
    }
    if groups["model"].d_model % 2:
        raise BadInput(f"d_model: wanted an even number, got {groups['model'].d_model}")
    if not _LANGUAGE.fullmatch(language := groups["data"].target_language):
        raise BadInput(
            f"target_language: wanted a code of two or three small letters, such as de or zh, got "
            f"{shown(language)}"
        )
    return Config(problem, variant, **groups)


def _checked(values: Mapping[str, Any], origin: str) -> dict[str, Any]:
    unknown = [name for name in values if name not in FIELDS]
    if unknown:
        raise BadInput(f"{origin}: unknown key {shown(unknown[0])}{nearest(unknown[0], FIELDS)}")
    return {
        name: setting_value(FIELDS[name], _TYPES[name], value, origin)
        for name, value in values.items()
    }
