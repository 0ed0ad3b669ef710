"""The import of TensorFlow by a command: without its log lines, and without matplotlib."""

import contextlib
import faulthandler
import os
import sys
from collections.abc import Iterator
from types import ModuleType

from pipelines.errors import BadInput
from t2t_repro import streams

# Of address space: the imports take 1.9 GB, `translate` with a tiny run 2.6. With less they fail in
# many ways, by crashes too.
_LEAST_GB = 4


def quiet() -> None:
    """Import TensorFlow, and keep its C++ log lines off the terminal.

    TensorFlow 2.21 prints some of them whatever TF_CPP_MIN_LOG_LEVEL says, straight to file
    descriptor 2. That descriptor is redirected, and Python's stderr keeps the terminal. A user who
    sets TF_CPP_MIN_LOG_LEVEL sees everything. A crash in C++ still prints Python's stack.

    Raises:
        BadInput: a limit on this process leaves no room for TensorFlow.
    """
    _check_limit()
    if "TF_CPP_MIN_LOG_LEVEL" in os.environ:
        _import()
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    sys.stderr = streams.messages(os.dup(2))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
    faulthandler.enable(sys.stderr)
    _import().get_logger().setLevel("ERROR")


def _import() -> ModuleType:
    """Import TensorFlow and Keras."""
    with _absent("matplotlib"):  # Keras imports it for pictures that nothing here uses: 0.4 s
        import tensorflow as tf
    return tf


@contextlib.contextmanager
def _absent(module: str) -> Iterator[None]:
    """Let imports of a module fail, as if it were not installed."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]


def _check_limit() -> None:
    """Raise BadInput if the address space is limited to less than TensorFlow takes."""
    try:
        import resource
    except ModuleNotFoundError:  # on Windows
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _LEAST_GB * 10**9:
        raise BadInput(
            f"this process may use {limit / 1e9:.1f} GB of address space, which is too little for "
            f"TensorFlow; wanted {_LEAST_GB} GB or more: ulimit -v unlimited"
        )
