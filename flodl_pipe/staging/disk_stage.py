"""The disk stage: samples that were read once and have no room in memory, as rows of a file without a name.

Which samples it may hold is a range of ranks; where each lies is the order in which they came. Rows that arrive
together are written together, one after the other::

    offer:      samples --> ranks in range, not held --> records with checks --> 1 write at the end of the file
    read_into:  samples --> positions of their ranks --> 1 call for up to 256 records --> checks --> out[rows]

Places by rank would save the position (4 bytes a row of memory) and cost the writing: under a shuffle every row would
go to a place of its own, in pages that hold parts of others, and a page that has left the cache is read again to be
added to. Rows of 3,072 bytes, 1.2 GB, written pages dropped from the cache every 64 MiB, one thread, virtio disk:
14,000 rows/s by rank, 1,400,000 in order of arrival.

A damaged row, a failed read or write or a full disk switches the stage off, aloud and for good: every later answer is a
miss, the source is read instead, and the file's space is given back.
"""

import errno
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, final

import numpy as np

from flodl_pipe.arrays import Array, BoolArray, IndexArray, WordArray
from flodl_pipe.errors import ConfigError
from flodl_pipe.sources.protocol import Source
from flodl_pipe.staging.disk_file import DiskFile
from flodl_pipe.staging.disk_records import RecordLayout
from flodl_pipe.staging.protocol import TierCount
from flodl_pipe.units import format_bytes

__all__ = ["DiskStage", "rows_fitting"]

_log = logging.getLogger("flodl_pipe")

_ABSENT, _WRITING, _OUTSIDE = -1, -2, -3

_SCRATCH_BYTES = 2 << 20
"""Most bytes of a thread's records at a time, unless one record is larger."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_ANOTHER_DISK = "look at the disk (dmesg), or set loader.disk_stage_dir to a folder on another"


class Ranks(Protocol):
    """Says at which rank each sample stands; those that may be held have ranks of their own."""

    def ranks(self, indices: IndexArray) -> IndexArray:
        """Return the rank of each sample, int64, shape ``(K,)``."""
        ...


def rows_fitting(source: Source, num_bytes: int) -> int:
    """Return how many samples of a source fit into a disk stage of ``num_bytes``, at most all of them.

    A sample takes its stored fields and a check word, rounded up to a multiple of 8 bytes.
    """
    return min(len(source), num_bytes // RecordLayout(source.spec).record_bytes)


@final
class DiskStage:
    """A tier on disk; see :class:`flodl_pipe.staging.protocol.Tier`.

    Args:
        source: Whose samples; only its spec is looked at.
        ranking: The rank of each sample.
        folder: Where the file goes; it must exist.
        first_rank: First rank that may be held.
        num_ranks: How many ranks from there on.

    Attributes:
        name: ``"disk stage"``.
        num_bytes: Bytes of disk it reserves.
        table_bytes: Bytes of memory that say where rows are.
        scratch_bytes: Bytes of memory that each thread that uses it holds.

    Raises:
        ConfigError: if rows have different lengths (``loader.disk_stage``), or the folder cannot be written to
            (``loader.disk_stage_dir``).
        StagingError: if there is not enough disk space, or the system lacks what this needs.
    """

    name: str = "disk stage"

    def __init__(self, source: Source, ranking: Ranks, *, folder: Path, first_rank: int, num_ranks: int) -> None:
        if source.spec.is_ragged:
            raise ConfigError.at(
                "loader.disk_stage",
                f"the rows of this source have different lengths ({source.spec}), and a disk stage holds rows of one "
                "length; set loader.disk_stage=0",
            )
        self._ranking = ranking
        self._layout = RecordLayout(source.spec)
        self._first_rank = first_rank
        self._num_ranks = num_ranks
        self._chunk = max(1, _SCRATCH_BYTES // self._layout.record_bytes)
        dtype = np.int32 if num_ranks < 2**31 else np.int64
        # Place in the file by rank. A row has one from the moment its bytes are written, and keeps it.
        self._places = np.full(num_ranks, _ABSENT, dtype=dtype)
        self._scratch = threading.local()
        self._lock = threading.Lock()
        self._num_taken = self._num_held = self._num_asked = self._num_hits = 0
        self._off: str | None = None
        self.num_bytes = num_ranks * self._layout.record_bytes
        self.table_bytes = self._places.nbytes
        self.scratch_bytes = self._chunk * self._layout.record_bytes
        self._pid = os.getpid()
        self._file: DiskFile | None = DiskFile(folder, self.num_bytes)

    @property
    def is_full(self) -> bool:
        """Whether nothing more will be taken in."""
        return self._num_taken == self._num_ranks or self._file is None

    def read_into(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> BoolArray:
        """Fill the rows of samples that are held; see :meth:`flodl_pipe.staging.protocol.Tier.read_into`.

        When the stage switches itself off meanwhile, all of them are misses, rows that were filled already too.
        """
        file = self._open_file()
        hits = np.zeros(len(indices), dtype=np.bool_) if file is None else self._fill(file, indices, rows, out)
        with self._lock:
            self._num_asked += len(indices)
            self._num_hits += int(hits.sum())
        return hits

    def offer(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        """Take in samples in range that are not there yet; see :meth:`flodl_pipe.staging.protocol.Tier.offer`."""
        file = None if self.is_full else self._open_file()
        if file is None:
            return
        new = np.flatnonzero(self._places_of(indices) == _ABSENT)
        if not len(new):
            return
        new = new[np.unique(indices[new], return_index=True)[1]]
        slots = self._ranking.ranks(indices[new]) - self._first_rank
        with self._lock:
            free = self._places[slots] == _ABSENT
            new, slots = new[free], slots[free]
            self._places[slots] = _WRITING
            first_place = self._num_taken
            self._num_taken += len(new)
        try:
            for first in range(0, len(new), self._chunk):
                part = slice(first, first + self._chunk)
                at = new[part]
                records = self._records(len(at))
                self._layout.pack(records, indices[at], rows[at], out)
                file.write((first_place + first) * self._layout.record_bytes, records)
                place = np.arange(first_place + first, first_place + first + len(at))
                with self._lock:
                    self._places[slots[part]] = place
                    self._num_held += len(at)
        except (OSError, MemoryError) as error:
            self._switch_off(file, f"writing to it failed ({_words(error)})", _remedy(error))

    def count(self) -> TierCount:
        """Return what was asked of it so far; ``held_bytes`` are those of fields, without checks."""
        row_bytes = self._layout.row_bytes
        return TierCount(
            name=self.name,
            num_rows=self._num_asked,
            num_hits=self._num_hits,
            hit_bytes=self._num_hits * row_bytes,
            held_bytes=0 if self._file is None else self._num_held * row_bytes,
            filled_bytes=0,
            off=self._off,
        )

    def close(self) -> None:
        """Give the disk space back; later reads are misses."""
        file, self._file = self._file, None
        if file is not None:
            _give_back(file)

    def _fill(self, file: DiskFile, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> BoolArray:
        places = self._places_of(indices)
        hits: BoolArray = places >= 0
        at = np.flatnonzero(hits)
        try:
            for first in range(0, len(at), self._chunk):
                part = at[first : first + self._chunk]
                if not self._read(file, places[part], indices[part], rows[part], out):
                    return np.zeros_like(hits)
        except (OSError, MemoryError) as error:
            self._switch_off(file, f"reading from it failed ({_words(error)})", _remedy(error))
            return np.zeros_like(hits)
        return hits

    def _read(
        self, file: DiskFile, places: IndexArray, samples: IndexArray, rows: IndexArray, out: Mapping[str, Array]
    ) -> bool:
        """Read samples that are held; return False if the stage had to be switched off."""
        records = self._records(len(places))
        offsets = places * self._layout.record_bytes
        file.read(offsets, records)
        damaged = self._layout.damaged(records, samples)
        if damaged.any():
            bad = int(np.argmax(damaged))
            self._switch_off(
                file,
                f"the row of sample {samples[bad]:,} at offset {offsets[bad]:,} is damaged (its check differs; "
                f"{damaged.sum():,} of {len(places):,} rows read)",
                _ANOTHER_DISK,
            )
            return False
        self._layout.unpack(records, rows, out)
        return True

    def _places_of(self, indices: IndexArray) -> IndexArray:
        """Return the place of each sample in the file, or one of the marks of those that have none."""
        slots = self._ranking.ranks(indices) - self._first_rank
        places = np.full(len(slots), _OUTSIDE, dtype=np.int64)
        inside = (slots >= 0) & (slots < self._num_ranks)
        places[inside] = self._places[slots[inside]]
        return places

    def _records(self, num_records: int) -> WordArray:
        """Return this thread's records; they are its own until its next call."""
        kept: WordArray | None = getattr(self._scratch, "records", None)
        if kept is None:
            kept = self._scratch.records = self._layout.empty(self._chunk)
        return kept[:num_records]

    def _open_file(self) -> DiskFile | None:
        if self._file is not None and self._pid != os.getpid():
            # A forked child shares the file and not what is known of it. Another thread of the parent may have held the
            # lock when it was forked.
            self._file, self._lock = None, threading.Lock()
            self._off = f"it belongs to process {self._pid}, which this process ({os.getpid()}) was forked from"
            _log.warning("the disk stage is off in this process: %s; the source is read instead", self._off)
        return self._file

    def _switch_off(self, file: DiskFile, why: str, remedy: str) -> None:
        with self._lock:
            if self._file is None:  # closed, or switched off by another thread: its reads come up short
                return
            self._off, self._file = why, None
        _log.warning(
            "the disk stage (%s in %s) was switched off: %s; training goes on from the source. To have it back, %s",
            *(format_bytes(file.num_bytes), file.folder, why, remedy),
        )
        _give_back(file)


def _give_back(file: DiskFile) -> None:
    try:
        file.give_back()
    except OSError as error:
        _log.warning(
            "the space of the disk stage in %s is given back with its last user (%s)", file.folder, _words(error)
        )


def _words(error: OSError | MemoryError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else f"no memory: {error}"


def _remedy(error: OSError | MemoryError) -> str:
    if isinstance(error, MemoryError):
        return "lower loader.batch_size or lift the limit on memory (ulimit -v, the control group's)"
    if error.errno in _FULL:
        return "make room there, lower loader.disk_stage, or set loader.disk_stage_dir to a folder on another disk"
    return _ANOTHER_DISK
