"""A user's dataset as a source: what is stored is what the dataset returns, and what is delivered is the same.

The fields are learned from sample 0 when the source is made, and the dataset is asked for nothing else until it is
read. Unless the user says that it is thread safe, one thread at a time is inside the dataset, this source's own
fingerprint included.

Shape letters: ``K`` samples asked for, ``B`` rows of a buffer.
"""

import hashlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any, final

import numpy as np

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.errors import ChangedError
from flodl_pipe.sources.door import UNREADABLE, Door, require_samples
from flodl_pipe.sources.keyed_choice import keyed_choice
from flodl_pipe.sources.ordering import Ordering
from flodl_pipe.sources.protocol import Extents, Fact, Fingerprint
from flodl_pipe.sources.user_readers import UserReader
from flodl_pipe.units import format_count

__all__ = ["UserSource"]

_FINGERPRINT_SAMPLES = 16
_CHUNK_BYTES = 1 << 20
_MAX_CHUNK_ROWS = 256


@final
class UserSource:
    """Samples of a user's dataset; a :class:`flodl_pipe.sources.protocol.BundledSource`.

    Args:
        reader: Reads the dataset.
        num_samples: Its length when the source was made.
        thread_safe: Whether several threads may be inside the dataset at once.
        tiers_off: Why no memory tier may keep its samples; None where they may.

    Attributes:
        owner: Name of the dataset's type.
        is_unsaid: Whether nobody has said that several threads may be inside, or that they may not.
    """

    def __init__(self, reader: UserReader, num_samples: int, *, thread_safe: bool, tiers_off: str | None) -> None:
        self._reader, self._num_samples = reader, num_samples
        self.spec = self.delivered = reader.layout.spec
        self.thread_safe = thread_safe
        self.extents: Extents | None = None
        self.ordering: Ordering = None
        self.tiers_off = tiers_off
        self.held_bytes = 0
        self.is_dear = True
        self.owner, self.is_unsaid = reader.layout.owner, False
        self.delivery: object = "as stored"
        self._scratch = threading.local()
        self._door = Door(everybody=thread_safe)

    def __reduce__(self) -> tuple[Any, ...]:
        # Locks and scratch stay behind; the layout goes along, so that nothing is read to unpickle.
        return _rebuild, (self._reader, self._num_samples, self.thread_safe, self.tiers_off)

    def __len__(self) -> int:
        return self._num_samples

    def read_into(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        """Read samples into rows of ``out``; see :meth:`flodl_pipe.sources.protocol.Source.read_into`.

        Raises:
            SourceError: if a sample is not like sample 0.
            IndexError: if an index is not in ``[0, N)``.
            Exception: what the dataset raises, itself, with a note that names the samples.
        """
        if not len(indices):
            return
        require_samples(indices, self._num_samples)
        with self._door.inside():
            self._reader.read(indices, rows, out)

    def buffers(self, num_rows: int) -> dict[str, Array]:
        """Return rows for :meth:`read_into`; see :meth:`flodl_pipe.sources.protocol.BundledSource.buffers`."""
        kept: dict[str, Array] | None = getattr(self._scratch, "fields", None)
        if kept is None or len(next(iter(kept.values()))) < num_rows:
            kept = self._scratch.fields = self.spec.empty(num_rows)
        return {name: array[:num_rows] for name, array in kept.items()}

    def deliver(self, stored: Mapping[str, Array], out: Mapping[str, Array]) -> None:
        """Copy rows as they are; see :meth:`flodl_pipe.sources.protocol.Source.deliver`."""
        for name, array in stored.items():
            np.copyto(out[name], array)

    def fingerprint(self, *, full: bool = False) -> Fingerprint:
        """Return the identity of the samples: their number, their fields, and the bytes of some of them.

        Costs at most 16 samples, the first and the last among them and always the same ones, or all when ``full``.
        The dataset's type plays no part: it may be renamed or moved. A sample that cannot be read counts as such: a run
        that skips it can be saved and resumed, and one that does not ends where it meets it.
        """
        summary = f"dataset: {format_count(self._num_samples)} samples of {self.spec}"
        layout = [(field.name, field.dtype, field.shape) for field in self.spec]
        scope = "full" if full else "sampled"
        digest = hashlib.blake2b(f"dataset/1|{scope}|{self._num_samples}|{layout}".encode(), digest_size=16)
        count = self._num_samples if full else min(self._num_samples, _FINGERPRINT_SAMPLES)
        chosen = None if full else keyed_choice(self._num_samples, _FINGERPRINT_SAMPLES)
        step = max(1, min(_MAX_CHUNK_ROWS, _CHUNK_BYTES // self.spec.row_bytes))
        for first in range(0, count, step):
            last = min(count, first + step)
            indices = np.arange(first, last, dtype=np.int64) if chosen is None else chosen[first:last]
            for row in self._rows(indices):
                digest.update(row)
        return Fingerprint(summary, digest.hexdigest(), full, "their number, their fields, and some of the samples")

    def _rows(self, indices: IndexArray) -> Iterator[bytes]:
        """Yield the bytes of each sample."""
        out, rows = self.spec.empty(len(indices)), np.arange(len(indices), dtype=np.int64)
        try:
            self.read_into(indices, rows, out)
        except Exception:  # noqa: BLE001 - whatever it is: read apart, those that fail show it again
            if len(indices) == 1:
                yield UNREADABLE
            else:
                for index in indices:
                    yield from self._rows(np.array([index], dtype=np.int64))
            return
        for row in rows.tolist():
            yield b"".join(array[row].tobytes() for array in out.values())

    def check_unchanged(self) -> None:
        """Compare the dataset's length with what it was: of an object in memory nothing else can be told.

        Raises:
            ChangedError: if it differs.
        """
        with self._door.inside():
            now = self._reader.num_samples()
        if now != self._num_samples:
            raise ChangedError(
                f"len({self._reader.layout.owner}) was {self._num_samples} when the loader was built and is {now} now; "
                "a dataset must not change during a run: build a new loader for the changed one"
            )

    def facts(self) -> tuple[Fact, ...]:
        """Return what ``plan`` tells: the dataset's type, and how it is read."""
        threads = "several threads at once" if self.thread_safe else "one thread at a time"
        return (
            Fact("dataset", f"{self._reader.layout.owner}, {format_count(self._num_samples)} samples"),
            Fact("read by", f"{self._reader.way}, {threads}"),
        )

    def close(self) -> None:
        """Let go of nothing: the dataset is the user's."""


def _rebuild(reader: UserReader, num_samples: int, thread_safe: bool, tiers_off: str | None) -> UserSource:
    return UserSource(reader, num_samples, thread_safe=thread_safe, tiers_off=tiers_off)
