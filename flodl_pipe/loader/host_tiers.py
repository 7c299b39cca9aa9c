"""The tiers of the host at work: what is resident or cached in memory, the disk stage, and the thread that fills them.

A set that fits into memory whole is a :class:`flodl_pipe.loader.resident.ResidentSet`, whether it is there because the
mode is resident or because the RAM cache has room for all of it. Of a larger one the RAM cache holds a range. Either is
filled by one background thread that starts when the loop has its first batch.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import final

import numpy as np

from flodl_pipe.arrays import IndexArray
from flodl_pipe.config.loader import LoaderConfig
from flodl_pipe.loader.at_exit import is_own_thread, join_readers
from flodl_pipe.loader.resident import ResidentSet
from flodl_pipe.loader.source_reads import SourceReads
from flodl_pipe.loader.tiers import TierPlan, disk_folder
from flodl_pipe.memory.budget import Grant
from flodl_pipe.memory.ledger import DISK, process_ledger
from flodl_pipe.sources.protocol import BundledSource, RaggedSource, Source, is_dear
from flodl_pipe.staging.cascade import Cascade
from flodl_pipe.staging.disk_stage import DiskStage
from flodl_pipe.staging.protocol import Tier, TierCount
from flodl_pipe.staging.ragged_cascade import RaggedCascade, RaggedTier
from flodl_pipe.staging.ram_cache import RamCache
from flodl_pipe.staging.ram_ragged import RaggedCache
from flodl_pipe.staging.shared_fill import HostPart

__all__ = ["HostTiers"]

_log = logging.getLogger("flodl_pipe")


@final
class HostTiers:
    """What stands between readers and a source.

    Args:
        source: The samples.
        reads: Reads the source.
        plan: What each tier may hold.
        config: Section ``loader``.
        is_resident: Whether the whole set is to be in memory because the mode is resident.
        owner: Whom the ledger grants to.
        on_give_up: Called once when a whole set was given up.
        needs_rows: Whether stored rows will be gathered from it.
        skips: Whether samples that cannot be read are skipped.
        part: This rank's part of the memory of a RAM cache that the ranks of its host keep together.

    Raises:
        StagingError: if disk or memory is refused.
        ConfigError: if the folder of the disk stage cannot serve.
    """

    def __init__(
        self,
        source: Source,
        reads: SourceReads,
        plan: TierPlan,
        config: LoaderConfig,
        *,
        is_resident: bool,
        owner: int,
        on_give_up: Callable[[], None],
        needs_rows: bool,
        skips: bool,
        part: HostPart | None = None,
    ) -> None:
        self._source = source
        self._is_resident = is_resident
        self.whole: ResidentSet | None = None
        self._cache: RamCache | RaggedCache | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # A set whose samples are dear is kept as the loop asks for it.
        keeps_as_read = is_resident and is_dear(source)
        if (is_resident and not keeps_as_read) or plan.ram.in_one:
            self.whole = ResidentSet(
                source,
                read_lock=reads.lock,
                on_give_up=on_give_up,
                needs_rows=needs_rows,
                skips=skips,
                name="resident set" if is_resident else "RAM cache",
            )
        self.cascade: Cascade | RaggedCascade
        if isinstance(source, RaggedSource) and source.spec.is_ragged:
            self.cascade = RaggedCascade(reads, self._ragged_tiers(source, plan, reads), read_lock=nullcontext())
            return
        if self.whole is not None and not self.whole.num_bytes:
            self.whole.load()  # there is nothing to read
        tiers: list[Tier] = []
        if plan.ram.num_rows and self.whole is None:
            self._cache = RamCache(
                source,
                plan.ranking,
                first_rank=plan.ram.first_rank,
                num_ranks=plan.ram.num_rows,
                read_lock=reads.lock,
                part=part,
                name="resident set" if keeps_as_read else "RAM cache",
            )
            tiers.append(self._cache)
        if plan.disk.num_rows:
            tiers.append(_disk_stage(source, plan, config, owner))
        # The source is read under a lock of its own reads.
        self.cascade = Cascade(reads, tiers, read_lock=nullcontext())

    @property
    def is_filled(self) -> bool:
        """Whether every sample, or all that the RAM cache may hold, is in memory."""
        if self.whole is not None:
            return self.whole.is_ready
        return self._cache is not None and self._cache.is_full

    @property
    def stopped(self) -> str | None:
        """Why what is kept as it is read grows no more before it is full; None while it may."""
        return None if self._cache is None else self._cache.stopped

    def start(self) -> None:
        """Begin to fill memory in the background; later calls do nothing."""
        if self.whole is not None:
            self.whole.start()
        elif self._cache is not None and self._thread is None and not is_dear(self._source):
            self._thread = threading.Thread(target=self._fill, name="flodl_pipe-fill", daemon=True)
            self._thread.start()

    def load(self) -> None:
        """Load what is resident in this thread."""
        if self.whole is not None and self._is_resident:
            self.whole.load()

    def rest(self, most: int) -> IndexArray:
        """Return the samples that memory has room for and the loop did not ask for so far, where they are few.

        Args:
            most: How many are few. None are returned where there are more, or where they are read ahead anyway.
        """
        if self._cache is None or not is_dear(self._source):
            return np.empty(0, dtype=np.int64)
        return self._cache.missing(most)

    def read_rest(self, samples: IndexArray) -> None:
        """Read samples, to be kept.

        Raises:
            Exception: what the source raises.
        """
        if isinstance(self.cascade, RaggedCascade):
            self.cascade.read_rows(samples)
        else:
            self.cascade.read_into(samples, np.arange(len(samples)), self._source.spec.empty(len(samples)))

    def counts(self) -> tuple[TierCount, ...]:
        """Return what each tier was asked for and did, in the order in which they are asked."""
        whole = () if self.whole is None else (self.whole.count(),)
        return (*whole, *self.cascade.tier_counts())

    def stop(self) -> None:
        """End filling, and give everything back."""
        self._stop.set()
        if self.whole is not None:
            self.whole.stop()
        thread = self._thread
        if thread is not None and not is_own_thread():
            join_readers([thread], self._source.close if isinstance(self._source, BundledSource) else lambda: None)
        self.cascade.close()

    def _ragged_tiers(self, source: RaggedSource, plan: TierPlan, reads: SourceReads) -> list[RaggedTier]:
        if not plan.ram.num_rows:
            return []
        self._cache = RaggedCache(
            source,
            plan.ranking,
            first_rank=plan.ram.first_rank,
            num_ranks=plan.ram.num_rows,
            grant_bytes=plan.ram.num_bytes,
            read_lock=reads.lock,
        )
        return [self._cache]

    def _fill(self) -> None:
        assert self._cache is not None
        self._cache.fill(self._stop.is_set)


def _disk_stage(source: Source, plan: TierPlan, config: LoaderConfig, owner: int) -> DiskStage:
    disk = plan.disk
    if disk.warning is not None:
        _log.warning("%s", disk.warning)
    stage = DiskStage(
        source, plan.ranking, folder=disk_folder(config), first_rank=disk.first_rank, num_ranks=disk.num_rows
    )
    # The file's space is reserved by now: what the disk has is its own account of it.
    process_ledger().take(owner, "disk stage", stage.num_bytes, Grant(1 << 62, "what the disk has"), account=DISK)
    return stage
