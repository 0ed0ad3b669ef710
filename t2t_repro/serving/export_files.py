"""The files of an export: settings.json, which describes it, and the SHA-256 of all the others.

The digests find damage, and a mixture of versions. They do not prove who made an export: whoever
can change a file can change its digest too.
"""

import dataclasses
import hashlib
import json
import os
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipelines import json_object, regular_file
from pipelines.errors import BadInput, first_line
from t2t_repro.config import Decode
from t2t_repro.settings import setting_value

# Of the files in an export; raised when an older reader could not use them. A test checks that
# `litert_translator`, which imports nothing of this package, knows it.
FORMAT_VERSION = 1
_SETTINGS = "settings.json"
_OWN = "settings_sha256"  # the key of the digest of settings.json itself
_MOST_BYTES = 1 << 20  # of settings.json; ours have 3,000
_MOST_BRACKETS = 1000  # in it; ours have 10. No other process could be sent deeper nesting

# The model of each format. An export that lists no digest of it was made by an earlier version.
_MODELS = ("saved_model.pb", "model.tflite", "model.bin", "model.weights.h5")


def unusable(export: Path, error: object) -> BadInput:
    """Return the exception for an export that cannot be used, with the reason in one line."""
    reason = " ".join(_reason(error).split())[:200]
    return BadInput(
        f"{export}: not a usable export ({reason}); make one with python -m t2t_repro.export"
    )


def _reason(error: object) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{os.path.basename(error.filename)}: {error.strerror}"
    return first_line(error) if isinstance(error, Exception) else str(error)


def beside_model(export: Path) -> Path:
    """Return the directory of settings.json and the vocabulary: a SavedModel's assets.extra."""
    return export / "assets.extra" if (export / "saved_model.pb").exists() else export


def settings(export: Path) -> dict[str, Any]:
    """Read the settings.json of an export.

    Raises:
        BadInput: It is missing, or no JSON object, or its list of digests is none.
    """
    try:
        content = regular_file.read(beside_model(export) / _SETTINGS, _MOST_BYTES)
        if content.count(b"[") + content.count(b"{") > _MOST_BRACKETS:
            raise ValueError(f"more than {_MOST_BRACKETS} brackets")
        values = json_object.parse(content)
        version = values.get("format_version")
        if version is not None and not (isinstance(version, int) and version <= FORMAT_VERSION):
            raise ValueError(
                f"format_version {version}, and this package knows versions up to {FORMAT_VERSION}"
            )
        digests = values.get("sha256", {})
        if not (isinstance(digests, dict) and all(isinstance(d, str) for d in digests.values())):
            raise ValueError("sha256 is no list of digests by file")
    except OSError as error:
        raise unusable(export, error) from None
    except ValueError as error:
        raise unusable(export, f"{_SETTINGS}: {error}") from None
    return values


def decode(export: Path, values: Mapping[str, Any]) -> Decode:
    """Return the decode settings that the settings.json of an export holds.

    Raises:
        BadInput: One is missing, has another type, or is out of bounds.
    """
    found, hints = values.get("decode"), typing.get_type_hints(Decode)
    try:
        if not isinstance(found, dict):
            raise ValueError(f"{_SETTINGS}: no decode settings in it")
        fields = dataclasses.fields(Decode)
        if missing := [field.name for field in fields if field.name not in found]:
            raise ValueError(f"{_SETTINGS}: no '{missing[0]}' in its decode settings")
        return Decode(
            **{f.name: setting_value(f, hints[f.name], found[f.name], _SETTINGS) for f in fields}
        )
    except ValueError as error:
        raise unusable(export, error) from None
    except OverflowError:
        raise unusable(export, f"{_SETTINGS}: a number too great") from None


def write_settings(export: Path, values: Mapping[str, Any]) -> None:
    """Write settings.json, with the SHA-256 of all files that are in the export."""
    complete = {**values, "sha256": digests(export)}
    text = json.dumps(complete | {_OWN: _digest_of(complete)}, indent=2) + "\n"
    (beside_model(export) / _SETTINGS).write_text(text, encoding="utf-8")


def digests(export: Path) -> dict[str, str]:
    """Return the SHA-256 of each file but settings.json, by relative path.

    Raises:
        OSError: A file cannot be read, or is no regular file.
    """
    return {name: _digest(export / name) for name in _names(export)}


def check_regular(export: Path, model: str) -> None:
    """Check that the model is there, and that no reader will wait for a pipe or read a device.

    Raises:
        BadInput: There is no file `model`, or a file is no regular one or cannot be read.
    """
    if not os.path.exists(export / model):
        raise unusable(export, f"no {model} in it")
    try:
        for name in _names(export):
            regular_file.opened(export / name).close()
    except OSError as error:
        raise unusable(export, error) from None


def check(export: Path, model: str, but: tuple[str, ...] = ()) -> None:
    """Compare the files that are there with the digests in settings.json, if it has them.

    Exports of earlier versions list no digest of their model, and a foreign SavedModel has no
    settings.json; those are checked as `check_regular` does.

    Args:
        export: One version of an export.
        model: The file that it must have.
        but: Beginnings of the names of files that the engine itself checks.

    Raises:
        BadInput: As `check_regular`, or a file is damaged.
    """
    check_regular(export, model)
    listed = _listed(export) if (beside_model(export) / _SETTINGS).exists() else {}
    for name in _names(export):
        if name.startswith(but) or name not in listed:
            continue
        if _digest(export / name) != listed[name]:
            reason = f"{name} is damaged: its SHA-256 is not the one in {_SETTINGS}"
            raise unusable(export, reason)


def verify(export: Path) -> None:
    """Compare all files of an export with the digests in its settings.json.

    Raises:
        BadInput: A file is missing, damaged or not listed, or the digests are.
    """
    values, listed = settings(export), _listed(export)
    if not listed or _OWN not in values:
        raise BadInput(
            f"{export}: its settings.json does not list all files, as those of earlier versions; "
            "export again to verify it"
        )
    damaged = [] if values[_OWN] == _digest_of(values) else [_SETTINGS]
    try:
        names = {*_names(export)}
        damaged += [
            name for name in sorted(names & {*listed}) if _digest(export / name) != listed[name]
        ]
    except OSError as error:
        raise unusable(export, error) from None
    kinds = {"damaged": damaged, "missing": listed.keys() - names, "not listed": names - {*listed}}
    if reasons := [f"{kind}: {_some(kinds[kind])}" for kind in kinds if kinds[kind]]:
        found = " ".join("; ".join(reasons).split())
        raise BadInput(f"{export}: not what was exported ({found}); copy it again, or export again")


def _listed(export: Path) -> dict[str, str]:
    """Return the digests in settings.json, or {} if an earlier version wrote them."""
    listed = settings(export).get("sha256", {})
    return listed if not listed.keys().isdisjoint(_MODELS) else {}


def _names(export: Path) -> Iterator[str]:
    """Yield the relative paths of all that is no directory, but settings.json, in order."""
    own = beside_model(export) / _SETTINGS
    for path in sorted(export.rglob("*")):
        if path != own and (path.is_symlink() or not path.is_dir()):
            yield path.relative_to(export).as_posix()


def _digest(path: Path) -> str:
    with regular_file.opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of what settings.json says, however it is spaced and ordered."""
    said = {name: value for name, value in values.items() if name != _OWN}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _some(names: Any) -> str:
    first, *others = sorted(names)
    return f"{first[:100]} and {len(others)} more" if others else first[:100]
