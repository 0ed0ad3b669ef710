"""Translate over HTTP with an export of any format, in the REST language of TensorFlow Serving.

The page at / translates what one types. docs/serving.md describes the routes.
"""

import argparse
import math
import re
from pathlib import Path

from pipelines.errors import BadInput
from t2t_repro import cli
from t2t_repro.server.options import Options

_AT_LEAST_1 = (
    *("workers", "threads", "batch_size", "queue_size"),
    *("timeout_s", "max_body_kb", "max_lines", "max_characters"),
)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    flags = cli.Parser(prog="python -m t2t_repro.serve", description=__doc__)
    add = flags.add_argument
    add("--export_dir", type=Path, required=True, help="an export: its highest version is served")
    add("--model_name", default=Options.model_name, help="NAME in /v1/models/NAME")
    add("--host", default=Options.host, help="address to listen at; 0.0.0.0: at every one")
    add("--port", type=int, default=Options.port, help="port to listen at; 0: a free one")
    add("--poll_s", type=float, default=Options.poll_s, help="time between looks for new versions")
    add(
        "--verify",
        action="store_true",
        help="serve a version only if all its files have the SHA-256 in its settings.json",
    )
    add("--no_access_log", action="store_true", help="do not log each request")
    _add_queue(flags)
    _add_limits(flags)
    return flags


def _add_queue(flags: argparse.ArgumentParser) -> None:
    """Add the flags of the engines, and of the queue before them."""
    engines = flags.add_argument_group("engines")
    engines.add_argument(
        "--workers",
        type=int,
        default=Options.workers,
        help="processes that each hold the model; of two or more, one is kept for short sentences "
        "(default: one for each core, at least 2)",
    )
    engines.add_argument(
        "--threads", type=int, default=Options.threads, help="threads of each worker"
    )
    add = flags.add_argument_group("queue").add_argument
    add("--batch_size", type=int, default=Options.batch_size, help="sentences translated at once")
    add(
        "--max_wait_ms",
        type=float,
        default=Options.max_wait_ms,
        help="time that a sentence waits for others, at most, while a worker is idle",
    )
    add(
        "--queue_size",
        type=int,
        default=Options.queue_size,
        help="sentences that may wait; further requests get status 429",
    )


def _add_limits(flags: argparse.ArgumentParser) -> None:
    """Add the flags of what a request may have, and of who may send it."""
    add = flags.add_argument_group("limits").add_argument
    add("--timeout_s", type=float, default=Options.timeout_s, help="time for a request, in all")
    add("--max_body_kb", type=int, default=Options.max_body_kb, help="size of a request's body")
    add("--max_lines", type=int, default=Options.max_lines, help="sentences in a request")
    add("--max_characters", type=int, default=Options.max_characters, help="length of a sentence")
    access = flags.add_argument_group("access")
    access.add_argument(
        "--token_file", type=Path, help="file with a token that clients must send as bearer token"
    )
    access.add_argument(
        "--allow_origin",
        default=Options.allow_origin,
        help="origin whose pages may send requests, for CORS",
    )


def main() -> None:
    """Parse the flags, then serve until a signal ends it."""
    given = vars(parser().parse_args())
    for name in _AT_LEAST_1:
        _check_at_least(name, given[name], 1)
    _check_at_least("max_wait_ms", given["max_wait_ms"], 0)
    _check_at_least("poll_s", given["poll_s"], 0.01)
    if given["max_lines"] > given["queue_size"]:
        raise BadInput(
            f"--max_lines={given['max_lines']} --queue_size={given['queue_size']}: wanted a queue "
            "with room for one request"
        )
    if not re.fullmatch("[^/:]+", given["model_name"]):
        raise BadInput(f"--model_name={given['model_name']}: wanted a name without / and :")
    if not 0 <= given["port"] < 1 << 16:
        raise BadInput(f"--port={given['port']}: wanted 0 to 65535")
    token_file, access_log = given.pop("token_file"), not given.pop("no_access_log")
    try:
        from t2t_repro.server import service
    except ModuleNotFoundError as error:
        raise BadInput(
            f"wanted the package {error.name}, which is not installed; "
            'pip install "t2t_repro[serve]"'
        ) from None
    options = Options(**given, token=_token(token_file))
    service.serve(options, access_log)


def _check_at_least(name: str, value: float, least: float) -> None:
    if not least <= value < math.inf:
        raise BadInput(f"--{name}={value:g}: wanted at least {least:g}")


def _token(file: Path | None) -> str:
    if file is None:
        return ""
    token = file.read_text(encoding="utf-8", errors="replace").strip()
    if not (token and token.isascii() and token.isprintable()):
        raise BadInput(f"--token_file={file}: wanted one line of printable ASCII")
    return token


if __name__ == "__main__":
    cli.run(main)
