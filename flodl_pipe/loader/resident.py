"""The resident set: all of a source in host memory, read once, gathered from there on.

Where a source's samples are runs of bytes (``Extents``), the bytes are kept as they lie in the files, and a batch is
gathered through a sliding view, one row per possible start: overlapping windows share their bytes, and nothing is kept
twice. Records whose fields are all of a row are kept field by field. Other sources are kept as one array of ``N`` rows
per stored field.

A background thread reads the source front to back in chunks, while batches still come from the files; from the moment
the set is whole they come from memory. The stream of samples is the same either way. If the machine runs short of
memory meanwhile, the set is given up, aloud, and the loader goes on streaming.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import final

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.loader.at_exit import is_own_thread, join_readers
from flodl_pipe.loader.planes import PlaneStore, held_planes, plane_store
from flodl_pipe.loader.stores import CHUNK_BYTES, ExtentStore, RowStore, Store
from flodl_pipe.memory.budget import floor_bytes
from flodl_pipe.memory.probe import probe_host
from flodl_pipe.sources.protocol import BundledSource, Extents, Source, is_dear
from flodl_pipe.staging.protocol import TierCount
from flodl_pipe.units import format_bytes

__all__ = ["ResidentSet", "resident_bytes"]

_log = logging.getLogger("flodl_pipe")

# Looking at the machine costs about 50 us: once per this many chunks is enough to notice in time.
_CHUNKS_PER_PROBE = 16


def _extents(source: Source) -> Extents | None:
    return source.extents if isinstance(source, BundledSource) else None


def resident_bytes(source: Source) -> int:
    """Return how many bytes the resident set of a source takes beside what the source holds itself."""
    extents = _extents(source)
    if extents is None or is_dear(source):
        # Rows that are kept as they are read take a byte more each, which says that they are there.
        return len(source) * source.spec.row_bytes + (len(source) + 1 if is_dear(source) else 0)
    return 0 if extents.memory is not None or held_planes(extents) is not None else extents.num_bytes


def _store(source: Source, *, needs_rows: bool) -> Store:
    extents = _extents(source)
    if extents is None:
        return RowStore(source)
    return plane_store(source, extents, needs_rows=needs_rows) or ExtentStore(source, extents)


@final
class ResidentSet:
    """All of a source in memory, loaded by one background thread.

    Args:
        source: The source; read front to back once.
        read_lock: Held around each read of a source that is not thread-safe.
        on_give_up: Called once, from the loading thread, when the set was given up.
        needs_rows: Whether stored rows will be gathered from it, for digests.
        skips: Whether samples that cannot be read are skipped, so that no error will tell of them.
        name: What it is called in words.

    Attributes:
        num_bytes: Bytes of the set beside what the source holds itself.
        planes: The samples field by field, to deliver from; None where they are not kept so, or not loaded yet.
        given_up: Why the set was given up, if it was.
    """

    def __init__(
        self,
        source: Source,
        *,
        read_lock: contextlib.AbstractContextManager[object],
        on_give_up: Callable[[], None],
        needs_rows: bool = False,
        skips: bool = False,
        name: str = "resident set",
    ) -> None:
        self.name = name
        self._row_bytes = source.spec.row_bytes
        self._num_hits = 0
        self._count_lock = threading.Lock()
        self.num_bytes = resident_bytes(source)
        self._source = source
        self._read_lock = read_lock
        self._on_give_up = on_give_up
        self._needs_rows = needs_rows
        self._skips = skips
        self._store: Store | None = None
        self.planes: PlaneStore | None = None
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
        try:
            store = _store(self._source, needs_rows=self._needs_rows)
            for chunk in range(store.chunks()):
                if self._stop.is_set() or (chunk % _CHUNKS_PER_PROBE == 0 and self._short_of_memory()):
                    return
                with self._read_lock:
                    store.load(chunk)
        except Exception as error:  # noqa: BLE001 - the reader that meets it again raises it in the loop
            # The fault itself comes at its step, with a remedy of its own, unless it is skipped.
            remedy = ": a resident set needs every sample, mend the data to have one" if self._skips else ""
            self._give_up(f"reading it failed ({error})", logging.WARNING if self._skips else logging.INFO, remedy)
            return
        self._store = store
        if isinstance(store, PlaneStore) and store.delivers:
            self.planes = store
        self._ready.set()

    def gather(self, indices: IndexArray) -> dict[str, Array]:
        """Return copies of the stored rows of ``K`` samples, in order; only once :attr:`is_ready`."""
        assert self._store is not None
        self._count(len(indices))
        return self._store.gather(indices)

    def plane_rows(self, indices: IndexArray) -> IndexArray:
        """Return the row of the planes that each sample is, for :meth:`flodl_pipe.loader.planes.PlaneStore.deliver`."""
        assert self.planes is not None
        self._count(len(indices))
        return self.planes.rows(indices)

    def _count(self, num_rows: int) -> None:
        with self._count_lock:
            self._num_hits += num_rows

    def count(self) -> TierCount:
        """Return what came from the set so far."""
        loaded = self.num_bytes if self.is_ready else 0
        return TierCount(
            name=self.name,
            num_rows=self._num_hits,
            num_hits=self._num_hits,
            hit_bytes=self._num_hits * self._row_bytes,
            held_bytes=loaded,
            filled_bytes=loaded,
            off=self.given_up,
        )

    def stop(self, *, wait: bool = True) -> None:
        """End loading; with ``wait``, return only when the thread has ended."""
        self._stop.set()
        thread = self._thread
        if wait and thread is not None and not is_own_thread():
            join_readers([thread], self._source.close if isinstance(self._source, BundledSource) else lambda: None)

    def _short_of_memory(self) -> bool:
        memory = probe_host()
        floor = floor_bytes(memory)
        if memory.available_bytes > floor + CHUNK_BYTES * _CHUNKS_PER_PROBE:
            return False
        self._give_up(
            f"only {format_bytes(memory.available_bytes)} of memory is available; {format_bytes(floor)} is left alone",
            logging.WARNING,
            ". Set loader.mode=streaming to say so from the start, or lower loader.ram_max_usage",
        )
        return True

    def _give_up(self, why: str, level: int, remedy: str) -> None:
        self._stop.set()
        self.given_up = why
        _log.log(
            level,
            "the %s of %s was given up: %s; batches are streamed from the source instead%s",
            *(self.name, format_bytes(self.num_bytes)),
            why,
            remedy,
        )
        self._on_give_up()
