"""What TensorFlow's C++ code prints on the terminal."""

import faulthandler
import os
import sys


def quiet() -> None:
    """Keep TensorFlow's C++ log lines off the terminal; call this before its import.

    TensorFlow 2.21 prints some of them whatever TF_CPP_MIN_LOG_LEVEL says, straight to file
    descriptor 2. That descriptor is redirected, and Python's stderr keeps the terminal. A user who
    sets TF_CPP_MIN_LOG_LEVEL sees everything. A crash in C++ still prints Python's stack.
    """
    if "TF_CPP_MIN_LOG_LEVEL" in os.environ:
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    terminal = os.dup(2)
    sys.stderr = open(terminal, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    faulthandler.enable(sys.stderr)
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
