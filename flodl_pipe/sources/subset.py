"""A subset: some samples of another source, in storage order, numbered anew from 0.

A subset that is one range of samples holds no index array; any other holds 8 bytes a sample. It passes on what the
source can do: rows are read by the source under its own numbers, in one call; where the source's samples are runs of
bytes, so are the subset's, as long as the bytes from the first to the last of them are no more than its rows would
take, or lie in memory anyhow.

Shape letters: ``K`` samples asked for, ``M`` samples of the subset, ``N`` of the source.
"""

import hashlib
from collections.abc import Mapping
from typing import final

import numpy as np

from flodl_pipe.arrays import Array, ByteArray, IndexArray
from flodl_pipe.batch.ragged import Columns
from flodl_pipe.config.source_base import SubsetConfig
from flodl_pipe.errors import ConfigError, LoaderError, SourceError
from flodl_pipe.sources.delivery import delivery_of
from flodl_pipe.sources.index_sets import IndexSet, compact, select
from flodl_pipe.sources.ordering import Drawn, Mixed, Ordering
from flodl_pipe.sources.protocol import (
    BundledSource,
    Extents,
    Fact,
    Fingerprint,
    HasArtifacts,
    HasPlanes,
    RaggedSource,
    Source,
    is_dear,
)
from flodl_pipe.units import format_bytes, format_count

__all__ = ["Subset", "SubsetExtents", "apply_subset"]


def apply_subset(source: Source, config: SubsetConfig) -> "Subset":
    """Return the samples of a source that a config chooses.

    Args:
        source: The source, bundled or not.
        config: Section ``source.subset``.

    Raises:
        ConfigError: if a rule reaches beyond the samples, leaves none, or the source is a mixture.
        SourceError: if a file of indices cannot be used.
    """
    if isinstance(source, BundledSource) and isinstance(source.ordering, Mixed):
        raise ConfigError.at("source.subset", "a mixture has no subset of its own; set subset in its parts")
    chosen, words = select(len(source), config)
    return Subset(source, chosen, rule=words)


@final
class Subset:
    """Some samples of a source; a :class:`flodl_pipe.sources.protocol.BundledSource`, whatever the source is.

    Args:
        source: The source.
        indices: Its samples, ascending and distinct: a range, or int64 of shape ``(M,)``.
        rule: How they were chosen, in words.

    Raises:
        SourceError: if there is no index.
        ValueError: if indices do not ascend or are not all of the source.
    """

    def __init__(self, source: Source, indices: IndexSet, *, rule: str = "") -> None:
        num_samples = len(source)
        if not len(indices):
            raise SourceError(f"a subset of 0 of {format_count(num_samples)} samples; choose at least one")
        first, last = int(indices[0]), int(indices[-1])
        ascending = indices.step == 1 if isinstance(indices, range) else bool((indices[1:] > indices[:-1]).all())
        if not ascending or first < 0 or last >= num_samples:
            raise ValueError(
                f"indices of a subset must ascend and lie in 0 .. {num_samples - 1}, got {first} .. {last}"
            )
        self._source = source
        self._bundled = source if isinstance(source, BundledSource) else None
        self._indices: IndexSet = indices if isinstance(indices, range) else compact(np.array(indices, dtype=np.int64))
        self._rule = rule
        self.spec = source.spec
        self.delivered = source.delivered
        self.thread_safe = source.thread_safe
        self.is_dear = is_dear(source)
        self.delivery = delivery_of(source)
        held_bytes = 0 if isinstance(self._indices, range) else self._indices.nbytes
        self.held_bytes = held_bytes + (self._bundled.held_bytes if self._bundled else 0)
        self.tiers_off = self._bundled.tiers_off if self._bundled else None
        self.ordering = _scaled(self._bundled.ordering if self._bundled else None, len(self._indices), num_samples)
        self.extents = self._extents()

    def __len__(self) -> int:
        return len(self._indices)

    def read_into(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        """Read samples into rows of ``out``; see :meth:`flodl_pipe.sources.protocol.Source.read_into`."""
        if len(indices):
            self._source.read_into(_at(self._indices, indices), rows, out)

    def deliver(self, stored: Mapping[str, Array], out: Mapping[str, Array]) -> None:
        """Deliver as the source does; see :meth:`flodl_pipe.sources.protocol.Source.deliver`."""
        self._source.deliver(stored, out)

    def read_rows(self, indices: IndexArray) -> Columns:
        """Read ragged samples; see :meth:`flodl_pipe.sources.protocol.RaggedSource.read_rows`."""
        return self._ragged().read_rows(_at(self._indices, indices))

    def deliver_rows(self, stored: Columns) -> Columns:
        """Deliver as the source does; see :meth:`flodl_pipe.sources.protocol.RaggedSource.deliver_rows`."""
        return self._ragged().deliver_rows(stored)

    def buffers(self, num_rows: int) -> dict[str, Array]:
        """Return rows for :meth:`read_into`; see :meth:`flodl_pipe.sources.protocol.BundledSource.buffers`."""
        return self._bundled.buffers(num_rows) if self._bundled else self.spec.empty(num_rows)

    def fingerprint(self, *, full: bool = False) -> Fingerprint:
        """Return the identity of the source's content and of the choice of samples."""
        base = self._source.fingerprint(full=full)
        digest = hashlib.blake2b(f"subset/1|{base.digest}|".encode(), digest_size=16)
        if isinstance(self._indices, range):
            digest.update(f"range|{self._indices.start}|{self._indices.stop}".encode())
        else:
            digest.update(b"indices|")
            digest.update(self._indices.astype("<i8", copy=False).data)
        return Fingerprint(f"{base.summary}, {self._count()}", digest.hexdigest(), base.full, base.covers)

    def check_unchanged(self) -> None:
        """Compare the source's files with what they were; see :class:`flodl_pipe.sources.protocol.BundledSource`."""
        if self._bundled:
            self._bundled.check_unchanged()

    def facts(self) -> tuple[Fact, ...]:
        """Return what ``plan`` tells: what the source says, and how many samples were chosen by which rule."""
        rule = f": {self._rule}" if self._rule else ""
        facts = [*(self._bundled.facts() if self._bundled else ()), Fact("subset", f"{self._count()}{rule}")]
        if not isinstance(self._indices, range):
            facts.append(Fact("indices of the subset", f"{format_bytes(self._indices.nbytes)} of memory"))
        return tuple(facts)

    def artifacts(self) -> Mapping[str, str]:
        """Return what the source keeps beside a run; see :class:`flodl_pipe.sources.protocol.HasArtifacts`."""
        return self._source.artifacts() if isinstance(self._source, HasArtifacts) else {}

    def close(self) -> None:
        """Close the source's files; a later read opens them again."""
        if self._bundled:
            self._bundled.close()

    def _ragged(self) -> RaggedSource:
        if not isinstance(self._source, RaggedSource):
            raise LoaderError(f"no field of {self.spec} is ragged; such samples are read by read_into")
        return self._source

    def _count(self) -> str:
        return f"{format_count(len(self))} of {format_count(len(self._source))} samples"

    def _extents(self) -> Extents | None:
        extents = self._bundled.extents if self._bundled else None
        if extents is None:
            return None
        mapped = SubsetExtents(extents, self._indices)
        if extents.memory is None and mapped.planes is None and mapped.num_bytes > len(self) * self.spec.row_bytes:
            return None  # rows take less than everything between the first and the last of them
        return mapped


@final
class SubsetExtents:
    """Samples of a subset as runs of bytes; a :class:`flodl_pipe.sources.protocol.Extents`.

    The joined range is the source's from the first chosen sample's first byte to the last one's last.

    Args:
        extents: The source's.
        indices: The chosen samples.
    """

    def __init__(self, extents: Extents, indices: IndexSet) -> None:
        self._extents = extents
        self._indices = indices
        ends = extents.starts(np.array([indices[0], indices[-1]], dtype=np.int64))
        self._begin = int(ends[0])
        self.row_bytes = extents.row_bytes
        self.num_bytes = int(ends[1]) + extents.row_bytes - self._begin
        self.memory: ByteArray | None = None
        if extents.memory is not None:
            self.memory = extents.memory[self._begin : self._begin + self.num_bytes]
        self.planes: tuple[ByteArray, ...] | None = None
        if isinstance(extents, HasPlanes) and extents.planes is not None:
            rows = slice(self._begin // self.row_bytes, (self._begin + self.num_bytes) // self.row_bytes)
            self.planes = tuple(plane[rows] for plane in extents.planes)

    def starts(self, indices: IndexArray) -> IndexArray:
        """Return the first byte of each sample in the joined range, int64, shape ``(K,)``."""
        return self._extents.starts(_at(self._indices, indices)) - self._begin

    def read(self, start: int, out: ByteArray) -> None:
        """Fill ``out`` with the joined bytes from ``start`` on; see :class:`flodl_pipe.sources.protocol.Extents`."""
        if not 0 <= start <= self.num_bytes - len(out):
            raise SourceError(
                f"bytes {format_count(start)} .. {format_count(start + len(out))} lie outside the subset's "
                f"{format_count(self.num_bytes)} bytes"
            )
        self._extents.read(self._begin + start, out)


def _at(chosen: IndexSet, indices: IndexArray) -> IndexArray:
    """Return the source's numbers of samples of the subset.

    Raises:
        IndexError: if an index is not one of the subset.
    """
    # Seen as unsigned, a negative number is a huge one: one pass checks both ends.
    if len(indices) and int(indices.view(np.uint64).max()) >= len(chosen):
        raise IndexError(f"samples {indices.min()} .. {indices.max()} are not all in 0 .. {len(chosen) - 1}")
    return indices + chosen.start if isinstance(chosen, range) else chosen[indices]


def _scaled(ordering: Ordering, num_chosen: int, num_samples: int) -> Ordering:
    """Return the order of a subset: as many draws an epoch as its part of the samples."""
    if isinstance(ordering, Drawn):
        return Drawn(max(1, ordering.num_picks * num_chosen // num_samples))
    return ordering
