"""Which room may import which, and how long functions may grow; read from the AST."""

import ast
import graphlib
import sys

import pytest
from paths import ROOT

FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for package in ("pipelines", "t2t_repro")
    for path in sorted((ROOT / package).rglob("*.py"))
    if path.name != "__init__.py"
}

# The rooms from the lowest layer up: a room may import the rooms before it, and its own files. A
# file at the top of a package is a room of its own; the commands are one room.
PIPELINES = (
    *("errors", "regular_file", "json_object", "storage", "workers", "sources"),
    *("progress", "word_counts"),
    *("merges", "vocabulary", "parsing", "toy", "shard_files", "shards", "filters", "repeats"),
    *("encode", "encode_on_beam", "corpus_report"),
    *("corpus", "buckets", "batching", "stream", "augmentation"),
)
T2T_REPRO = (
    *(
        "settings",
        "yaml_files",
        "config",
        "low_resource",
        "stdio",
        "tensorflow_import",
        "lock",
        "workdir",
    ),
    *("model", "scoring", "decoding"),
    *("problems", "run_text", "distributed", "paper", "training", "experiment", "reports"),
    *("serving", "server", "launch", "library", "commands", "bench", "scripts"),
)
COMMANDS = (
    *("cli", "evaluate", "export", "prepare", "score", "serve", "train", "translate"),
    "visualize",
)

# These use only Keras's operations and NumPy, so that they also run on Keras's JAX backend.
BACKEND_FREE = {
    name
    for name in FILES
    if name.startswith("t2t_repro.model.")
    or name.removeprefix("t2t_repro.")
    in (
        *(
            "config",
            "settings",
            "yaml_files",
            "decoding.beam_search",
            "decoding.decoder",
            "decoding.sampling",
            "paper.cost",
        ),
        *("distributed.data_sheets", "paper.attention_figure", "scoring.bleu"),
        *("training.loss", "training.optimizer", "training.schedule"),
    )
}
BACKEND_FREE_LIBRARIES = {"keras", "numpy", "sacrebleu", "sacremoses", "yaml"}
KERNELS = {"t2t_repro.model.short_attention": {"jax"}}  # imported on one backend alone


def imports(module):
    """Return the names that a module imports anywhere, except for type checkers."""
    names = set()
    nodes = [ast.parse(FILES[module].read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            nodes.extend(node.orelse)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import"
            # `from package import module` and `from module import name` look alike.
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= (inner & FILES.keys()) or {node.module}
        else:
            nodes.extend(ast.iter_child_nodes(node))
    return names


def room(module):
    """Return a module's room: the folder below its package, or the file directly in the package."""
    package, name, *_ = module.split(".")
    return "commands" if package == "t2t_repro" and name in COMMANDS else name


def top(names):
    """Return the packages that names belong to, without the standard library."""
    return {name.split(".")[0] for name in names} - sys.stdlib_module_names


def test_the_reader_sees_every_kind_of_import(tmp_path, monkeypatch):
    source = (
        "import a.b\nfrom t2t_repro import config\nfrom c import d\n"
        "if typing.TYPE_CHECKING:\n    import hidden\nelse:\n    import e\n"
        "def f():\n    import g\n"
    )
    (tmp_path / "m.py").write_text(source)
    monkeypatch.setitem(FILES, "m", tmp_path / "m.py")
    assert imports("m") == {"a.b", "t2t_repro.config", "c", "e", "g"}


@pytest.mark.parametrize("module", [name for name in FILES if name.startswith("pipelines.")])
def test_pipelines_know_nothing_of_the_model(module):
    assert not top(imports(module)) & {"t2t_repro", "keras"}


@pytest.mark.parametrize("module", sorted(BACKEND_FREE))
def test_the_paper_is_free_of_tensorflow(module):
    of_files = {
        f"pipelines.{name}" for name in ("errors", "json_object", "regular_file", "storage")
    }
    others = imports(module) - BACKEND_FREE - of_files
    assert top(others) <= BACKEND_FREE_LIBRARIES | KERNELS.get(module, set())


@pytest.mark.parametrize("module", FILES)
def test_no_import_leads_upward(module):
    order = PIPELINES if module.startswith("pipelines.") else T2T_REPRO
    package = module.split(".")[0]
    used = {room(name) for name in imports(module) & FILES.keys() if name.startswith(package)}
    allowed = order[: order.index(room(module)) + 1]
    assert used <= {*allowed}


def test_no_cycle():
    graph = {module: imports(module) & FILES.keys() for module in FILES}
    graphlib.TopologicalSorter(graph).prepare()


def test_only_experiment_joins_the_parts():
    parts = {"t2t_repro.problems", "t2t_repro.model.transformer", "pipelines.vocabulary"}
    assert [name for name in FILES if parts <= imports(name)] == ["t2t_repro.experiment"]


@pytest.mark.parametrize("module", FILES)
def test_functions_stay_short(module):
    for node in ast.walk(ast.parse(FILES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            docstring = (ast.get_docstring(node, clean=False) or "").count("\n")
            lines = node.end_lineno - node.lineno + 1 - docstring
            assert lines <= 50, f"{node.name} has {lines} lines, docstring left out"
