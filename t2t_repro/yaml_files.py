"""YAML files that a person may have edited: read in bounded time and memory, whatever is in them.

A file is made of names, values and lists of values. What else YAML has is refused: aliases, which
let a few lines stand for gigabytes, tags, deep nesting, and names that are given twice.
"""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from pipelines import regular_file
from pipelines.errors import BadInput

MOST_BYTES = 1_000_000  # a run's config.yaml has 1,100, and 100 more for each text file
_DEEPEST = 8  # the variants of a problem's file need 3
_LONGEST = 4_096  # characters of a value: a path; Python converts numbers of up to 4,300 digits


def read(path: Path) -> dict[Any, Any]:
    """Return the names and values of a YAML file, empty if nothing is in it.

    Raises:
        BadInput: the file cannot be read, or is no YAML of the kind above.
    """
    try:
        values = yaml.load(regular_file.read(path, MOST_BYTES).decode(), _Loader)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    # PyYAML lets the errors of int() and of dates through.
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise BadInput(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    if values is not None and not isinstance(values, dict):
        raise BadInput(f"{path}: wanted lines 'name: value', got a {type(values).__name__}")
    return values or {}


class _Loader(yaml.SafeLoader):
    """A loader of the kind of YAML above."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or event.anchor or event.tag:
            self._refuse("an anchor, alias or tag; wanted plain values", event.start_mark)
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > _LONGEST:
            self._refuse(f"a value of more than {_LONGEST:,} characters", event.start_mark)
        if self._depth == _DEEPEST:
            self._refuse(f"more than {_DEEPEST} levels", event.start_mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names = set()
        for name, _ in node.value:
            if isinstance(name, yaml.ScalarNode):
                if name.value in names:
                    self._refuse(f"{name.value!r} a second time", name.start_mark)
                names.add(name.value)
        return super().construct_mapping(node, deep)

    def _refuse(self, found: str, mark: Any) -> None:
        raise yaml.constructor.ConstructorError(None, None, f"found {found}", mark)
