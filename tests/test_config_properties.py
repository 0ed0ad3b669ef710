"""Whatever a person writes into a run's config.yaml or gives as flags: BadInput, or a value."""

import contextlib
import tracemalloc

import hypothesis
import pytest
import yaml
from examples import EXAMPLES
from hypothesis import strategies as st

from pipelines.errors import BadInput
from t2t_repro import (
    cli,
    config,
    evaluate,
    export,
    prepare,
    score,
    serve,
    train,
    translate,
    visualize,
)
from t2t_repro.bench import __main__ as bench

FAST_AND_SLOW = pytest.mark.parametrize(
    "examples", [200, pytest.param(EXAMPLES, marks=pytest.mark.slow)]
)
MOST_MEMORY = 20_000_000  # bytes: of the largest content below, and of what YAML makes of it

# Values that have been trouble, as YAML has them.
TROUBLE = (
    *("", "null", "~", "2020-01-01", "2020-99-99", "!!int abc", "!!python/name:os.system", "0x_"),
    *("9" * 5000, "0x" + "f" * 4000, "1" * 401 + ".5", ".inf", "-.inf", ".nan", "1e308", "1e999"),
    *("[" * 3000, "{a: " * 300, "*a", "&a [*a]", "!!binary x", "1:" * 100 + "1", '"\\ud800"'),
    *('"\\0"', '"\\x1b[31m"', "{<<: {a: 1}}", "[[[1]]]", "? [a]", "{[a]: b}", "- -", "="),
)  # fmt: skip
LINES = st.sampled_from(TROUBLE)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.dates(), st.text(max_size=20)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SCALARS, inner, max_size=3)
)
NAMES = st.one_of(st.sampled_from(["problem", "variant", *config.FIELDS]), st.text(max_size=9))


def hold(property_, examples, *strategies):
    """Check a property on this many examples."""
    check = hypothesis.given(*strategies)(property_)
    hypothesis.settings(
        max_examples=examples, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )(check)()  # fmt: skip


def is_refused_or_read(action):
    """Call `action`: it ends without an exception or with a BadInput whose line is short."""
    try:
        action()
    except BadInput as error:
        line = cli.shortened(f"error: {error}")
        assert len(line) <= 500
        assert line.isprintable()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the lines of a whole configuration, by name."""
    path = tmp_path_factory.mktemp("whole") / "config.yaml"
    config.save(config.resolve("toy_ende"), path)
    return {line.split(":")[0]: line for line in path.read_text().splitlines()}


@FAST_AND_SLOW
def test_any_bytes_as_a_configuration(tmp_path, examples):
    path = tmp_path / "config.yaml"

    def loads(content):
        path.write_bytes(content)
        is_refused_or_read(lambda: config.load(path))

    hold(loads, examples, st.binary(max_size=300) | st.text(max_size=300).map(str.encode))


@FAST_AND_SLOW
def test_a_configuration_with_changed_lines(tmp_path, whole, examples):
    path = tmp_path / "config.yaml"

    def loads(changes):
        changed = whole | {name: f"{name}: {value}" for name, value in changes.items()}
        path.write_bytes("\n".join(changed.values()).encode(errors="replace"))
        is_refused_or_read(lambda: config.load(path))

    values = LINES | VALUES.map(lambda value: yaml.safe_dump(value, default_flow_style=True))
    hold(loads, examples, st.dictionaries(NAMES, values, min_size=1, max_size=2))


@FAST_AND_SLOW
def test_what_loads_is_within_its_bounds(tmp_path, whole, examples):
    """A value is taken as it is, or refused: what is saved again is what was loaded."""
    path, again = tmp_path / "config.yaml", tmp_path / "again.yaml"

    def keeps(name, value):
        changed = whole | {name: yaml.safe_dump({name: value})}
        path.write_text("\n".join(changed.values()))
        with contextlib.suppress(BadInput):
            loaded = config.load(path)
            config.save(loaded, again)
            assert config.load(again) == loaded
            field = config.FIELDS[name]
            number = config.flat(loaded)[name]
            if field.metadata["low"] is not None and number is not None:
                assert field.metadata["low"] <= number < float("inf")

    numbers = st.integers() | st.floats() | SCALARS
    hold(keeps, examples // 4, st.sampled_from(list(config.FIELDS)), numbers)


COMMANDS = (train, evaluate, translate, score, export, serve, prepare, visualize, bench)


def flags_of(parser):
    """Return the flags of a command, without --help, which ends it."""
    return [
        flag for action in parser._actions for flag in action.option_strings if flag[1] != "h"
        and flag != "--help"
    ]  # fmt: skip


@FAST_AND_SLOW
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_any_flags(command, examples):
    parser = command.parser()
    words = st.text(max_size=12) | LINES | st.integers().map(str) | st.floats().map(str)
    flags = st.builds("{}={}".format, st.sampled_from(flags_of(parser)), words)

    def parses(given):
        def parse():
            namespace = parser.parse_args(given)
            if command in (train, prepare):
                cli.run_of(namespace)
            elif command is not serve:
                cli.settings(namespace)

        is_refused_or_read(parse)

    given = st.lists(flags | words.filter(lambda word: word[:2] not in ("-h", "--")), max_size=4)
    hold(parses, examples // len(COMMANDS), given)


# What was found by hand

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n"
    for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (LAUGHS, "found an anchor, alias or tag; wanted plain values"),
        (MERGES, "found an anchor, alias or tag; wanted plain values"),
        (f"seed: {'[' * 3000}", "found more than 8 levels"),
        (f"seed: {'9' * 5000}", "found a value of more than 4,096 characters"),
        ("seed: 1\nseed: 2\n", "found 'seed' a second time"),
        ("seed: !!python/object/apply:os.system [ls]", "found an anchor, alias or tag"),
        ("seed: 1\n" * 200_000, "more than 1,000,000 bytes"),
        ("null: 1", "unknown key None"),
        ("2020-01-01: 1", "unknown key datetime.date(2020, 1, 1)"),
        ("seed: 2020-99-99", "cannot be read: month must be in 1..12"),
        ("seed: \0", "cannot be read"),
        (f"seed: 0x{'f' * 4000}", "seed: wanted at most 4,294,967,295, got a number of about"),
        (f"alpha: {'1' * 401}", "alpha: wanted a number, got"),
        ("alpha: .inf", "alpha: wanted at most 10, got inf"),
        ("alpha: 1e308", "alpha: wanted at most 10, got 1e+308"),
        ('data_dir: "\\ud800"', "data_dir: wanted a word"),
        ('source_files: ["a\\0"]', "source_files: wanted a list of file names"),
    ],
    ids=range(17),
)
def test_attack_on_a_configuration(tmp_path, content, expected):
    path = tmp_path / "config.yaml"
    path.write_text(content)
    tracemalloc.start()
    with pytest.raises(BadInput) as raised:
        config.load(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert expected in str(raised.value)
    assert str(path) in cli.shortened(str(raised.value))
    assert most < MOST_MEMORY


@pytest.mark.parametrize("name", ["problem", "variant"])
@pytest.mark.parametrize(
    "value", ["[]", "{a: b}", "null", "7", "2020-01-01", "no_such", "x" * 4000]
)
def test_problem_and_variant_of_a_run_are_checked(tmp_path, whole, name, value):
    path = tmp_path / "config.yaml"
    path.write_text("\n".join((whole | {name: f"{name}: {value}"}).values()))
    with pytest.raises(BadInput, match=f"config.yaml: unknown {name} "):
        config.load(path)
