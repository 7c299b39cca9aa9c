"""Kind ``custom``: the dataset that a function of the user's own code returns."""

import copy
from collections.abc import Sequence

from flodl_pipe.config.source_custom import CustomConfig
from flodl_pipe.errors import FlodlPipeError, LoaderError, SourceError
from flodl_pipe.sources.any_source import as_source
from flodl_pipe.sources.imports import import_callable, raised_at, require_arguments
from flodl_pipe.sources.protocol import Source
from flodl_pipe.sources.stream_protocol import Stream

__all__ = ["build_custom"]


def build_custom(config: CustomConfig, allowed: Sequence[str]) -> Source | Stream:
    """Call the factory and return what it made as a source.

    Args:
        config: The section.
        allowed: Modules that may be imported; see :mod:`flodl_pipe.config.allow_import`.

    Raises:
        ConfigError: if the factory is not allowed, is none, or does not take the arguments.
        SourceError: if importing or calling it raises, or what it returns cannot be read.
        Exception: what the dataset raises for sample 0, itself.
    """
    factory = import_callable(config.factory, allowed, "source.factory")
    require_arguments(factory, config.factory, "source.args", config.args)
    try:
        made = factory(**copy.deepcopy(config.args))  # it may keep and change them
    except FlodlPipeError:
        raise
    except (Exception, SystemExit) as error:
        raise SourceError(f"source.factory={config.factory} raised {raised_at(error)}") from error
    if made is None:
        raise SourceError(f"source.factory={config.factory} returned None; it must return a dataset")
    try:
        return as_source(made, thread_safe=config.thread_safe, ragged=config.ragged, pure=config.pure)
    except LoaderError as error:
        raise SourceError(f"source.factory={config.factory} returned no dataset: {error}") from None
