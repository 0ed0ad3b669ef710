r"""Text files of a corpus: UTF-8, one sentence per line, plain or gzipped.

Only "\n" ends a line. `str.splitlines` also splits at U+0085, U+2028 and similar characters, which
real corpora contain inside sentences (the 2009 news tests do), and Python's text mode also splits
at a lone "\r". Either would misalign all later lines with their translations.

All readers stream: memory does not grow with the file, whatever a .gz unpacks to, and an error in a
line is raised when the reader reaches that line.
"""

import codecs
import contextlib
import gzip
import io
import zlib
from collections.abc import Iterator
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO

from pipelines import regular_file
from pipelines.errors import BadInput

# Bytes; no sentence is as long, and a file without line feeds would otherwise be read whole.
_LONGEST_LINE = 1 << 24
# The first bytes of compressed files; no line of text begins with them.
_PACKED = {
    b"\x1f\x8b": "gzip",
    b"BZh91AY&SY": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\3\4": "zip",
}


@contextlib.contextmanager
def open_bytes(path: str | Path) -> Iterator[io.BufferedReader]:
    """Open a file to read its content, decompressed on the fly if its name ends in ".gz".

    Raises:
        BadInput: The file is missing, cannot be read or is not a complete gzip file.
    """
    gzipped = Path(path).suffix == ".gz"
    try:
        with regular_file.opened(path) as file:
            yield io.BufferedReader(gzip.GzipFile(fileobj=file)) if gzipped else file
    except FileNotFoundError as error:
        raise BadInput(
            f"{path}: no such file; wanted a UTF-8 text file, one sentence per line: check the path"
        ) from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BadInput(
            f"{path}: broken gzip file ({error}); wanted a complete one: download or compress it "
            'again, or drop ".gz" from its name if it is plain text'
        ) from error
    except OSError as error:
        raise BadInput(
            f"{path}: cannot be read ({error.strerror or error}); wanted a readable UTF-8 text "
            "file: check the path and its permissions"
        ) from error


def check_plain(path: str | Path, first_line: bytes) -> None:
    """Raise BadInput if a file with this first line is compressed, or UTF-16 without a mark."""
    marks = *_PACKED, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE
    if b"\0" in first_line and not first_line.startswith(marks):
        order = "LE" if first_line.index(b"\0") % 2 else "BE"
        raise BadInput(
            f"{path}: NUL bytes in the first line; wanted UTF-8: if it is UTF-16, convert it with "
            f"iconv -f UTF-16{order} -t UTF-8"
        )
    for mark, name in _PACKED.items():
        if first_line.startswith(mark):
            raise BadInput(
                f"{path}: compressed by {name}; wanted plain text, or gzip in a file whose name "
                "ends in .gz: unpack or rename it"
            )


def lines(path: str | Path) -> Iterator[str]:
    r"""Yield each line of a file without its "\n" or "\r\n"; an empty line is an empty string.

    A byte order mark at the beginning is not part of the first line.

    Raises:
        BadInput: The file cannot be opened (see `open_bytes`), is empty, or is compressed although
            its name does not say so; or a line is not UTF-8 or has more than 16 MiB.
    """
    with open_bytes(path) as file:
        yield from _lines(path, file)


def _lines(path: str | Path, file: BinaryIO) -> Iterator[str]:
    number = 0
    read_line = partial(file.readline, _LONGEST_LINE + 1)
    for number, line in enumerate(iter(read_line, b""), start=1):
        if len(line) > _LONGEST_LINE:
            raise BadInput(
                f"{path}, line {number}: longer than {_LONGEST_LINE:,} bytes; wanted one "
                "sentence per line, each ended by a line feed: check that the file is text"
            )
        if number == 1:
            check_plain(path, line)
            line = line.removeprefix(codecs.BOM_UTF8)
        yield _decode(line.removesuffix(b"\n").removesuffix(b"\r"), path, number)
    if number == 0:
        raise BadInput(f"{path}: empty file; wanted one sentence per line: fill it or leave it out")


def aligned(source: str | Path, target: str | Path) -> Iterator[dict[str, str]]:
    """Yield {"source", "target"}: line N of one file with line N of the other.

    Raises:
        BadInput: A file is unusable (see `lines`), or one file has more lines than the other.
    """
    both = zip_longest(lines(source), lines(target))
    for number, (source_line, target_line) in enumerate(both, start=1):
        if source_line is None or target_line is None:
            longer = number + sum(1 for _ in both)
            counts = (number - 1, longer) if source_line is None else (longer, number - 1)
            raise BadInput(
                f"{source}: {counts[0]} lines, but {target}: {counts[1]} lines; wanted line N of "
                "one to translate line N of the other: give complete files of one corpus"
            )
        yield {"source": source_line, "target": target_line}


def tab_separated(path: str | Path, file: BinaryIO | None = None) -> Iterator[dict[str, str]]:
    """Yield {"source", "target"} from each line "source<TAB>target".

    Args:
        path: The file, or the name of the open one.
        file: An open file to read instead, such as a terminal or a socket.

    Raises:
        BadInput: The file is unusable (see `lines`), or a line does not have exactly one tab.
    """
    read = lines(path) if file is None else _lines(path, file)
    for number, line in enumerate(read, start=1):
        if (tabs := line.count("\t")) != 1:
            raise BadInput(
                f"{path}, line {number}: {tabs} tabs; wanted exactly one, source<TAB>target: "
                "remove other columns (cut -f1,2) or fix the line"
            )
        source, target = line.split("\t")
        yield {"source": source, "target": target}


def _decode(line: bytes, path: str | Path, number: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        marks = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE
        encoding = "UTF-16" if line.startswith(marks) else "LATIN1"
        raise BadInput(
            f"{path}, line {number}: not UTF-8 (byte 0x{line[error.start]:02x} at byte "
            f"{error.start + 1} of the line); wanted UTF-8: convert the file, for example with "
            f"iconv -f {encoding} -t UTF-8"
        ) from error
