"""A reproduction of "Attention Is All You Need" in TensorFlow 2 and Keras 3.

`load` and `Transformer` are what a program of your own needs; both are imported on first use, since
TensorFlow takes seconds to import.
"""

import typing

if typing.TYPE_CHECKING:
    from t2t_repro.library import load
    from t2t_repro.model.transformer import Transformer

__version__ = "0.1.0.dev0"
__all__ = ["Transformer", "__version__", "load"]


def __getattr__(name: str) -> typing.Any:
    if name == "load":
        from t2t_repro.library import load

        return load
    if name == "Transformer":
        from t2t_repro.model.transformer import Transformer

        return Transformer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
