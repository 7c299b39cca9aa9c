"""The composition root: a config and a run context in, a loader out. The only module that knows every part."""

import os

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.config.compose import instantiate_engine, load_config
from flodl_pipe.config.root import Config
from flodl_pipe.errors import ClusterError
from flodl_pipe.loader.loader import Loader
from flodl_pipe.loader.outline import Outline, first_global_batch, outline_engine
from flodl_pipe.loader.stream_outline import StreamOutline, outline_stream
from flodl_pipe.sources.build import build_source
from flodl_pipe.sources.stream_protocol import Stream

__all__ = ["build_loader", "load", "outline"]


def load(name_or_override: str, *overrides: str, config_dir: str | os.PathLike[str] | None = None) -> Loader:
    """Compose a recipe and build its loader.

    Args:
        name_or_override: Name of a recipe, or an override such as ``source.path=...``.
        overrides: Further overrides, as on the command line.
        config_dir: Folder with recipes and groups of one's own, like ``--config-dir``.

    Returns:
        A loader; close it, or use it in a ``with`` statement, when its threads and files should go before it does.

    Raises:
        ConfigError: if the recipe or a value is wrong.
        SourceError: if data is missing or not what the config says.
        StagingError: if memory is refused.
        ClusterError: if there is more than one rank.
    """
    loader: Loader = instantiate_engine(load_config(name_or_override, *overrides, config_dir=config_dir))
    return loader


def build_loader(cfg: Config, *, keep_digest: bool = False, context: RunContext | None = None) -> Loader:
    """Build the loader that a config describes.

    Args:
        cfg: The validated config.
        keep_digest: Whether the loader sums a hash of every delivered row.
        context: Rank and world size; None: this process's, which must be alone.

    Raises:
        SourceError: if data is missing or not what the config says.
        StagingError: if memory is refused.
        ClusterError: if there is more than one rank.
    """
    context = context or _alone()
    section = cfg.loader
    return Loader(
        build_source(cfg.source, cfg.data_dir, cfg.allow_import),
        batch_size=section.batch_size,
        global_batch_size=section.global_batch_size,
        names=section.names,
        device=section.device,
        mode=section.mode,
        prefetch=section.prefetch,
        readers=section.readers,
        vram_max_usage=section.vram_max_usage,
        ram_max_usage=section.ram_max_usage,
        check_purity=section.check_purity,
        seed=cfg.sampling.seed,
        shuffle=cfg.sampling.shuffle,
        drop_last=cfg.sampling.drop_last,
        keep_digest=keep_digest,
        context=context,
    )


def outline(cfg: Config) -> Outline | StreamOutline:
    """Work out what :func:`build_loader` would make of a config: headers are read, nothing is granted or started.

    Args:
        cfg: The validated config.

    Raises:
        ConfigError: if an epoch would have no batch.
        SourceError: if data is missing or not what the config says.
        StagingError: if memory would be refused.
        ClusterError: if there is more than one rank.
    """
    context = _alone()
    source = build_source(cfg.source, cfg.data_dir, cfg.allow_import)
    global_batch = first_global_batch(cfg.loader, context)
    sections = cfg.loader, cfg.sampling
    if isinstance(source, Stream):
        return outline_stream(source, *sections, global_batch=global_batch, context=context)
    return outline_engine(source, *sections, global_batch=global_batch, context=context)


def _alone() -> RunContext:
    context = RunContext.from_environment()
    if context.world_size > 1:
        raise ClusterError(
            f"WORLD_SIZE={context.world_size}: this version serves one process; start it without torchrun, or build "
            "one Loader per rank with context=RunContext(rank, world_size) from flodl_pipe.cluster.context"
        )
    return context
