"""The composition root: a config and a run context in, a loader out. The only module that knows every part."""

import copy
import os
from collections.abc import Callable
from typing import Any

from flodl_pipe.arrays import Array
from flodl_pipe.cluster.agree import agree, outcome
from flodl_pipe.cluster.context import RunContext
from flodl_pipe.cluster.joining import Joined, join
from flodl_pipe.cluster.placement import local_config
from flodl_pipe.cluster.signature import config_facts
from flodl_pipe.config.compose import instantiate_engine, load_config
from flodl_pipe.config.job import PlanJob
from flodl_pipe.config.loader import COLLATIONS
from flodl_pipe.config.root import Config
from flodl_pipe.config.sampling import INVERSE_FREQUENCY
from flodl_pipe.errors import ClusterError, FlodlPipeError, LoaderError, SourceError
from flodl_pipe.loader.arguments import OMITTED, grouped, split_arguments
from flodl_pipe.loader.loader import Loader
from flodl_pipe.loader.outline import Outline, first_global_batch, outline_engine
from flodl_pipe.loader.stream_outline import StreamOutline, outline_stream
from flodl_pipe.sources.build import build_source
from flodl_pipe.sources.imports import import_callable, raised_at, require_arguments
from flodl_pipe.sources.number_file import read_numbers
from flodl_pipe.sources.protocol import Source
from flodl_pipe.sources.stream_protocol import Stream
from flodl_pipe.transforms.build import build_chain

__all__ = ["build_loader", "load", "outline"]

_BEFORE = "before the first step"


def load(
    name_or_override: str,
    *overrides: str,
    config_dir: str | os.PathLike[str] | None = None,
    context: RunContext | None = None,
) -> Loader:
    """Compose a recipe and build its loader.

    Args:
        name_or_override: Name of a recipe, or an override such as ``source.path=...``.
        overrides: Further overrides, as on the command line.
        config_dir: Folder with recipes and groups of one's own, like ``--config-dir``.
        context: Rank and world size, where one builds the ranks oneself; None: this process among those of
            torch.distributed, which must be initialised where there are several. All ranks must call this alike.

    Returns:
        A loader; close it, or use it in a ``with`` statement, when its threads and files should go before it does.

    Raises:
        ConfigError: if the recipe or a value is wrong.
        SourceError: if data is missing or not what the config says.
        StagingError: if memory is refused.
        ClusterError: if ranks are missing, or do not agree on data, order or config; the odd ones are named.
    """
    config = load_config(name_or_override, *overrides, config_dir=config_dir)
    loader: Loader = instantiate_engine(config, context=context)
    return loader


def build_loader(
    cfg: Config,
    *,
    keep_digest: bool = False,
    context: RunContext | None = None,
    joined: Joined | None = None,
    source: Source | Stream | None = None,
    num_epochs: int | None = None,
) -> Loader:
    """Build the loader that a config describes. Where there are several ranks, all must do so; they agree here.

    Args:
        cfg: The validated config.
        keep_digest: Whether the loader sums a hash of every delivered row.
        context: Rank and world size, for ranks that are built by hand and do not talk to each other.
        joined: This process among all, where that is known already; None: it is found out.
        source: What another loader of the same config reads, to read it too; None: open it anew.
        num_epochs: Epochs of the whole run, where they are known.

    Raises:
        SourceError: if data is missing or not what the config says.
        StagingError: if memory is refused.
        ClusterError: if ranks are missing, or do not agree on data, order or config; the odd ones are named.
    """

    def opened(cfg: Config) -> Source | Stream:
        return build_source(cfg.source, cfg.data_dir, cfg.allow_import) if source is None else source

    def build(cfg: Config, found: Source | Stream, context: RunContext) -> Loader:
        return Loader(found, **_keywords(cfg, found), keep_digest=keep_digest, context=context, num_epochs=num_epochs)

    if context is not None:
        return build(cfg, opened(cfg), context)
    joined = joined or join(cfg.cluster)
    world = joined.context.world
    if world is None:
        placed = local_config(cfg, joined)
        return build(placed, opened(placed), joined.context)
    agree(world, config_facts(cfg), _BEFORE)
    placed = outcome(world, "finding its device", lambda: local_config(cfg, joined))
    found = outcome(world, "opening the data", lambda: opened(placed))
    loader = outcome(world, "building the loader", lambda: build(placed, found, joined.context), undo=Loader.close)
    try:
        facts = outcome(world, "reading the data's fingerprint", lambda: _stream_facts(loader))
        agree(world, facts, _BEFORE)
    except BaseException:
        loader.close()
        raise
    return loader


def _stream_facts(loader: Loader) -> dict[str, str]:
    """Return what tells one stream of samples from another."""
    try:
        state = loader.state_dict()
    except SourceError:  # a dataset of the user's that says nothing of its content
        return {
            "data": f"{loader.num_samples} samples of a {type(loader.dataset).__name__}",
            "global batch": f"{loader.global_batch_size}",
        }
    names = {"data": "source", "order": "order", "transforms": "transforms", "global batch": "global_batch"}
    return {name: str(state[key]) for name, key in names.items()}


def outline(cfg: Config) -> Outline | StreamOutline:
    """Work out what :func:`build_loader` would make of a config: headers are read, nothing is granted or started.

    Args:
        cfg: The validated config.

    Raises:
        ConfigError: if an epoch would have no batch.
        SourceError: if data is missing or not what the config says.
        StagingError: if memory would be refused.
        ClusterError: if torchrun started more than one process.
    """
    context = _alone()
    num_epochs = cfg.job.epochs if isinstance(cfg.job, PlanJob) else None
    source = build_source(cfg.source, cfg.data_dir, cfg.allow_import)
    global_batch = first_global_batch(cfg.loader, context)
    sections = split_arguments(**grouped({**_keywords(cfg, source), "num_epochs": num_epochs}))
    if isinstance(source, Stream):
        return outline_stream(source, *sections, global_batch=global_batch, context=context)
    return outline_engine(source, *sections, global_batch=global_batch, context=context)


def _keywords(cfg: Config, source: Source | Stream) -> dict[str, Any]:
    """Return the keywords of the loader that a config describes: its sections, and the objects that they name."""
    section, sampling = cfg.loader, cfg.sampling
    makes_batches = sampling.batch_sampler is not None
    return {
        **section.model_dump(),
        **sampling.model_dump(exclude={"sampler_args"}),
        "on_error": cfg.source.on_error,
        "max_skipped": cfg.source.max_skipped,
        # A batch sampler excludes these, and a section cannot leave a key out.
        "batch_size": OMITTED if makes_batches else section.batch_size,
        "drop_last": None if makes_batches else sampling.drop_last,
        "shuffle": None if sampling.shuffle else False,
        "collate": _collate(cfg),
        "transforms": build_chain(cfg.transforms, lambda path, key: import_callable(path, cfg.allow_import, key)),
        "weights": _numbers(sampling.weights, "sampling.weights"),
        "lengths": _numbers(sampling.lengths, "sampling.lengths"),
        "sampler": _sampler(cfg, source, "sampler"),
        "batch_sampler": _sampler(cfg, source, "batch_sampler"),
    }


def _collate(cfg: Config) -> str | Callable[..., Any]:
    path = cfg.loader.collate
    return path if path in COLLATIONS else import_callable(path, cfg.allow_import, "loader.collate")


def _numbers(path: str | None, key: str) -> Array | str | None:
    return path if path is None or path == INVERSE_FREQUENCY else read_numbers(path, key)


def _sampler(cfg: Config, source: Source | Stream, key: str) -> Any:
    """Call the function that a config names for the user's sampler; None where it names none."""
    path = getattr(cfg.sampling, key)
    if path is None:
        return None
    factory = import_callable(path, cfg.allow_import, f"sampling.{key}")
    require_arguments(factory, path, "sampling.sampler_args", cfg.sampling.sampler_args, source)
    try:
        made = factory(source, **copy.deepcopy(cfg.sampling.sampler_args))
    except FlodlPipeError:
        raise
    except (Exception, SystemExit) as error:
        raise LoaderError(f"sampling.{key}={path} raised {raised_at(error)}") from error
    if made is None:
        raise LoaderError(f"sampling.{key}={path} returned None; it must return a sampler: is a return missing?")
    return made


def _alone() -> RunContext:
    context = RunContext.from_environment()
    if context.world_size > 1:
        raise ClusterError(
            f"WORLD_SIZE={context.world_size}: a plan is made by one process; start it without torchrun, and describe "
            "the hosts in section cluster"
        )
    return context
