"""The source contract: ``N`` samples of one spec, read by index.

``Source`` is all a loader needs, and all that a source of one's own must offer. ``BundledSource`` is what the bundled
sources offer on top: their bytes lie in files that can change, samples that are plain runs of those bytes can be kept
in memory without copying overlapping windows twice, and some have an order of their own.

Shape letters: ``K`` samples asked for, ``B`` rows of a buffer, ``N`` samples in the source.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, final, runtime_checkable

from flodl_pipe.arrays import Array, ByteArray, IndexArray
from flodl_pipe.batch.ragged import Columns
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.sources.ordering import Ordering

__all__ = [
    "BundledSource",
    "CopiedField",
    "CopiedFields",
    "Extents",
    "Fact",
    "Fingerprint",
    "HasArtifacts",
    "HasLengths",
    "HasPlanes",
    "HasPrice",
    "HasShards",
    "RaggedSource",
    "Source",
    "is_dear",
]


@final
@dataclass(frozen=True)
class Fingerprint:
    """Identity of a source's content: equal for moved or re-mounted bytes, different for changed ones.

    Attributes:
        summary: What the digest covers, in words (kind, sizes, dtype, window), so that a mismatch can be read.
        digest: Hexadecimal digest over sizes, layout and content blocks.
        full: Whether every byte was read (``verify``), or sizes and sampled blocks only.
        covers: What was read of the content, in words, when not all of it.
    """

    summary: str
    digest: str
    full: bool = False
    covers: str = "sizes, layout and blocks of the files"

    def __str__(self) -> str:
        return f"{self.summary} [{self.digest}]"


@final
@dataclass(frozen=True)
class Fact:
    """One line of what ``plan`` tells about a source, for example ``Fact("tokens", "4,194,304")``."""

    name: str
    value: str


@runtime_checkable
class Source(Protocol):
    """``N`` samples of one spec, read by index.

    A source is pure: the same index gives the same bytes, in every process and at any time.
    """

    spec: SampleSpec
    """The stored row, as tiers, grants and digests see it (narrow dtypes)."""

    delivered: SampleSpec
    """What a batch holds."""

    thread_safe: bool
    """Whether several threads may call :meth:`read_into` at once; if not, one reader does at a time."""

    def __len__(self) -> int:
        """Return the number of samples, ``N``."""
        ...

    def read_into(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        """Read samples into rows of the caller's buffers: ``out[field][rows[i]] = sample indices[i]``.

        Args:
            indices: Samples wanted, int64, shape ``(K,)``, each in ``[0, N)``; repeats are allowed.
            rows: Row that each goes to, int64, shape ``(K,)``.
            out: One C-contiguous array per field of ``spec``, shape ``(B, *field.shape)`` with ``B > max(rows)``.

        Raises:
            SourceError: if bytes are missing or damaged; the message names file and offset.
        """
        ...

    def deliver(self, stored: Mapping[str, Array], out: Mapping[str, Array]) -> None:
        """Turn stored rows into delivered rows: slicing and widening, in the one last copy.

        Pure and batched. Leading axes are arbitrary and equal in all arrays: a field of ``spec`` arrives as
        ``(*lead, *field.shape)``, a field of ``delivered`` leaves as ``(*lead, *field.shape)``, possibly strided.
        """
        ...

    def fingerprint(self, *, full: bool = False) -> Fingerprint:
        """Return the identity of the content; ``full`` reads every byte, otherwise sizes and sampled blocks."""
        ...


@runtime_checkable
class RaggedSource(Source, Protocol):
    """A source with ragged fields in its spec. It is read by :meth:`read_rows`; ``read_into`` refuses, aloud."""

    def read_rows(self, indices: IndexArray) -> Columns:
        """Return samples as stored, in the order asked for; the arrays are the caller's.

        Args:
            indices: Samples wanted, int64, shape ``(K,)``, each in ``[0, N)``; repeats are allowed.

        Raises:
            SourceError: if bytes are missing or damaged; the message names file and offset, or the sample.
        """
        ...

    def deliver_rows(self, stored: Columns) -> Columns:
        """Turn stored rows into delivered ones: slicing and widening."""
        ...


@runtime_checkable
class HasLengths(Protocol):
    """A source that knows how long each of its samples is, without reading them."""

    def lengths(self) -> IndexArray:
        """Return the length of each sample, int64, shape ``(N,)``."""
        ...


@runtime_checkable
class HasShards(Protocol):
    """A source whose samples lie in several files, or other runs that are cheap to read one after the other."""

    def shard_starts(self) -> IndexArray:
        """Return the first sample of each run, int64, rising from 0."""
        ...


class Extents(Protocol):
    """A source's samples as runs of ``row_bytes`` bytes in one joined byte range.

    The joined range is the data of all files in storage order, without headers. Samples may overlap in it, so it is
    what a memory tier keeps instead of one row per sample.
    """

    memory: ByteArray | None
    """The joined bytes where the source holds them in memory already, uint8, shape ``(num_bytes,)``; else None."""

    num_bytes: int
    """Length of the joined range."""

    row_bytes: int
    """Bytes of one sample; equals ``spec.row_bytes``. The stored row has exactly one field."""

    def starts(self, indices: IndexArray) -> IndexArray:
        """Return the first byte of each sample in the joined range, int64, shape ``(K,)``."""
        ...

    def read(self, start: int, out: ByteArray) -> None:
        """Fill ``out`` (uint8, 1-D, contiguous) with the joined bytes from ``start`` on, checked like samples are.

        Raises:
            SourceError: as :meth:`Source.read_into`.
        """
        ...


@runtime_checkable
class HasPlanes(Protocol):
    """Extents of a source that holds its rows in memory, but not as joined bytes: field by field."""

    planes: tuple[ByteArray, ...] | None
    """Consecutive columns of the joined range seen as rows of ``row_bytes``: uint8, ``num_rows x width`` each,
    C-contiguous. Every sample is one of those rows. None where they are not held so."""


class CopiedField(NamedTuple):
    """A delivered field as it lies in a stored row.

    Attributes:
        name: Its name.
        offset: First byte.
        dtype: NumPy name of an element's type there, little endian; its shape is the delivered one.
    """

    name: str
    offset: int
    dtype: str


@final
@dataclass(frozen=True)
class CopiedFields:
    """What a source says about how it delivers (``delivery``), when :meth:`Source.deliver` only copies fields.

    Then a memory tier may keep the fields apart, and deliver them by itself: each copied, or widened, from where it
    lies in the one stored field.

    Attributes:
        kind: Whatever else is to be equal for two sources to deliver alike.
        fields: The delivered fields, in order.
    """

    kind: object
    fields: tuple[CopiedField, ...]


@runtime_checkable
class BundledSource(Source, Protocol):
    """A source that can notice that its data changed, describe itself, and let go of its files."""

    extents: Extents | None
    """The samples as runs of bytes, or None where a sample is more than one run."""

    ordering: Ordering
    """How an epoch's picks come about: each sample once (None), or a rule of the source's own."""

    tiers_off: str | None
    """Why no memory tier may keep samples of this source, in words; None where they may."""

    held_bytes: int
    """Memory that the source itself holds data in: decoded files, index sets."""

    def buffers(self, num_rows: int) -> dict[str, Array]:
        """Return one array of ``num_rows`` rows per stored field, where :meth:`read_into` is quickest to read to.

        They belong to this thread and may be the same every time: use what was read before asking again.
        """
        ...

    def check_unchanged(self) -> None:
        """Compare the files with what they were when the source was built.

        Raises:
            ChangedError: naming the file.
        """
        ...

    def facts(self) -> tuple[Fact, ...]:
        """Return what ``plan`` should tell: counts, layout, what is left out and why."""
        ...

    def close(self) -> None:
        """Close the files open in this process; a later read opens them again."""
        ...


@runtime_checkable
class HasPrice(Protocol):
    """A source that says whether its samples are dear."""

    is_dear: bool
    """Whether each read of a sample may cost much, as one that is made by a user's Python: it is read once, when it is
    asked for, and never only to have it sooner."""


def is_dear(source: object) -> bool:
    """Return whether samples of a source are dear; see :class:`HasPrice`. Those of plain files are not."""
    return isinstance(source, HasPrice) and source.is_dear


@runtime_checkable
class HasArtifacts(Protocol):
    """A source with something to keep beside a run, without which its batches could not be read later."""

    def artifacts(self) -> Mapping[str, str]:
        """Return file names and their text, for example a vocabulary."""
        ...
