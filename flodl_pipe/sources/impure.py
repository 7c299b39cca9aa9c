"""Datasets that are random on purpose: augmentation inside ``__getitem__``, by the global generators.

Before every sample, torch's (of the CPU), NumPy's and Python's global generators are seeded by words of the pick's key
``(seed, epoch, sample, repeat)``. So what a sample is depends on its pick alone: it differs from epoch to epoch, and is
the same again for any number of readers, after a resume, and whatever was read before. Samples are read one by one for
that. Afterwards the generators are put back as they were: the user's process never sees a difference.

The generators belong to the process. Two threads inside such a dataset would draw from each other's, so it is read by
processes, or by the loop itself. A generator of the dataset's own (``numpy.random.default_rng()`` kept in an attribute)
is not seeded here: make it from the global one in ``__getitem__``, ``default_rng(numpy.random.randint(2**31))``.

Shape letters: ``K`` samples asked for, ``B`` rows of a buffer.
"""

import contextlib
import hashlib
import random
from collections.abc import Iterator, Mapping
from typing import Final, Protocol, final, runtime_checkable

import numpy as np
import torch

from flodl_pipe.arrays import Array, IndexArray, WordArray
from flodl_pipe.batch.ragged import Columns, Ragged
from flodl_pipe.errors import LoaderError
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.sources.delivery import delivery_of
from flodl_pipe.sources.door import UNREADABLE, Door
from flodl_pipe.sources.keyed_choice import keyed_choice
from flodl_pipe.sources.ordering import Ordering
from flodl_pipe.sources.protocol import BundledSource, Extents, Fact, Fingerprint, RaggedSource, Source
from flodl_pipe.units import format_count

__all__ = ["IMPURE_TIERS_OFF", "ImpureDataset", "ImpureSource", "as_impure", "generators_kept"]

IMPURE_TIERS_OFF: Final = "samples are random on purpose (source.pure=false): a kept one would stay the same for ever"
"""Why no memory tier keeps samples of an impure source."""

# First 64 fractional bits of the square root of 3: a stream that no name of a transform hashes to but by chance.
_STREAM: Final = 0xBB67AE8584CAA73B
_WORDS: Final = 8
_FINGERPRINT_SAMPLES = 16

# One at a time over all sources: the generators are the process's.
_door = Door(everybody=False)


@runtime_checkable
class ImpureSource(Source, Protocol):
    """A source whose samples depend on the pick: which appearance of a sample it is, in which epoch, by which seed.

    ``read_into`` and ``read_rows`` read pick 0 of epoch 0 with seed 0, which serves a fingerprint.
    """

    def read_picks(
        self,
        indices: IndexArray,
        repeats: IndexArray,
        epoch: int,
        seed: int,
        rows: IndexArray,
        out: Mapping[str, Array],
    ) -> None:
        """Read picks into rows of the caller's buffers; see :meth:`~.protocol.Source.read_into`.

        Args:
            indices: Samples wanted, int64, shape ``(K,)``.
            repeats: Which appearance of the sample each is, as :attr:`PickKeys.repeat`, int64, shape ``(K,)``.
            epoch: Epoch number.
            seed: Run seed.
            rows: Row that each goes to, int64, shape ``(K,)``.
            out: One array per field, shape ``(B, *field.shape)``.
        """
        ...

    def read_pick_rows(self, indices: IndexArray, repeats: IndexArray, epoch: int, seed: int) -> Columns:
        """Return picks of a source with ragged fields; see :meth:`~.protocol.RaggedSource.read_rows`."""
        ...


def as_impure(source: Source) -> "ImpureDataset":
    """Return a source, which reads the global generators, as an impure one.

    Raises:
        LoaderError: if it says that several threads may read it at once.
    """
    if isinstance(source, ImpureDataset):
        return source
    if source.thread_safe:
        raise LoaderError(
            "pure=False and thread_safe=True: a dataset that draws from the global generators cannot be read by "
            "several threads, which would draw from each other's; leave thread_safe, processes read it at once "
            "(reader_kind=process)"
        )
    return ImpureDataset(source)


@final
class ImpureDataset:
    """A source, sample by sample, with the global generators seeded per pick; an :class:`ImpureSource`.

    Args:
        source: Reads the dataset.

    Attributes:
        source: The same.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.spec, self.delivered = source.spec, source.delivered
        self.thread_safe = False
        self.is_dear = True
        self.extents: Extents | None = None
        self.ordering: Ordering = source.ordering if isinstance(source, BundledSource) else None
        self.tiers_off: str | None = IMPURE_TIERS_OFF
        self.held_bytes = source.held_bytes if isinstance(source, BundledSource) else 0
        self.delivery = delivery_of(source)

    def __len__(self) -> int:
        return len(self.source)

    def read_picks(
        self,
        indices: IndexArray,
        repeats: IndexArray,
        epoch: int,
        seed: int,
        rows: IndexArray,
        out: Mapping[str, Array],
    ) -> None:
        """Read picks; see :class:`ImpureSource`."""
        with generators_kept():
            for place, words in enumerate(_words(indices, repeats, epoch, seed)):
                _seed(words)
                self.source.read_into(indices[place : place + 1], rows[place : place + 1], out)

    def read_pick_rows(self, indices: IndexArray, repeats: IndexArray, epoch: int, seed: int) -> Columns:
        """Return ragged picks; see :class:`ImpureSource`."""
        source = self.source
        assert isinstance(source, RaggedSource)
        if not len(indices):
            return source.read_rows(indices)
        parts = []
        with generators_kept():
            for place, words in enumerate(_words(indices, repeats, epoch, seed)):
                _seed(words)
                parts.append(source.read_rows(indices[place : place + 1]))
        return {name: _joined([part[name] for part in parts]) for name in self.spec.names}

    def read_into(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        """Read pick 0 of epoch 0 with seed 0."""
        self.read_picks(indices, np.zeros_like(indices), 0, 0, rows, out)

    def read_rows(self, indices: IndexArray) -> Columns:
        """Return pick 0 of epoch 0 with seed 0."""
        return self.read_pick_rows(indices, np.zeros_like(indices), 0, 0)

    def deliver(self, stored: Mapping[str, Array], out: Mapping[str, Array]) -> None:
        """Deliver as the source does."""
        self.source.deliver(stored, out)

    def deliver_rows(self, stored: Columns) -> Columns:
        """Deliver as the source does."""
        return self.source.deliver_rows(stored) if isinstance(self.source, RaggedSource) else stored

    def buffers(self, num_rows: int) -> dict[str, Array]:
        """Return rows to read to, as the source does."""
        return self.source.buffers(num_rows) if isinstance(self.source, BundledSource) else self.spec.empty(num_rows)

    def fingerprint(self, *, full: bool = False) -> Fingerprint:
        """Return the identity of the samples, each as pick 0 of epoch 0 with seed 0."""
        count = len(self)
        summary = f"dataset, random per pick: {format_count(count)} samples of {self.spec}"
        layout = [(field.name, field.dtype, field.shape, field.is_ragged) for field in self.spec]
        digest = hashlib.blake2b(f"impure/1|{'full' if full else 'sampled'}|{count}|{layout}".encode(), digest_size=16)
        chosen = range(count) if full else keyed_choice(count, min(count, _FINGERPRINT_SAMPLES)).tolist()
        for index in chosen:
            digest.update(self._bytes_of(index))
        return Fingerprint(summary, digest.hexdigest(), full, "their number, their fields, and some of the samples")

    def _bytes_of(self, index: int) -> bytes:
        """Return lengths and bytes of a sample; a sample that cannot be read counts as such."""
        indices = np.array([index], dtype=np.int64)
        try:
            if self.spec.is_ragged:
                columns = self.read_rows(indices)
            else:
                out = self.spec.empty(1)
                self.read_into(indices, np.zeros(1, dtype=np.int64), out)
                columns = dict(out)
        except Exception:  # noqa: BLE001 - whatever it is: it shows again where the sample is read
            return UNREADABLE
        values = [columns[name] for name in self.spec.names]
        return b"".join(
            f"|{len(one.values)}|".encode() + one.values.tobytes() if isinstance(one, Ragged) else one.tobytes()
            for one in values
        )

    def check_unchanged(self) -> None:
        """Compare with what it was, as the source does."""
        if isinstance(self.source, BundledSource):
            self.source.check_unchanged()

    def facts(self) -> tuple[Fact, ...]:
        """Return what ``plan`` tells."""
        own = self.source.facts() if isinstance(self.source, BundledSource) else ()
        return (*own, Fact("pure", "false: global generators are seeded per pick, samples are kept nowhere"))

    def close(self) -> None:
        """Close what the source has open."""
        if isinstance(self.source, BundledSource):
            self.source.close()


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """Use torch's, NumPy's and Python's global generators alone, and put them back as they were."""
    with _door.inside():
        of_torch, of_python = torch.get_rng_state(), random.getstate()
        of_numpy = np.random.get_state()  # noqa: NPY002 - the global generator is the one that datasets draw from
        try:
            yield
        finally:
            torch.set_rng_state(of_torch)
            random.setstate(of_python)
            np.random.set_state(of_numpy)  # noqa: NPY002 - as above


def _words(indices: IndexArray, repeats: IndexArray, epoch: int, seed: int) -> WordArray:
    """Return the words that seed each pick, uint64 below 2**32, shape ``(K, 8)``."""
    return PickKeys(indices, repeats, epoch, seed, _STREAM).words(_WORDS)


def _seed(words: WordArray) -> None:
    """Seed the global generators with the words of a pick."""
    first, second = words[:2].tolist()
    # Not torch.manual_seed, which queues a call for every accelerator that is not in use yet, each time.
    torch.default_generator.manual_seed(first << 32 | second)
    np.random.seed(words[2:6].astype(np.uint32))  # noqa: NPY002 - as above
    random.seed(int(words[6]) << 32 | int(words[7]))


def _joined(parts: list[Array | Ragged]) -> Array | Ragged:
    """Return the rows of several columns in one."""
    ragged = [part for part in parts if isinstance(part, Ragged)]
    if not ragged:
        return np.concatenate([part for part in parts if not isinstance(part, Ragged)])
    offsets = np.zeros(len(ragged) + 1, dtype=np.int64)
    np.cumsum([len(part.values) for part in ragged], out=offsets[1:])
    return Ragged(np.concatenate([part.values for part in ragged]), offsets)
