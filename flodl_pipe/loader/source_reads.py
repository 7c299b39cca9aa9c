"""Reads of a source, by this process or by others, under the lock that a source which is not thread-safe needs.

An impure source is read by picks: which appearance of a sample it is, in which epoch, by which seed.
"""

import contextlib
import threading
from collections.abc import Mapping
from typing import NamedTuple, final

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.batch.ragged import Columns
from flodl_pipe.config.loader import LoaderConfig
from flodl_pipe.errors import ConfigError
from flodl_pipe.loader.process_readers import ProcessReaders
from flodl_pipe.sources.impure import ImpureSource
from flodl_pipe.sources.protocol import RaggedSource, Source

__all__ = ["Picks", "SourceReads", "reader_processes", "require_readable"]


@final
class Picks(NamedTuple):
    """What samples are read for.

    Attributes:
        repeats: Which appearance of its sample each row is, int64, shape ``(K,)``.
        epoch: Epoch number.
        seed: Run seed.
    """

    repeats: IndexArray
    epoch: int
    seed: int

    def part(self, rows: slice) -> "Picks":
        """Return those of some rows."""
        return Picks(self.repeats[rows], self.epoch, self.seed)


def require_readable(source: Source, config: LoaderConfig) -> None:
    """Refuse readers that a source cannot have.

    Raises:
        ConfigError: if an impure source is to be read by threads.
    """
    by_threads = config.reader_kind == "thread" and config.readers not in ("auto", 0)
    if isinstance(source, ImpureSource) and by_threads:
        raise ConfigError.at(
            "loader.reader_kind",
            f"thread, with loader.readers={config.readers} and a dataset that is random on purpose (pure=false): "
            "threads would draw from each other's generators; set reader_kind=process, or readers=0",
        )


def reader_processes(source: Source, config: LoaderConfig, num_readers: int, max_rows: int) -> ProcessReaders | None:
    """Start the processes that a section asks for; None where it asks for none, or for no readers.

    Raises:
        LoaderError: if the source does not pickle, or they cannot be started.
    """
    if config.reader_kind != "process" or not num_readers:
        return None
    return ProcessReaders(source, num_processes=num_readers, start=config.reader_start, max_rows=max_rows)


@final
class SourceReads:
    """Reads stored rows. Thread-safe.

    Args:
        source: The samples.
        processes: Processes that read them; None: this one.

    Attributes:
        spec: The stored row.
        lock: Held around each read of a source that is not thread-safe.
        is_ragged: Whether rows may differ in length.
        is_impure: Whether rows are read by picks.
        num_picks: Rows read by picks so far.
        is_here: Whether this process reads, and no others do.
    """

    def __init__(self, source: Source, processes: ProcessReaders | None) -> None:
        self._source = source
        self.spec = source.spec
        self._processes = processes
        self.is_here = processes is None
        self._count_lock = threading.Lock()
        self.num_picks = 0
        self._impure = source if isinstance(source, ImpureSource) else None
        self.is_impure = self._impure is not None
        self._ragged = source if isinstance(source, RaggedSource) and source.spec.is_ragged else None
        self.is_ragged = self._ragged is not None
        self.lock: contextlib.AbstractContextManager[object] = (
            contextlib.nullcontext() if source.thread_safe or processes is not None else threading.Lock()
        )

    def read_into(
        self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array], picks: Picks | None = None
    ) -> None:
        """Read samples into rows; see :meth:`flodl_pipe.sources.protocol.Source.read_into`.

        Args:
            indices: Samples wanted.
            rows: Row that each goes to.
            out: One array per stored field.
            picks: What they are read for, where the source is impure.
        """
        reader = self._processes or self._source
        with self.lock:
            if self._impure is not None and picks is not None:
                self._count(len(indices))
                (self._processes or self._impure).read_picks(indices, *picks, rows, out)
            else:
                reader.read_into(indices, rows, out)

    def read_rows(self, indices: IndexArray, picks: Picks | None = None) -> Columns:
        """Return samples of a ragged source; see :meth:`flodl_pipe.sources.protocol.RaggedSource.read_rows`."""
        assert self._ragged is not None
        with self.lock:
            if self._impure is not None and picks is not None:
                self._count(len(indices))
                return (self._processes or self._impure).read_pick_rows(indices, *picks)
            return (self._processes or self._ragged).read_rows(indices)

    def _count(self, num_rows: int) -> None:
        with self._count_lock:
            self.num_picks += num_rows

    def begin(self) -> None:
        """Note that a pass begins."""
        if self._processes is not None:
            self._processes.begin()

    def interrupt(self) -> None:
        """End reads that somebody waits for."""
        if self._processes is not None:
            self._processes.interrupt()

    def close(self) -> None:
        """End the processes."""
        if self._processes is not None:
            self._processes.close()
