"""settings.json and its digests: damage, strangers' files, and what else may lie in an export."""

import json
import os

import commands
import pytest
from examples import EXAMPLES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.errors import BadInput
from t2t_repro.config import Decode
from t2t_repro.server import engine
from t2t_repro.serving import export_files, exports

MODELS = {"saved_model": "saved_model.pb", "litert": "model.tflite", "ctranslate2": "model.bin"}
SETTINGS = {
    **{"t2t_repro": "0", "format": "litert", "format_version": 1, "output": "text"},
    **{"problem": "toy_ende", "variant": "base", "model": {"num_layers": 1, "num_heads": 2}},
    "decode": vars(Decode()),
}


def written(export, format="saved_model", **changes):
    """Write what looks like an export of a format."""
    for name in ("variables/variables.index", "assets.extra/vocabulary.model", MODELS[format]):
        path = export / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() * 20)
    export_files.write_settings(export, SETTINGS | {"format": format} | changes)
    return export


def names(export):
    return [str(path.relative_to(export)) for path in export.rglob("*") if path.is_file()]


@pytest.fixture(params=MODELS)
def export(request, tmp_path):
    return written(tmp_path / "1", request.param)


def test_an_export_of_a_later_version_is_refused(tmp_path):
    export = written(tmp_path / "1", format_version=export_files.FORMAT_VERSION + 1)
    with pytest.raises(BadInput, match="format_version 2, and this package knows versions up to 1"):
        export_files.settings(export)


# --verify


def test_what_was_written_is_verified(export):
    exports.verify(export)
    exports.verify(export.parent)  # its newest version
    listed = export_files.settings(export)["sha256"]
    own = export_files.beside_model(export) / "settings.json"
    assert {*listed} == {*names(export)} - {str(own.relative_to(export))}


def test_every_flipped_bit_is_found(export):
    """Unless what settings.json says is the same, as where a space became a tab."""
    for name in names(export):
        path = export / name
        whole = path.read_bytes()
        for number in range(0, 8 * len(whole), 8 * len(whole) // 40 + 1):
            content = bytearray(whole)
            content[number // 8] ^= 1 << number % 8
            path.write_bytes(content)
            if not (name.endswith("json") and _same(content, whole)):
                with pytest.raises(BadInput, match=r"not what was exported|not a usable|earlier"):
                    exports.verify(export)
        path.write_bytes(whole)
    exports.verify(export)


def _same(content, whole):
    try:
        return json.loads(content) == json.loads(whole)
    except ValueError:
        return False


def test_missing_damaged_and_further_files_are_named(tmp_path):
    export = written(tmp_path / "1")
    (export / "saved_model.pb").write_bytes(b"other")
    (export / "variables/variables.index").unlink()
    (export / "further").mkdir()  # an empty directory is no file
    (export / "further/b.txt").touch()
    (export / "further/a.txt").symlink_to("nowhere")
    with pytest.raises(BadInput) as refusal:
        export_files.verify(export)
    message = str(refusal.value)
    assert message.startswith(f"{export}: not what was exported (damaged: saved_model.pb; missing:")
    assert "missing: variables/variables.index; not listed: further/a.txt and 1 more" in message


def test_a_directory_of_another_export_is_found(tmp_path):
    """A mixture of two versions, each of which is sound."""
    export, other = written(tmp_path / "1"), written(tmp_path / "2")
    (other / "saved_model.pb").write_bytes(b"of another training")
    export_files.write_settings(other, SETTINGS)
    export_files.verify(other)
    os.replace(other / "saved_model.pb", export / "saved_model.pb")
    with pytest.raises(BadInput, match=r"damaged: saved_model\.pb\)"):
        export_files.verify(export)
    with pytest.raises(BadInput, match=r"saved_model\.pb is damaged: its SHA-256"):
        export_files.check(export, "saved_model.pb")


def test_an_export_of_an_earlier_version_loads_and_is_not_verified(tmp_path):
    export = written(tmp_path / "1")
    path = export / "assets.extra" / "settings.json"
    path.write_text(json.dumps(SETTINGS | {"sha256": {"vocabulary.model": "0" * 64}}))
    export_files.check(export, "saved_model.pb")
    with pytest.raises(BadInput, match="those of earlier versions; export again to verify it"):
        export_files.verify(export)
    path.unlink()
    export_files.check(export, "saved_model.pb")


def test_names_that_lead_outside_are_missing_files(tmp_path):
    export = written(tmp_path / "1")
    path = export / "assets.extra" / "settings.json"
    said = json.loads(path.read_text())
    said["sha256"]["../secret"] = "0" * 64
    path.write_text(json.dumps(said))
    (tmp_path / "secret").touch()
    with pytest.raises(BadInput, match=r"missing: \.\./secret"):
        export_files.verify(export)


# Files of other kinds


@pytest.mark.parametrize("name", ["model", "settings.json", "vocabulary.vocab"])
def test_a_pipe_is_not_waited_for(export, name):
    model = MODELS[export_files.settings(export)["format"]]
    folder = export if name == "model" else export_files.beside_model(export)
    path = folder / (model if name == "model" else name)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with pytest.raises(BadInput, match=r"a pipe or a device|not listed: .*vocabulary\.vocab"):
        export_files.verify(export)
    with pytest.raises(BadInput, match=f"{path.name}: a pipe or a device"):
        export_files.check(export, model)


@pytest.mark.parametrize("flag", ["--saved_model", "--litert"])
@pytest.mark.parametrize("made", ["nothing", "file", "empty", "model"])
def test_translate_is_one_line(tmp_path, capsys, flag, made):
    path = tmp_path / "export"
    if made == "file":
        path.touch()
    elif made != "nothing":
        path.mkdir()
    if made == "model":
        for name in MODELS.values():
            (path / name).touch()
    for more in ([], ["--verify"]):
        assert commands.call("translate", f"{flag}={path}", *more, stdin=b"a\n") == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith(f"error: {path}: ")


def test_verify_is_for_exports(tmp_path, capsys):
    assert commands.call("translate", f"--workdir={tmp_path}", "--verify") == 2
    assert "--verify: an export's files have digests" in capsys.readouterr().err


# settings.json of any content

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**400), 10**400)
    | st.floats()
    | st.text(max_size=9)
    | st.sampled_from(["litert", "text", "inf", "0" * 64]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
KEYS = st.sampled_from([*SETTINGS, "sha256", "settings_sha256"])


@st.composite
def near_settings(draw):
    """Return sound settings in which some values are replaced or missing."""
    values = {**SETTINGS, "sha256": {"model.tflite": "0" * 64}, "settings_sha256": ""}
    for name in draw(st.sets(KEYS, max_size=3)):
        if draw(st.booleans()) and isinstance(values.get(name), dict):
            inner = draw(st.sampled_from([*values[name]]))
            values[name] = {**values[name], inner: draw(VALUES)}
        elif draw(st.booleans()):
            values[name] = draw(VALUES)
        else:
            values.pop(name, None)
    return values


CONTENTS = st.one_of(
    st.binary(max_size=200),
    VALUES.map(lambda value: json.dumps(value).encode()),
    near_settings().map(lambda value: json.dumps(value).encode()),
)
QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def assert_only_bad_input(export, content):
    """Assert that each reader of settings.json returns, or raises a BadInput of one line."""
    (export / "settings.json").write_bytes(content)
    for read in (
        engine._settings,
        export_files.verify,
        lambda path: export_files.check(path, "model.tflite"),
        lambda path: export_files.decode(path, export_files.settings(path)),
    ):
        message = f"{export}"
        try:
            read(export)
        except BadInput as error:
            message = str(error)
        assert message.startswith(str(export))
        assert len(message) < 500 + len(str(export))
        assert len(message.splitlines()) == 1


@settings(max_examples=40, deadline=None, suppress_health_check=QUIET)
@given(content=CONTENTS)
def test_settings_of_any_content(tmp_path_factory, content):
    export = tmp_path_factory.mktemp("any")
    (export / "model.tflite").touch()
    assert_only_bad_input(export, content)


@pytest.mark.slow
def test_settings_of_thousands_of_contents(tmp_path):
    (tmp_path / "model.tflite").touch()

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=QUIET, database=None)
    @given(content=CONTENTS)
    def check(content):
        assert_only_bad_input(tmp_path, content)

    check()


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"null", b"[]", b'""', b"\xff", b"{", b"1" * 5000, b'{"sha256": []}', b"{}" * 2),
        *(b"[" * 100_000, b'{"a":' * 100_000, b"[" * 500 + b"]" * 500, b" " * (1 << 21)),
        json.dumps(SETTINGS | {"decode": None}).encode(),
        json.dumps(SETTINGS | {"decode": vars(Decode()) | {"beam_size": 0}}).encode(),
        json.dumps(SETTINGS | {"decode": vars(Decode()) | {"alpha": 10**400}}).encode(),
        json.dumps(SETTINGS | {"model": {"num_layers": [], "num_heads": 1}}).encode(),
        json.dumps(SETTINGS | {"model": []}).encode(),
        json.dumps(SETTINGS | {"output": {}}).encode(),
    ],
    ids=range(19),
)
def test_settings_that_cannot_be(tmp_path, content):
    (tmp_path / "settings.json").write_bytes(content)
    with pytest.raises(BadInput, match=r"not a usable export \(settings\.json: "):
        engine._settings(tmp_path)
    assert_only_bad_input(tmp_path, content)
