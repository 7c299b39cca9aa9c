"""Reads of samples for ``job=verify``: all of them, or where faults are skipped, all that can be read.

As in a run, a read that fails is made again in halves until the samples at fault are alone.
"""

from collections.abc import Iterator, Mapping
from typing import final

import numpy as np

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.batch.ragged import Columns, Ragged
from flodl_pipe.errors import ChangedError
from flodl_pipe.loader.ledger import reason_of
from flodl_pipe.reports.figures import plural
from flodl_pipe.sources.protocol import RaggedSource, Source

__all__ = ["ReadsOfSamples", "Values"]

Values = Mapping[str, Array | Ragged]

# Not about a sample: other data than before, or no memory.
_NOT_OF_A_SAMPLE = (ChangedError, MemoryError)


@final
class ReadsOfSamples:
    """Reads samples of a source, and counts those that are skipped.

    Args:
        source: The samples.
        skips: Whether samples that cannot be read are skipped; if not, what reading raises is raised.

    Attributes:
        num_skipped: Samples that could not be read so far.
    """

    def __init__(self, source: Source, *, skips: bool) -> None:
        self._source = source
        self._skips = skips
        self.num_skipped = 0
        self._first = ""

    def delivered(self, samples: IndexArray) -> Iterator[tuple[IndexArray, Values]]:
        """Yield samples as delivered, together where they can be read so, each part with their numbers."""
        for part, stored in self._parts(samples):
            if isinstance(self._source, RaggedSource) and self._source.spec.is_ragged:
                yield part, self._source.deliver_rows(stored)
                continue
            out = self._source.delivered.empty(len(part))
            self._source.deliver({name: rows for name, rows in stored.items() if isinstance(rows, np.ndarray)}, out)
            yield part, out

    def readable(self, samples: IndexArray) -> IndexArray:
        """Return those of some samples that can be read, ascending if they are."""
        found = [part for part, _ in self._parts(samples)]
        return np.concatenate(found) if found else samples[:0]

    def told(self) -> str:
        """Return how many were skipped and why the first was, to end a line with; nothing where none was."""
        if not self.num_skipped:
            return ""
        are = "is" if self.num_skipped == 1 else "are"
        count = plural(self.num_skipped, "sample")
        return f"; {count} cannot be read and {are} skipped (source.on_error=skip), the first {self._first}"

    def _parts(self, samples: IndexArray) -> Iterator[tuple[IndexArray, Columns]]:
        waiting = [samples] if len(samples) else []
        while waiting:
            part = waiting.pop()
            try:
                stored = self._read(part)
            except _NOT_OF_A_SAMPLE:
                raise
            except Exception as error:
                if not self._skips:
                    raise
                if len(part) > 1:
                    middle = len(part) // 2
                    waiting += [part[middle:], part[:middle]]
                else:
                    self.num_skipped += 1
                    self._first = self._first or f"is sample {part[0]}: {reason_of(error)}"
                continue
            yield part, stored

    def _read(self, samples: IndexArray) -> Columns:
        if isinstance(self._source, RaggedSource) and self._source.spec.is_ragged:
            return self._source.read_rows(samples)
        stored = self._source.spec.empty(len(samples))
        self._source.read_into(samples, np.arange(len(samples), dtype=np.int64), stored)
        return dict(stored)
