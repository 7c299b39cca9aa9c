"""Iterables of the user's as a stream: one lane per shard, begun anew every epoch.

Torch's ``IterableDataset``, lists, and any object with ``__iter__`` are taken. Samples look the same as those of
map-style datasets: one value, or a tuple, list, dict, NamedTuple or dataclass of values, of one shape or ragged up to
a length that is said (see :mod:`flodl_pipe.sources.stream_samples`). One Python step a sample is the price of such a
source.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import final

from flodl_pipe.arrays import Array
from flodl_pipe.batch.ragged import Columns
from flodl_pipe.errors import ConfigError, LoaderError, SourceError
from flodl_pipe.keyed.permute import ALGORITHM
from flodl_pipe.sources.protocol import Fact, Fingerprint
from flodl_pipe.sources.stream_blocks import BlockShuffle, block_rows
from flodl_pipe.sources.stream_iterate import SampleFeed
from flodl_pipe.sources.stream_protocol import LaneReader
from flodl_pipe.sources.stream_samples import SampleRows
from flodl_pipe.sources.stream_shards import Shard
from flodl_pipe.sources.user_access import type_name
from flodl_pipe.units import format_bytes, format_count

__all__ = ["IterableStream"]

_FINGERPRINT_ROWS = 4
_COUNT_ROWS = 1 << 16


@final
class IterableStream:
    """Samples of several iterables; a :class:`flodl_pipe.sources.stream_protocol.RaggedStream`.

    The layout of a sample is learned from the first one, which is read here. An iterable is begun anew for every epoch;
    an iterator serves one. With ``shuffle`` rows are permuted within blocks; the iterables themselves go on in their
    own order, and are told the epoch where they have ``set_epoch``.

    Args:
        shards: The iterables; every sample is in one of them. Ranks share them out, so their number is at least the
            number of ranks.
        shuffle_buffer: Samples that shuffling holds over all shards.
        max_length: Of each ragged field, by its name (``"0"``, ``"1"``, ... where values have none), the most that its
            first axis may have; a longer sample is an error when it is read. Other fields have one shape.

    Raises:
        LoaderError: if ``shards`` is no list of iterables, or ``max_length`` does not fit the first sample.
        ConfigError: if ``shuffle_buffer`` is impossible.
        SourceError: if no shard has a sample, or the first one cannot be part of a batch.
        Exception: what an iterable raises for its first sample, itself.
    """

    def __init__(
        self,
        shards: Sequence[Iterable[object]],
        *,
        shuffle_buffer: int = 1024,
        max_length: Mapping[str, int] | None = None,
    ) -> None:
        if not isinstance(shards, list | tuple) or not shards:
            raise LoaderError(
                f"shards must be a list of at least one iterable, got {type_name(shards)}; give [dataset] for a single "
                "one, or better one iterable for each part of the data, so that several ranks can share them out"
            )
        if shuffle_buffer < 1:
            raise ConfigError.at("shuffle_buffer", f"must be at least 1, got {shuffle_buffer}")
        if max_length is not None and not isinstance(max_length, Mapping):
            raise LoaderError(
                f"max_length must name fields and how long they may be, for example {{'ids': 512}}, got {max_length!r}"
            )
        self._shards = [Shard(iterable, number) for number, iterable in enumerate(shards)]
        self._rows = self._learn(max_length or {})
        self._digest = ""
        self._block_rows = block_rows(shuffle_buffer, len(shards))
        self.num_lanes = len(shards)
        self.spec, self.delivered = self._rows.spec, self._rows.delivered
        self.buffer_bytes = self.num_lanes * self._block_rows * self.spec.row_bytes
        self.tag = f"iterable/1 lanes={self.num_lanes} block={self._block_rows} {ALGORITHM}"
        lengths = [shard.num_samples() for shard in self._shards]
        known = [length for length in lengths if length is not None]
        self.num_samples_estimate = sum(known) if len(known) == len(lengths) else None

    def open_lane(self, lane: int, *, seed: int, epoch: int, shuffle: bool, mark: str = "") -> LaneReader:
        """Open a lane; see :meth:`flodl_pipe.sources.stream_protocol.Stream.open_lane`.

        Raises:
            SourceError: if the shard is an iterator that was begun before.
            Exception: what the iterable raises, itself, with a note of lane and row.
        """
        open_feed = partial(self._open_feed, lane, epoch if shuffle else 0)
        if not shuffle:
            return open_feed(mark)
        return BlockShuffle(open_feed, self.spec, self._block_rows, (seed, epoch, lane), mark)

    def count_lane(self, lane: int, *, seed: int, epoch: int, shuffle: bool) -> int:  # noqa: ARG002 - a block permutes
        """Return the rows of a lane; see :meth:`flodl_pipe.sources.stream_protocol.Stream.count_lane`."""
        if self._shard(lane).once:
            raise SourceError(
                f"{self._shard(lane).what} is an iterator, which gives its samples once: it cannot be counted before "
                "it is read, which several ranks need; give an iterable that can begin anew"
            )
        feed = self._open_feed(lane, epoch if shuffle else 0, "")
        total = 0
        while passed := feed.skip(_COUNT_ROWS):
            total += passed
        feed.close()
        return total

    def deliver(self, stored: Mapping[str, Array], out: Mapping[str, Array]) -> None:
        """Copy rows as they are; see :meth:`flodl_pipe.sources.protocol.Source.deliver`.

        Raises:
            LoaderError: if fields are ragged.
        """
        self._rows.deliver(stored, out)

    def deliver_rows(self, stored: Mapping[str, Array]) -> Columns:
        """Join ragged rows; see :meth:`flodl_pipe.sources.stream_protocol.RaggedStream.deliver_rows`."""
        return self._rows.deliver_rows(stored)

    def fingerprint(self, *, full: bool = False) -> Fingerprint:
        """Return what can be told without reading everything: types, fields, and each shard's first four samples.

        There is no content to read cheaply, so a change behind those is not seen, ``full`` or not. They are read once.
        """
        self._digest = self._digest or self._first_samples()
        names = ", ".join(dict.fromkeys(shard.name for shard in self._shards))
        summary = f"iterables: {self.num_lanes} shards ({names}), fields {self.spec}, first samples"
        return Fingerprint(summary, self._digest, full)

    def _first_samples(self) -> str:
        digest = hashlib.blake2b(
            f"iterables/1|{[shard.name for shard in self._shards]}|{self.spec}".encode(), digest_size=16
        )
        for lane, shard in enumerate(self._shards):
            samples = shard.head(_FINGERPRINT_ROWS)
            rows = self.spec.empty(len(samples))
            targets = self._rows.targets(rows)
            for row, sample in enumerate(samples):
                self._rows.write(sample, row, row, targets)
            digest.update(f"|{lane}:{len(samples)}|".encode())
            for field in rows.values():
                digest.update(field.tobytes())
        return digest.hexdigest()

    def facts(self) -> tuple[Fact, ...]:
        """Return what ``plan`` tells: shards, fields, buffers."""
        names = ", ".join(dict.fromkeys(shard.name for shard in self._shards))
        count = self.num_samples_estimate
        return (
            Fact("iterables", f"{self.num_lanes} ({names})"),
            Fact("samples", "not known before they are read" if count is None else format_count(count)),
            Fact("fields", str(self.delivered)),
            *([Fact("longest samples", self._rows.facts())] if self.delivered.is_ragged else []),
            Fact("lanes", f"{self.num_lanes}, blocks of {format_count(self._block_rows)} samples when shuffled"),
            Fact("buffers of all lanes", format_bytes(self.buffer_bytes)),
        )

    def check_unchanged(self) -> None:
        """Do nothing: what an iterable reads is its own."""

    def close(self) -> None:
        """Do nothing: nothing of an iterable is held between lanes."""

    def _learn(self, max_length: Mapping[str, int]) -> SampleRows:
        for shard in self._shards:
            for sample in shard.head(1):
                return SampleRows(sample, shard.name, max_length)
        raise SourceError(
            f"none of the {len(self._shards)} iterables has a sample; if they are iterators, they may be used up"
        )

    def _shard(self, lane: int) -> Shard:
        if not 0 <= lane < len(self._shards):
            raise IndexError(f"lane {lane} does not exist: there are {len(self._shards)}, numbered from 0")
        return self._shards[lane]

    def _open_feed(self, lane: int, epoch: int, mark: str) -> SampleFeed:
        shard = self._shard(lane)
        return SampleFeed(partial(shard.begin, epoch=epoch), self._rows, shard.what, shard.say_no_state, mark)
