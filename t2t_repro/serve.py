"""Translate over HTTP with an export of any format, by the REST interface of TensorFlow Serving.

The page at / translates what you type. docs/serving.md describes the routes.
"""

import argparse
import re
from pathlib import Path

from pipelines import regular_file
from pipelines.errors import BadInput
from t2t_repro import cli
from t2t_repro.server.options import Options

_LONGEST_TOKEN = 4_096  # characters; clients send it in a header


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    flags = cli.Parser(prog="python -m t2t_repro.serve", description=__doc__)
    add = flags.add_argument
    add("--export_dir", type=Path, required=True, help="an export: its highest version is served")
    add("--model_name", default=Options.model_name, help="NAME in /v1/models/NAME")
    add("--host", default=Options.host, help="address to listen at; 0.0.0.0: at every one")
    _add_number(flags, "port", "port to listen at; 0: a free one", 0, 65_535)
    _add_number(flags, "poll_s", "seconds between checks for new versions", 0.01, 86_400)
    add(
        "--verify",
        action="store_true",
        help="serve a version only if all its files have the SHA-256 in its settings.json",
    )
    add("--no_access_log", action="store_true", help="do not log each request")
    _add_queue(flags)
    _add_limits(flags)
    return flags


def _add_number(
    flags: argparse._ActionsContainer, name: str, text: str, low: float, high: float
) -> None:
    cli.add_number(flags, f"--{name}", getattr(Options, name), text, low, high)


def _add_queue(flags: argparse.ArgumentParser) -> None:
    """Add the flags of the engines, and of the queue before them."""
    engines = flags.add_argument_group("engines")
    workers = (
        "processes that each hold the model; of two or more, one is kept for short sentences; by "
        "default one for each core, at least 2"
    )
    _add_number(engines, "workers", workers, 1, 1_024)
    _add_number(engines, "threads", "threads of each worker", 1, 1_024)
    queue = flags.add_argument_group("queue")
    _add_number(queue, "batch_size", "sentences translated at once", 1, 10_000)
    wait = "time that a sentence waits for others, at most, while a worker is idle"
    _add_number(queue, "max_wait_ms", wait, 0, 60_000)
    size = "sentences that may wait; further requests get status 429"
    _add_number(queue, "queue_size", size, 1, 1_000_000)


def _add_limits(flags: argparse.ArgumentParser) -> None:
    """Add the flags of what a request may have, and of who may send it."""
    limits = flags.add_argument_group("limits")
    _add_number(limits, "timeout_s", "seconds for a request, in all", 1, 86_400)
    _add_number(limits, "max_body_kb", "size of a request's body", 1, 1_000_000)
    _add_number(limits, "max_lines", "sentences in a request", 1, 100_000)
    _add_number(limits, "max_characters", "length of a sentence", 1, 1_000_000)
    access = flags.add_argument_group("access")
    access.add_argument(
        "--token_file", type=Path, help="file with a token that clients must send as bearer token"
    )
    access.add_argument(
        "--allow_origin",
        default=Options.allow_origin,
        help="origin whose pages may send requests (CORS), scheme://host or scheme://host:port; "
        "* for any",
    )


def main() -> None:
    """Parse the flags, then serve until a signal ends it."""
    given = vars(parser().parse_args())
    if given["max_lines"] > given["queue_size"]:
        raise BadInput(
            f"--max_lines={given['max_lines']} --queue_size={given['queue_size']}: wanted a queue "
            "with room for one request"
        )
    if not re.fullmatch("[^/:]+", given["model_name"]):
        raise BadInput(f"--model_name={given['model_name']}: wanted a name without / and :")
    if not re.fullmatch(r"|\*|[a-z][a-z0-9+.-]*://[^/]+", given["allow_origin"]):
        raise BadInput(
            f"--allow_origin={given['allow_origin']}: wanted an origin as browsers send it, such "
            "as https://example.org, without a path or a slash at its end; or *"
        )
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


def _token(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        with regular_file.opened(file) as opened:
            token = opened.read(_LONGEST_TOKEN + 1).decode(errors="replace").strip()
    except OSError as error:
        raise BadInput(
            f"--token_file={file}: {error.strerror}; wanted a file of one line, the token"
        ) from None
    if not (token and token.isascii() and token.isprintable() and len(token) <= _LONGEST_TOKEN):
        raise BadInput(
            f"--token_file={file}: wanted one line of printable ASCII, of at most "
            f"{_LONGEST_TOKEN:,} characters"
        )
    return token


if __name__ == "__main__":
    cli.run(main)
