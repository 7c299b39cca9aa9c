"""A user's dataset whose samples have ragged fields, as a source.

It is read sample by sample, as :mod:`~.user_source` is, and its rows come together in a
:class:`~flodl_pipe.batch.ragged.Ragged` per ragged field.

Shape letter: ``K`` samples asked for.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, final

import numpy as np

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.batch.ragged import Columns, Ragged
from flodl_pipe.errors import ChangedError
from flodl_pipe.sources.door import UNREADABLE, Door, require_samples
from flodl_pipe.sources.keyed_choice import keyed_choice
from flodl_pipe.sources.ordering import Ordering
from flodl_pipe.sources.protocol import Extents, Fact, Fingerprint
from flodl_pipe.sources.ragged_source import RAGGED_TIERS_OFF, no_array_of_rows
from flodl_pipe.sources.user_readers import RaggedReader
from flodl_pipe.units import format_count

__all__ = ["RaggedUserSource"]

_FINGERPRINT_SAMPLES = 16
_CHUNK_ROWS = 256


@final
class RaggedUserSource:
    """Samples of a user's dataset, some fields ragged; a :class:`flodl_pipe.sources.protocol.RaggedSource`.

    Args:
        reader: Reads the dataset.
        num_samples: Its length when the source was made.
        thread_safe: Whether several threads may be inside the dataset at once.
    """

    def __init__(self, reader: RaggedReader, num_samples: int, *, thread_safe: bool) -> None:
        self._reader, self._num_samples = reader, num_samples
        self.spec = self.delivered = reader.layout.spec
        self.thread_safe = thread_safe
        self.extents: Extents | None = None
        self.ordering: Ordering = None
        self.tiers_off: str | None = RAGGED_TIERS_OFF
        self.held_bytes = 0
        self.is_dear = True
        self.delivery: object = "as stored"
        self._door = Door(everybody=thread_safe)

    def __len__(self) -> int:
        return self._num_samples

    def read_rows(self, indices: IndexArray) -> Columns:
        """Read samples; see :meth:`flodl_pipe.sources.protocol.RaggedSource.read_rows`.

        Raises:
            SourceError: if a sample is not like sample 0.
            IndexError: if an index is not in ``[0, N)``.
            Exception: what the dataset raises, itself, with a note that names the samples.
        """
        require_samples(indices, self._num_samples)
        with self._door.inside():
            return self._reader.collect(indices)

    def deliver_rows(self, stored: Columns) -> Columns:
        """Return rows as they are."""
        return stored

    def read_into(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        """Refuse: see :func:`~.ragged_source.no_array_of_rows`."""
        del indices, rows, out
        raise no_array_of_rows(self.spec)

    def deliver(self, stored: Mapping[str, Array], out: Mapping[str, Array]) -> None:
        """Refuse: see :func:`~.ragged_source.no_array_of_rows`."""
        del stored, out
        raise no_array_of_rows(self.spec)

    def buffers(self, num_rows: int) -> dict[str, Array]:
        """Refuse: see :func:`~.ragged_source.no_array_of_rows`."""
        del num_rows
        raise no_array_of_rows(self.spec)

    def fingerprint(self, *, full: bool = False) -> Fingerprint:
        """Return the identity of the samples: their number, their fields, lengths and bytes of some of them.

        Costs at most 16 samples, always the same ones, or all when ``full``. A sample that cannot be read counts as
        such, see :meth:`flodl_pipe.sources.user_source.UserSource.fingerprint`.
        """
        summary = f"dataset: {format_count(self._num_samples)} samples of {self.spec}"
        layout = [(field.name, field.dtype, field.shape, field.is_ragged) for field in self.spec]
        scope = "full" if full else "sampled"
        digest = hashlib.blake2b(f"ragged/1|{scope}|{self._num_samples}|{layout}".encode(), digest_size=16)
        count = self._num_samples if full else min(self._num_samples, _FINGERPRINT_SAMPLES)
        chosen = None if full else keyed_choice(self._num_samples, _FINGERPRINT_SAMPLES)
        for first in range(0, count, _CHUNK_ROWS):
            last = min(count, first + _CHUNK_ROWS)
            indices = np.arange(first, last, dtype=np.int64) if chosen is None else chosen[first:last]
            for part in self._rows(indices):
                digest.update(part)
        return Fingerprint(summary, digest.hexdigest(), full, "their number, their fields, and some of the samples")

    def _rows(self, indices: IndexArray) -> Iterator[bytes]:
        """Yield lengths and bytes of each sample."""
        try:
            columns = self.read_rows(indices)
        except Exception:  # noqa: BLE001 - whatever it is: read apart, those that fail show it again
            if len(indices) == 1:
                yield UNREADABLE
            else:
                for index in indices:
                    yield from self._rows(np.array([index], dtype=np.int64))
            return
        for row in range(len(indices)):
            for values in columns.values():
                if isinstance(values, Ragged):
                    yield f"|{values.lengths[row]}|".encode()
                    yield values.row(row).tobytes()
                else:
                    yield values[row].tobytes()

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
        """Return what ``plan`` tells: the dataset's type, how it is read, and which fields are ragged."""
        threads = "several threads at once" if self.thread_safe else "one thread at a time"
        return (
            Fact("dataset", f"{self._reader.layout.owner}, {format_count(self._num_samples)} samples"),
            Fact("read by", f"{self._reader.way}, {threads}"),
            Fact("ragged", ", ".join(field.name for field in self.spec if field.is_ragged)),
        )

    def close(self) -> None:
        """Let go of nothing: the dataset is the user's."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The layout goes along, so that nothing is read to unpickle.
        return _rebuild, (self._reader, self._num_samples, self.thread_safe)


def _rebuild(reader: RaggedReader, num_samples: int, thread_safe: bool) -> RaggedUserSource:
    return RaggedUserSource(reader, num_samples, thread_safe=thread_safe)
