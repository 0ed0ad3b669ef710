"""The import of TensorFlow by a command: without its log lines, and without what is not needed."""

import contextlib
import faulthandler
import gc
import os
import platform
import resource
import sys
from collections.abc import Iterator
from types import ModuleType

from pipelines.errors import BadInput
from t2t_repro import stdio

# Of address space: the imports take 1.9 GB, `translate` with a tiny run 2.6. With less they fail in
# many ways, by crashes too.
_LEAST_GB = 4
# TensorFlow and Keras import these if they are installed, for functions that nothing here calls. On
# 2 cores that takes 0.4 s for matplotlib, 0.4 for JAX and 0.2 for IPython.
_NOT_NEEDED = ("matplotlib", "jax", "IPython")
_X86 = ("x86_64", "AMD64")


def quiet() -> None:
    """Import TensorFlow, and keep its C++ log lines off the terminal.

    TensorFlow 2.21 prints some of them whatever TF_CPP_MIN_LOG_LEVEL says, straight to file
    descriptor 2. That descriptor is redirected, and Python's stderr keeps the terminal. A user who
    sets TF_CPP_MIN_LOG_LEVEL sees everything. A crash in C++ still prints Python's stack.
    No other thread may import anything meanwhile: it would not find what is kept away.

    Raises:
        BadInput: a limit on this process leaves no room for TensorFlow, or it is not installed.
    """
    _check_limit()
    if "TF_CPP_MIN_LOG_LEVEL" in os.environ:
        _import()
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    sys.stderr = stdio.messages(os.dup(2))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
    faulthandler.enable(sys.stderr)
    _import().get_logger().setLevel("ERROR")


def check_backend() -> None:
    """Raise BadInput if a program has imported Keras with another backend than TensorFlow."""
    import keras

    if (backend := keras.backend.backend()) != "tensorflow":
        raise BadInput(
            f"Keras's backend is {backend}; wanted KERAS_BACKEND=tensorflow to translate"
        )


def _import() -> ModuleType:
    """Import TensorFlow and Keras, which has to use TensorFlow whatever the user's default is."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    # TensorFlow uses oneDNN by itself only where the processor has AVX-512 and the like. On one
    # with AVX2 a training step takes 1.2 to 1.4 times as long without it, a decoding step 1.2.
    if platform.machine() in _X86:
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    with _absent(*_NOT_NEEDED), _no_collection():
        try:
            import keras  # noqa: F401
            import tensorflow as tf
        except ModuleNotFoundError as error:
            raise BadInput(
                f"wanted the package {error.name}, which is not installed; pip install t2t_repro"
            ) from None
    return tf


@contextlib.contextmanager
def _absent(*modules: str) -> Iterator[None]:
    """Let imports of modules fail, as if they were not installed, unless they are imported."""
    hidden = [module for module in modules if module not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for module in hidden:
            del sys.modules[module]


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Let the garbage collector rest, and never look at what exists after the first import.

    TensorFlow's modules are not garbage. The collector would go through their objects again and
    again, for 0.6 of 2.7 seconds.
    """
    is_first = "tensorflow" not in sys.modules
    gc.disable()
    try:
        yield
    finally:
        if is_first:
            gc.freeze()
        gc.enable()


def _check_limit() -> None:
    """Raise BadInput if the address space is limited to less than TensorFlow takes."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _LEAST_GB * 10**9:
        raise BadInput(
            f"this process may use {limit / 1e9:.1f} GB of address space, which is too little for "
            f"TensorFlow; wanted {_LEAST_GB} GB or more: ulimit -v unlimited"
        )
