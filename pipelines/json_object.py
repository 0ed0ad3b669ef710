"""A JSON object as a file holds it, and checks of its values.

These files are our own, but a disk or a person may have changed them: each value is looked at
before it is used.
"""

import json
import re
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

# The most bytes of a file that is read as JSON. WMT14's French, 312 shards, has a manifest of
# 50 KB.
MOST_BYTES = 1 << 24

_MOST = 1 << 53  # up to here every reader of JSON keeps whole numbers exact
_FINGERPRINT = re.compile(r"[0-9a-f]{16,64}")


def parse(content: bytes) -> dict[str, Any]:
    """Return the object that a file holds.

    Raises:
        ValueError: The content is not JSON, or is another value than an object.
    """
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):  # the second for brackets nested beyond Python's stack
        raise ValueError("no JSON") from None
    if not isinstance(values, dict):
        raise ValueError(f"{shown(values)} where an object belongs")
    return values


def check(values: Mapping[str, Any], wanted: Mapping[str, Callable[[Any], bool]]) -> None:
    """Check values of an object.

    Args:
        values: The object.
        wanted: {name of a value that the object must have: whether a value may be its value}.

    Raises:
        ValueError: A value is missing or may not be there.
    """
    for name, may_be in wanted.items():
        if name not in values:
            raise ValueError(f"no '{name}' in it")
        if not may_be(values[name]):
            raise ValueError(f"'{name}' is {shown(values[name])}")


def shown(value: Any) -> str:
    """Return a value as one short line for an error message."""
    if isinstance(value, str) and value.isprintable() and 0 < len(value) <= 60:
        return value
    return reprlib.repr(value)


def is_count(value: Any) -> bool:
    """Return whether a value is a whole number from 0 on; True and False are none."""
    return type(value) is int and 0 <= value <= _MOST


def is_number(value: Any) -> bool:
    """Return whether a value is a number from 0 on, neither infinite nor NaN."""
    return type(value) in (int, float) and 0 <= value < 1e300


def is_text(value: Any) -> bool:
    """Return whether a value is a line of text that can be printed."""
    return isinstance(value, str) and value.isprintable() and len(value) <= 200


def is_fingerprint(value: Any) -> bool:
    """Return whether a value is a checksum or fingerprint in hexadecimal."""
    return isinstance(value, str) and _FINGERPRINT.fullmatch(value) is not None
