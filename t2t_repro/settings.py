"""A hyperparameter, and its value from YAML or a flag: of its type, within its bounds."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from pipelines.errors import BadInput


def setting(
    default: Any,
    text: str,
    *,
    low: float | None = None,
    below: float | None = None,
    among: tuple[str, ...] = (),
    words: Mapping[str, Any] = types.MappingProxyType({}),
    may_change: bool = False,
    decides_text: bool = False,
) -> Any:
    """A hyperparameter: default, help text, least value, bound, choices, words for values.

    `may_change` marks what a run may change when it resumes; all else is what the run is.
    `decides_text` marks what decides, with the text itself, how the training text is encoded.
    """
    metadata = {"help": text, "low": low, "below": below, "among": among, "words": words}
    marks = {"may_change": may_change, "decides_text": decides_text}
    return dataclasses.field(default=default, metadata=metadata | marks)


def nearest(word: str, known: Iterable[str]) -> str:
    """A question after the known word that looks most like `word`; empty if none does."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""


def from_text(hint: Any, text: str) -> Any:
    """A flag's text as the type hint wants it; as it is if it cannot be that."""
    kind, _ = _kind(hint)
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind is int:
        try:
            return int(text)
        except ValueError:
            return text
    return text


def setting_value(field: dataclasses.Field, hint: Any, value: Any, origin: str) -> Any:
    """`value` as the field's type, within its bounds; only harmless conversions are made.

    Args:
        field: Made by `setting`.
        hint: Its type.
        value: As YAML or `from_text` gives it.
        origin: Where it was found, for the message.

    Raises:
        BadInput: another type, or out of bounds.
    """
    kind, optional = _kind(hint)
    if optional and value in (None, "none", "None"):
        return None
    words = field.metadata["words"]
    converted = _convert(kind, words.get(value, value) if isinstance(value, str) else value)
    if converted is None:
        wanted = " or ".join([_wanted(kind), *words])
        raise BadInput(f"{origin}: {field.name}: wanted {wanted}, got {value!r}")
    _check(field, converted, origin)
    return converted


def _kind(hint: Any) -> tuple[Any, bool]:
    """(the type without None, whether None is allowed)."""
    if not isinstance(hint, types.UnionType):
        return hint, False
    return next(kind for kind in typing.get_args(hint) if kind is not type(None)), True


def _convert(kind: Any, value: Any) -> Any:
    """`value` as `kind`, or None if that would lose or invent something."""
    if kind == tuple[str, ...]:
        items = [value] if isinstance(value, str) else value
        good = isinstance(items, list | tuple) and all(isinstance(item, str) for item in items)
        return tuple(items) if good else None
    if kind is float and not isinstance(value, bool):
        try:  # YAML reads 1e-9 as a string
            return float(value)
        except (TypeError, ValueError):
            return None
    return value if type(value) is kind else None


def _wanted(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
    return names.get(kind, "a list of file names")


def _check(field: dataclasses.Field, value: Any, origin: str) -> None:
    bounds = field.metadata
    if bounds["low"] is not None and not value >= bounds["low"]:  # so that NaN fails too
        raise BadInput(f"{origin}: {field.name}: wanted at least {bounds['low']}, got {value}")
    if bounds["below"] is not None and not value < bounds["below"]:
        raise BadInput(f"{origin}: {field.name}: wanted less than {bounds['below']}, got {value}")
    if bounds["among"] and value not in bounds["among"]:
        wanted = " or ".join(bounds["among"])
        raise BadInput(f"{origin}: {field.name}: wanted {wanted}, got '{value}'")
