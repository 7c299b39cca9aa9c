"""All ranks of a run in one process: one loader each, moved on step by step together."""

import contextlib
import json
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self, final

from flodl_pipe.batch.batch import Batch
from flodl_pipe.cluster.context import RunContext
from flodl_pipe.config.root import Config
from flodl_pipe.errors import ConfigError, FlodlPipeError, StagingError, TransformError
from flodl_pipe.jobs.verify_combinations import Setting
from flodl_pipe.keyed.digest import Digest
from flodl_pipe.loader.loader import Loader
from flodl_pipe.pipeline import build_loader
from flodl_pipe.sources.protocol import Source

__all__ = ["Ranks", "Refused", "StoppedError", "refusal"]

_REFUSALS = (ConfigError, StagingError, TransformError)


class Refused(FlodlPipeError):  # noqa: N818 - no error: an answer
    """A setting cannot be built here, and why."""


class StoppedError(FlodlPipeError):
    """The ranks did not do what ranks of one run do together."""


@final
class Ranks:
    """The loaders of all ranks, built anew; a context manager that closes them.

    Args:
        config: The config.
        setting: Mode, readers, shares.
        global_batch: Rows of a step over all ranks, whatever their number.
        state: Where to continue; None: at the start.

    Raises:
        Refused: if the setting is impossible for this config, or here and now.
    """

    def __init__(self, config: Config, setting: Setting, global_batch: int, state: str | None = None) -> None:
        self.setting = setting
        self._stack = contextlib.ExitStack()
        self.loaders: list[Loader] = []
        self._iterators: list[Iterator[Batch] | None] = [None] * setting.world_size
        try:
            same = _config(config, setting, global_batch)
            source: Source | None = None
            for rank in range(setting.world_size):
                loader = build_loader(same, keep_digest=True, context=_context(setting, rank), source=source)
                self.loaders.append(self._stack.enter_context(loader))
                # The ranks of one process may read one source, where several threads may; opening it takes the longest.
                if isinstance(loader.dataset, Source) and loader.dataset.thread_safe:
                    source = loader.dataset
        except _REFUSALS as error:
            self._stack.close()
            raise Refused(_in_short(error)) from error
        except BaseException:
            self._stack.close()
            raise
        if state is not None:
            with self._closed_on_error():
                for loader in self.loaders:
                    loader.load_state_dict(json.loads(state))

    def next_step(self, *, begins_epoch: bool) -> list[Batch]:
        """Return the next step's batch of each rank.

        Args:
            begins_epoch: Whether it is an epoch's first: then the epoch before, if it was read here, must be over.

        Raises:
            StoppedError: if a rank's epoch ends earlier or later than that.
            Exception: what a loader raises.
        """
        if begins_epoch:
            self.require_end()
        batches = []
        for rank, loader in enumerate(self.loaders):
            iterator = self._iterators[rank]
            if iterator is None:
                iterator = self._iterators[rank] = iter(loader)
            batch = next(iterator, None)
            if batch is None:
                raise StoppedError(f"rank {rank} has no further batch in this epoch, and there is one")
            batches.append(batch)
        return batches

    def require_end(self) -> None:
        """Find that no rank has a further batch in the epoch that it reads.

        Raises:
            StoppedError: if one has.
        """
        for rank, iterator in enumerate(self._iterators):
            if iterator is not None and next(iterator, None) is not None:
                raise StoppedError(f"rank {rank} has a further batch, and the epoch has ended")
            self._iterators[rank] = None

    def states(self) -> list[dict[str, Any]]:
        """Return each rank's place."""
        return [loader.state_dict() for loader in self.loaders]

    def digest(self) -> Digest:
        """Return the digest of all stored rows that all ranks have handed out."""
        total = Digest()
        for loader in self.loaders:
            counted = loader.statistics()
            assert counted.digest is not None
            total.merge(Digest.from_hex(counted.digest, counted.num_samples))
        return total

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._iterators.clear()  # the readers of every rank stop before anything is closed
        self._stack.close()

    @contextlib.contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._stack.close()
            raise


def refusal(config: Config, setting: Setting, global_batch: int) -> str | None:
    """Return why a setting is impossible for a config; None if it seems possible. Builds one rank, the last."""
    try:
        rank = setting.world_size - 1
        build_loader(_config(config, setting, global_batch), context=_context(setting, rank)).close()
    except _REFUSALS as error:
        return _in_short(error)
    return None


def _config(config: Config, setting: Setting, global_batch: int) -> Config:
    changes: dict[str, Any] = {"mode": setting.mode, "readers": setting.readers}
    changes["check_purity"] = False  # checked beforehand, once
    if config.sampling.batch_sampler is None:  # which decides by itself, and excludes a size
        if config.loader.batch_size is not None:
            changes["global_batch_size"] = global_batch
        elif setting.world_size > 1:
            raise ConfigError.at(
                "loader.batch_size",
                "null gives every rank one sample a step, so that several have other steps than one; set a size to "
                "compare them",
            )
    return config.model_copy(update={"loader": config.loader.model_copy(update=changes)})


def _context(setting: Setting, rank: int) -> RunContext:
    return RunContext(rank, setting.world_size, ratios=None if setting.is_equal else setting.ratios)


def _in_short(error: FlodlPipeError) -> str:
    if isinstance(error, ConfigError):
        return "; ".join(
            f"{problem.key}: {problem.message}" if problem.key else problem.message for problem in error.problems
        )
    return str(error)
