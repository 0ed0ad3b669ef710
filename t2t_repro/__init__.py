"""A reproduction of "Attention Is All You Need" in TensorFlow 2 and Keras 3.

A program of your own needs `load` or `Transformer`, which are imported on first use, because
TensorFlow takes seconds to import; and `BadInput`, which is raised for what a user can mend.
"""

import typing

from pipelines.errors import BadInput

if typing.TYPE_CHECKING:
    from t2t_repro.library import LoadedModel, load
    from t2t_repro.model.transformer import Transformer

__version__ = "0.1.0.dev0"
__all__ = ["BadInput", "LoadedModel", "Transformer", "__version__", "load"]


def __getattr__(name: str) -> typing.Any:
    if name in ("LoadedModel", "load"):
        from t2t_repro import library

        return getattr(library, name)
    if name == "Transformer":
        from t2t_repro.model.transformer import Transformer

        return Transformer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
