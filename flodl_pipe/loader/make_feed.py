"""What a user gives a loader -> the engine that serves it."""

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.config.loader import LoaderConfig
from flodl_pipe.config.sampling import SamplingConfig
from flodl_pipe.loader.engine import Engine
from flodl_pipe.loader.feed import Feed
from flodl_pipe.loader.parts import Parts
from flodl_pipe.loader.stream_engine import StreamEngine
from flodl_pipe.sources.protocol import Source
from flodl_pipe.sources.stream_protocol import Stream

__all__ = ["make_feed"]


def make_feed(
    source: Source | Stream,
    config: LoaderConfig,
    sampling: SamplingConfig,
    parts: Parts,
    *,
    global_batch: int,
    context: RunContext,
    keep_digest: bool,
) -> Feed:
    """Build the engine for a source.

    Args:
        source: The samples.
        config: Section ``loader``.
        sampling: Section ``sampling``.
        parts: Functions and arrays that no section holds.
        global_batch: Rows of a step over all ranks.
        context: Rank and world size.
        keep_digest: Whether to hash delivered rows.

    Raises:
        ConfigError: if an epoch would have no batch.
        SourceError: if the source is empty.
        StagingError: if memory is refused.
    """
    if not isinstance(source, Source):
        return StreamEngine(
            source, config, sampling, parts, global_batch=global_batch, context=context, keep_digest=keep_digest
        )
    return Engine(source, config, sampling, parts, global_batch=global_batch, context=context, keep_digest=keep_digest)
