"""The resident set: all of a source in host memory, read once, gathered from there on.

Where a source's samples are runs of bytes (``Extents``), the bytes are kept as they lie in the files, and a batch is
gathered through a sliding view, one row per possible start: overlapping windows share their bytes, and nothing is kept
twice. Other sources are kept as one array of ``N`` rows per stored field.

A background thread reads the source front to back in chunks, while batches still come from the files; from the moment
the set is whole they come from memory. The stream of samples is the same either way. If the machine runs short of
memory meanwhile, the set is given up, aloud, and the loader goes on streaming.
"""

import contextlib
import logging
import mmap
import threading
from collections.abc import Callable
from typing import Protocol, final

import numpy as np

from flodl_pipe.arrays import Array, ByteArray, IndexArray
from flodl_pipe.loader.at_exit import join_readers
from flodl_pipe.memory.budget import floor_bytes
from flodl_pipe.memory.probe import probe_host
from flodl_pipe.sources.protocol import BundledSource, Extents, Source
from flodl_pipe.units import format_bytes

__all__ = ["ResidentSet", "resident_bytes"]

_log = logging.getLogger("flodl_pipe")

# Large enough for sequential disk speed, small enough that a batch waiting for the same disk goes soon.
_CHUNK_BYTES = 4 << 20
# Looking at the machine costs about 50 us: once per this many chunks is enough to notice in time.
_CHUNKS_PER_PROBE = 16


def _extents(source: Source) -> Extents | None:
    return source.extents if isinstance(source, BundledSource) else None


def resident_bytes(source: Source) -> int:
    """Return how many bytes the resident set of a source takes beside what the source holds itself."""
    extents = _extents(source)
    if extents is None:
        return len(source) * source.spec.row_bytes
    return extents.num_bytes if extents.memory is None else 0


class _Store(Protocol):
    def chunks(self) -> int: ...
    def load(self, chunk: int) -> None: ...
    def gather(self, indices: IndexArray) -> dict[str, Array]: ...


def _reserve(num_bytes: int) -> ByteArray:
    """Map private memory that takes pages only as they are written."""
    memory = mmap.mmap(-1, max(1, num_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):  # fewer page faults where the kernel offers it
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)[:num_bytes]


@final
class _ExtentStore:
    """The source's bytes as they lie, and one view that has a row at every byte."""

    def __init__(self, source: Source, extents: Extents) -> None:
        (self._field,) = source.spec.fields
        self._extents = extents
        self._bytes = _reserve(extents.num_bytes) if extents.memory is None else extents.memory
        num_starts = max(0, extents.num_bytes - extents.row_bytes + 1)
        # One opaque item of `row_bytes` at every byte: indexing it copies whole rows, 10 % faster than rows of a
        # matrix.
        self._windows = np.ndarray((num_starts,), f"V{extents.row_bytes}", self._bytes, strides=(1,))

    def chunks(self) -> int:
        return 0 if self._extents.memory is not None else -(-self._extents.num_bytes // _CHUNK_BYTES)

    def load(self, chunk: int) -> None:
        start = chunk * _CHUNK_BYTES
        self._extents.read(start, self._bytes[start : start + _CHUNK_BYTES])

    def gather(self, indices: IndexArray) -> dict[str, Array]:
        rows = self._windows[self._extents.starts(indices)]
        return {self._field.name: rows.view(self._field.dtype).reshape(len(indices), *self._field.shape)}


@final
class _RowStore:
    """One array of ``N`` rows per stored field."""

    def __init__(self, source: Source) -> None:
        self._source = source
        num_rows = len(source)
        self._fields = {
            field.name: _reserve(num_rows * field.row_bytes).view(field.dtype).reshape(num_rows, *field.shape)
            for field in source.spec
        }
        self._chunk_rows = max(1, _CHUNK_BYTES // max(1, source.spec.row_bytes))

    def chunks(self) -> int:
        return -(-len(self._source) // self._chunk_rows)

    def load(self, chunk: int) -> None:
        first = chunk * self._chunk_rows
        last = min(first + self._chunk_rows, len(self._source))
        indices = np.arange(first, last, dtype=np.int64)
        self._source.read_into(indices, indices - first, {name: a[first:last] for name, a in self._fields.items()})

    def gather(self, indices: IndexArray) -> dict[str, Array]:
        return {name: kept.take(indices, axis=0) for name, kept in self._fields.items()}


@final
class ResidentSet:
    """All of a source in memory, loaded by one background thread.

    Args:
        source: The source; read front to back once.
        read_lock: Held around each read of a source that is not thread-safe.
        on_give_up: Called once, from the loading thread, when the set was given up.
    """

    def __init__(
        self, source: Source, *, read_lock: contextlib.AbstractContextManager[object], on_give_up: Callable[[], None]
    ) -> None:
        self.num_bytes = resident_bytes(source)
        self._source = source
        self._read_lock = read_lock
        self._on_give_up = on_give_up
        self._store: _Store | None = None
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.given_up: str | None = None

    @property
    def is_ready(self) -> bool:
        """Whether every sample is in memory."""
        return self._ready.is_set()

    def start(self) -> None:
        """Begin loading in the background; later calls do nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self.load, name="flodl_pipe-resident", daemon=True)
            self._thread.start()

    def load(self) -> None:
        """Load everything in this thread.

        A fault of the source ends the loading only: the streaming path meets it too, and raises it at the step that it
        belongs to.
        """
        if self._ready.is_set() or self._stop.is_set():
            return
        extents = _extents(self._source)
        store: _Store = _RowStore(self._source) if extents is None else _ExtentStore(self._source, extents)
        try:
            for chunk in range(store.chunks()):
                if self._stop.is_set() or (chunk % _CHUNKS_PER_PROBE == 0 and self._short_of_memory()):
                    return
                with self._read_lock:
                    store.load(chunk)
        except Exception as error:  # noqa: BLE001 - the reader that meets it again raises it in the loop
            self._give_up(f"reading it failed ({error})")
            return
        self._store = store
        self._ready.set()

    def gather(self, indices: IndexArray) -> dict[str, Array]:
        """Return copies of the stored rows of ``K`` samples, in order; only once :attr:`is_ready`."""
        assert self._store is not None
        return self._store.gather(indices)

    def stop(self, *, wait: bool = True) -> None:
        """End loading; with ``wait``, return only when the thread has ended."""
        self._stop.set()
        thread = self._thread
        if wait and thread is not None and thread is not threading.current_thread():
            join_readers([thread], self._source.close if isinstance(self._source, BundledSource) else lambda: None)

    def _short_of_memory(self) -> bool:
        memory = probe_host()
        floor = floor_bytes(memory)
        if memory.available_bytes > floor + _CHUNK_BYTES * _CHUNKS_PER_PROBE:
            return False
        self._give_up(
            f"only {format_bytes(memory.available_bytes)} of memory is available; {format_bytes(floor)} is left alone"
        )
        return True

    def _give_up(self, why: str) -> None:
        self._stop.set()
        self.given_up = why
        _log.warning(
            "the resident set of %s was given up: %s; batches are streamed from the source instead. "
            "Set loader.mode=streaming to say so from the start, or lower loader.ram_max_usage",
            format_bytes(self.num_bytes),
            why,
        )
        self._on_give_up()
