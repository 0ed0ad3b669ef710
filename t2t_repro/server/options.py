"""How the server is set up: the values of the flags of `serve`."""

from dataclasses import dataclass
from pathlib import Path

from pipelines.workers import cores


@dataclass(frozen=True)
class Options:
    """The settings of a server; `python -m t2t_repro.serve --help` explains each of them."""

    export_dir: Path
    model_name: str = "default"
    host: str = "127.0.0.1"
    port: int = 8501
    workers: int = max(2, cores())
    threads: int = 1
    batch_size: int = 16  # sentences
    max_wait_ms: float = 10.0
    queue_size: int = 512  # sentences
    timeout_s: float = 30.0
    max_body_kb: int = 1024
    max_lines: int = 128
    max_characters: int = 10_000
    poll_s: float = 1.0
    verify: bool = False
    token: str = ""
    allow_origin: str = ""
