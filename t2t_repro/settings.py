"""Declare a hyperparameter, and check the values that YAML files and flags give it."""

import dataclasses
import difflib
import reprlib
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
    high: float | None = None,
    below: float | None = None,
    among: tuple[str, ...] = (),
    words: Mapping[str, Any] = types.MappingProxyType({}),
    may_change: bool = False,
    decides_text: bool = False,
) -> Any:
    """Return the dataclass field of one hyperparameter.

    Args:
        default: Its value where no YAML file or flag sets it.
        text: Its line in `--help`.
        low: The least value allowed. Every number has it, and one of the next two.
        high: The greatest value allowed.
        below: All values must be less than this.
        among: The values allowed; empty allows any.
        words: Words that may be written for a value, such as "auto" for 0.
        may_change: Whether a run may change it when it resumes. All other hyperparameters define
            the run.
        decides_text: Whether it decides, with the text itself, how the training text is encoded.
    """
    bounds = {"low": low, "high": high, "below": below, "among": among, "words": words}
    marks = {"may_change": may_change, "decides_text": decides_text}
    return dataclasses.field(default=default, metadata={"help": text} | bounds | marks)


def help_text(field: dataclasses.Field) -> str:
    """Return a hyperparameter's line in `--help`, with the bounds of a number at its end."""
    text, low, high = (field.metadata[name] for name in ("help", "low", "high"))
    if low is None:
        return text
    below = field.metadata["below"]
    return f"{text} ({low:,} to {f'below {below:,}' if high is None else f'{high:,}'})"


def nearest(word: Any, known: Iterable[str]) -> str:
    """Return "; did you mean '...'?" with the known word most similar to `word`, or ""."""
    if not isinstance(word, str) or len(word) > _LONGEST_WORD:
        return ""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""


class _Shown(reprlib.Repr):
    """Shows values of any size and type in few characters."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlist, self.maxdict, self.maxtuple = 2, 4, 4, 4
        self.maxstring = self.maxother = 80

    def repr_int(self, x: int, level: int) -> str:
        """Show an int; Python refuses to write one of more than 4,300 digits."""
        return (
            repr(x) if abs(x) < 10**40 else f"a number of about {x.bit_length() * 3 // 10} digits"
        )


shown = _Shown().repr
_LONGEST_WORD = 100  # characters; no known name has half of them


def from_text(hint: Any, text: str) -> Any:
    """Return a flag's text as the type that `hint` asks for, or unchanged if it is not one."""
    kind, _ = _without_none(hint)
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind is int:
        try:
            return int(text)
        except ValueError:
            return text
    return text


def setting_value(field: dataclasses.Field, hint: Any, value: Any, origin: str) -> Any:
    """Return `value` as the field's type; only conversions that lose nothing are made.

    Args:
        field: A field made by `setting`.
        hint: The field's type hint.
        value: The value that YAML or `from_text` gave.
        origin: Where the value was found, for the error message.

    Raises:
        BadInput: `value` has another type or is out of bounds.
    """
    kind, optional = _without_none(hint)
    if optional and value in (None, "none", "None"):
        return None
    words = field.metadata["words"]
    converted = _convert(kind, words.get(value, value) if isinstance(value, str) else value)
    if converted is None:
        wanted = " or ".join([_describe(kind), *words])
        raise BadInput(f"{origin}: {field.name}: wanted {wanted}, got {shown(value)}")
    _check_bounds(field, converted, origin)
    return converted


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Return (the type without None, whether None is allowed)."""
    if not isinstance(hint, types.UnionType):
        return hint, False
    return next(kind for kind in typing.get_args(hint) if kind is not type(None)), True


def _convert(kind: Any, value: Any) -> Any:
    """Return `value` as a `kind`, or None if the conversion would lose or add information."""
    if isinstance(value, str) and not is_text(value):
        return None
    if kind == tuple[str, ...]:
        items = [value] if isinstance(value, str) else value
        good = isinstance(items, list | tuple) and all(
            isinstance(item, str) and is_text(item) for item in items
        )
        return tuple(items) if good else None
    if kind is float and not isinstance(value, bool):
        try:  # YAML reads 1e-9 as a string
            return float(value)
        except (TypeError, ValueError, OverflowError):
            return None
    return value if type(value) is kind else None


def is_text(value: str) -> bool:
    """Return whether a string can be a file's name and part of a TensorFlow graph."""
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate, which stands for a byte that is not UTF-8
        return False
    return "\0" not in value


def _describe(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
    return names.get(kind, "a list of file names")


def _check_bounds(field: dataclasses.Field, value: Any, origin: str) -> None:
    bounds, wanted = field.metadata, ""
    if bounds["low"] is not None and not value >= bounds["low"]:  # rejects NaN too
        wanted = f"at least {bounds['low']:,}"
    elif bounds["high"] is not None and not value <= bounds["high"]:
        wanted = f"at most {bounds['high']:,}"
    elif bounds["below"] is not None and not value < bounds["below"]:
        wanted = f"less than {bounds['below']:,}"
    elif bounds["among"] and value not in bounds["among"]:
        wanted = " or ".join(bounds["among"])
    if wanted:
        raise BadInput(f"{origin}: {field.name}: wanted {wanted}, got {shown(value)}")
