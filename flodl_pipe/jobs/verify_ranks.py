"""All ranks of a run in one process: one loader each, moved on step by step together."""

import contextlib
import json
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self, final

from flodl_pipe.batch.batch import Batch
from flodl_pipe.cluster.context import RunContext
from flodl_pipe.config.root import Config
from flodl_pipe.devices.simulated import SimulatedDevice
from flodl_pipe.errors import FlodlPipeError
from flodl_pipe.jobs.verify_combinations import Setting
from flodl_pipe.jobs.verify_ways import REFUSALS, Subject, in_short
from flodl_pipe.keyed.digest import Digest
from flodl_pipe.loader.loader import Loader
from flodl_pipe.loader.targets import target_device
from flodl_pipe.pipeline import build_loader
from flodl_pipe.sources.protocol import Source

__all__ = ["Ranks", "Refused", "StoppedError", "refusal"]


class Refused(FlodlPipeError):  # noqa: N818 - no error: an answer
    """A setting cannot be built here, and why."""


class StoppedError(FlodlPipeError):
    """The ranks did not do what ranks of one run do together."""


@final
class Ranks:
    """The loaders of all ranks, built anew; a context manager that closes them.

    Args:
        subject: The stream.
        setting: Way to serve, readers, shares.
        state: Where to continue; None: at the start.

    Raises:
        Refused: if the setting is impossible for this config, or here and now.
    """

    def __init__(self, subject: Subject, setting: Setting, state: str | None = None) -> None:
        self.setting = setting
        self._stack = contextlib.ExitStack()
        self.loaders: list[Loader] = []
        self._iterators: list[Iterator[Batch] | None] = [None] * setting.world_size
        self._devices: list[tuple[SimulatedDevice, int]] = []
        try:
            source: Source | None = None
            for rank in range(setting.world_size):
                config = subject.at(setting, rank)
                self._use_device(config)
                loader = build_loader(config, keep_digest=True, context=_context(setting, rank), source=source)
                self.loaders.append(self._stack.enter_context(loader))
                # The ranks of one process may read one source, where several threads may; opening it takes the longest.
                if isinstance(loader.dataset, Source) and loader.dataset.thread_safe:
                    source = loader.dataset
        except REFUSALS as error:
            self._stack.close()
            raise Refused(in_short(error)) from error
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

    def require_ordered(self) -> None:
        """Find that no two operations on a rank's device went without an order.

        Raises:
            StoppedError: naming the first two that did.
        """
        for rank, (device, before) in enumerate(self._devices):
            if len(device.faults) > before:
                raise StoppedError(f"rank {rank}, on its simulated device: {device.faults[before]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._iterators.clear()  # the readers of every rank stop before anything is closed
        self._stack.close()

    def _use_device(self, config: Config) -> None:
        """Remember a rank's device, which is emptied when its loader has been closed."""
        shared = target_device(config.loader)
        if shared is not None and isinstance(shared.device, SimulatedDevice):
            self._devices.append((shared.device, len(shared.device.faults)))
            self._stack.callback(shared.device.close)

    @contextlib.contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._stack.close()
            raise


def refusal(subject: Subject, setting: Setting) -> str | None:
    """Return why a setting is impossible for a stream; None if it seems possible. Builds one rank, the last."""
    try:
        rank = setting.world_size - 1
        build_loader(subject.at(setting, rank), context=_context(setting, rank)).close()
    except REFUSALS as error:
        return in_short(error)
    return None


def _context(setting: Setting, rank: int) -> RunContext:
    return RunContext(rank, setting.world_size, ratios=None if setting.is_equal else setting.ratios)
