"""What SECURITY.md says, as far as a test can show it."""

import ast
import inspect
import re

import pytest
import yaml
from paths import ROOT

from pipelines.errors import BadInput
from t2t_repro import config, yaml_files

PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
FILES = [path for package in ("pipelines", "t2t_repro") for path in (ROOT / package).rglob("*.py")]

# Objects that go through a pipe between a program and its own child process.
PIPED = {f"t2t_repro/{name}.py" for name in ("bench/traffic", "bench/load", "training/early_epoch")}

# What would run code that a file holds, if it were called.
DANGEROUS = {
    *("eval", "exec", "compile", "pickle.load", "pickle.loads", "marshal.loads", "dill.load"),
    *("yaml.load", "yaml.unsafe_load", "yaml.full_load", "os.system", "runpy.run_path"),
    *("load_model", "keras.models.load_model", "keras.saving.load_model"),
    *("enable_unsafe_deserialization", "keras.config.enable_unsafe_deserialization"),
}


def calls(source):
    """Return the names of all functions that a source calls, and its dangerous arguments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)
            yield from (
                f"{word.arg}={word.value.value}"
                for word in node.keywords
                if word.arg in ("allow_pickle", "shell") and isinstance(word.value, ast.Constant)
            )


def test_the_reader_sees_dangerous_calls():
    source = "import yaml\nyaml.load(x)\nnumpy.load(f, allow_pickle=True)\n[eval(y)]\nre.compile(z)"
    assert {"yaml.load", "allow_pickle=True", "eval"} <= {*calls(source)}
    assert "compile" not in {*calls(source)}


def test_no_file_can_run_code():
    for path in FILES:
        found = {*calls(path.read_text(encoding="utf-8"))}
        if str(path.relative_to(ROOT)) in PIPED:
            found -= {"pickle.load", "pickle.loads"}
        if str(path.relative_to(ROOT)) == "t2t_repro/yaml_files.py":  # see the next test
            found -= {"yaml.load"}
        assert not found & (DANGEROUS | {"allow_pickle=True", "shell=True"}), path


def test_the_one_reader_of_yaml_is_a_safe_one(tmp_path):
    assert issubclass(yaml_files._Loader, yaml.SafeLoader)
    (call,) = re.findall(r"yaml\.load\(.*", inspect.getsource(yaml_files))
    assert call.endswith(", _Loader)")
    (tmp_path / "config.yaml").write_text(f"a: !!python/object/apply:os.mkdir [{tmp_path}/made]\n")
    with pytest.raises(BadInput):
        config.load(tmp_path / "config.yaml")
    assert not (tmp_path / "made").exists()


def test_the_pages_name_what_exists():
    for file, anchor in re.findall(r"\]\((docs/[a-z.]+)#([a-z-]+)\)", PAGE):
        text = (ROOT / file).read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
        slugs = {re.sub(r"[^a-z -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert anchor in slugs, (file, anchor)


@pytest.mark.slow
def test_a_saved_model_is_a_program(tmp_path, capsys):
    """It has the signatures of ours, and while it translates it writes a file."""
    import commands
    import tensorflow as tf

    written = tmp_path / "written"

    class Stranger(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
        def best(self, text):
            tf.io.write_file(str(written), "by the model")
            zeros = tf.zeros(tf.shape(text))
            return {"translation": text, "score": zeros, "cut": zeros > 0}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
        def nbest(self, text):
            zeros = tf.zeros(tf.shape(text))
            row = {"translations": text[:, None], "scores": zeros[:, None]}
            return row | {"cut": zeros > 0}

    stranger = Stranger()
    signatures = {"serving_default": stranger.best, "nbest": stranger.nbest}
    tf.saved_model.save(stranger, str(tmp_path / "1"), signatures)
    assert not written.exists()
    assert commands.call("translate", f"--saved_model={tmp_path / '1'}", stdin=b"Hello.\n") == 0
    assert capsys.readouterr().out == "Hello.\n"
    assert written.read_text() == "by the model"
