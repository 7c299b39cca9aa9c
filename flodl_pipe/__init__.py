"""Declarative, config-driven training-data pipelines for PyTorch.

``flodl_pipe.load("olmo_shards", "loader.batch_size=64")`` composes a recipe into a :class:`Loader`;
``Loader(source, batch_size=64)`` builds one from objects. Iterate it, or its :meth:`Loader.epoch`, for batches.

Public names load on first use, so that ``import flodl_pipe`` costs no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flodl_pipe import errors
    from flodl_pipe.batch.batch import Batch
    from flodl_pipe.batch.spec import SampleSpec
    from flodl_pipe.loader.accumulation import accumulation_weights
    from flodl_pipe.loader.attach import attach
    from flodl_pipe.loader.loader import Loader
    from flodl_pipe.pipeline import load
    from flodl_pipe.sources.protocol import Source

__all__ = ["Batch", "Loader", "SampleSpec", "Source", "accumulation_weights", "attach", "errors", "load"]
__version__ = "0.1.0"

_HOMES = {
    "Batch": "flodl_pipe.batch.batch",
    "Loader": "flodl_pipe.loader.loader",
    "SampleSpec": "flodl_pipe.batch.spec",
    "Source": "flodl_pipe.sources.protocol",
    "accumulation_weights": "flodl_pipe.loader.accumulation",
    "attach": "flodl_pipe.loader.attach",
    "load": "flodl_pipe.pipeline",
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("flodl_pipe.errors")
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'flodl_pipe' has no attribute {name!r}; its public names are {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
