"""The order of a mixture: parts in exact proportions, each in passes of its own, over the whole run.

A run's positions are numbered through, over all epochs (``epoch * num_picks + position``), and cut into blocks. Every
block holds each part exactly as often as its quota says (:mod:`flodl_pipe.sampling.mixture_blocks`); which quotas hold
is a matter of the block's number (:mod:`flodl_pipe.sampling.mixture_schedule`), and so is how often each part was drawn
before it. That number is the draw, and what a draw is, is the part's business
(:mod:`flodl_pipe.sampling.part_passes`)::

    position --> block, place --> part, which of the block's --> draw of the part --> its pass, its sample

Everything is a function of the position: nothing is advanced, and a place far into the run costs what the first one
costs. In blocks of 8,192 positions and parts of 10**8 samples an index takes 46 ns with 2 parts, 79 with 8, 200 with
32, and 14 in a uniform shuffle: some 16 ns are the block's, the rest is the shuffle of each part, which costs 60 to 100
us a call whatever is asked of it. A step of 256 rows pays 20 us (2-core AMD EPYC, 2026-11-29,
``tests/benchmarks/mixture.py``).

The values are pinned by golden tests; another algorithm needs another :data:`ALGORITHM`, which is part of the tag.
"""

import copy
from collections.abc import Sequence
from typing import NoReturn, final

import numpy as np

from flodl_pipe.arrays import IndexArray
from flodl_pipe.errors import LoaderError, SourceError
from flodl_pipe.keyed.permute import MAX_ITEMS
from flodl_pipe.sampling.mixture_blocks import Arrangements
from flodl_pipe.sampling.mixture_rules import PartOf, WeightsFrom, changes, check_mixture
from flodl_pipe.sampling.mixture_schedule import Schedule, Segment
from flodl_pipe.sampling.orders import EpochOrder
from flodl_pipe.sampling.part_passes import PartPasses

__all__ = ["ALGORITHM", "MixtureOrder"]

ALGORITHM = "mix1"
"""Name of the values this module produces; part of every cursor."""

_ARRANGEMENTS_KEPT = 4


@final
class MixtureOrder:
    """Parts in exact proportions; a :class:`flodl_pipe.sampling.orders.Order`.

    A pick is a sample of the joined index space. Picks may repeat within an epoch, and need not cover it.

    Args:
        parts: The parts, in the order of the joined index space.
        schedule: Weights over the run, ascending, the first at 0. They take effect at the first block that begins at
            or after their place.
        block: Positions within which the proportions are exact.
        num_picks: Positions of an epoch, a multiple of ``block``.
        seed: Run seed, ``0 <= seed < 2**64``.
        shuffle: Whether places of a block and samples of a part are in keyed order; otherwise parts are evenly
            interleaved and each is in storage order.

    Raises:
        ConfigError: if block, picks, parts or weights are impossible.
    """

    def __init__(
        self,
        parts: Sequence[PartOf],
        schedule: Sequence[WeightsFrom],
        *,
        block: int,
        num_picks: int,
        seed: int,
        shuffle: bool = True,
    ) -> None:
        check_mixture(parts, block=block, num_picks=num_picks, seed=seed, shuffle=shuffle)
        self.num_picks = num_picks
        self.num_repeats: int | None = None
        self.block = block
        self._parts = tuple(parts)
        self._planned = self._schedule = Schedule(changes(parts, schedule, block))
        self._seed = seed if shuffle else None
        sizes = [part.num_samples for part in parts]
        self._starts = [sum(sizes[:number]) for number in range(len(sizes))]
        self._passes = [
            PartPasses(part.num_samples, number, seed, shuffle=shuffle, drawn=part.drawn)
            for number, part in enumerate(parts)
        ]
        # Replaced as a whole, so that threads need no lock: at worst two of them make the same arrangements.
        self._kept: tuple[Arrangements, ...] = ()
        named = ",".join(f"{part.name}={part.num_samples}{' drawn' if part.drawn else ''}" for part in parts)
        order = f"seed={seed}" if shuffle else "sequential"
        self.tag = f"mixture {ALGORITHM} parts={named} block={block} picks={num_picks} {order}"

    def epoch(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch; see :class:`flodl_pipe.sampling.orders.Order`.

        Raises:
            ValueError: if the epoch is negative, or ends beyond 2**62 positions of the run.
        """
        if not 0 <= epoch < MAX_ITEMS // self.num_picks:
            raise ValueError(
                f"epoch must be in 0 .. {MAX_ITEMS // self.num_picks - 1} with {self.num_picks} picks each, got {epoch}"
            )
        return _MixtureEpoch(self, epoch * self.num_picks)

    def at(self, places: IndexArray) -> IndexArray:
        """Return the samples at positions of the whole run, int64, shape ``(K,)``.

        Raises:
            SourceError: if a part may not be gone through as often as that.
        """
        if not len(places):
            return places.copy()
        blocks, offsets = np.divmod(places, self.block)
        first, last = self._schedule.find(int(blocks.min())), self._schedule.find(int(blocks.max()))
        if first == last:
            return self._within(self._schedule.segments[first], blocks, offsets)
        samples = np.empty_like(places)
        which = self._schedule.find_each(blocks)
        for number in np.unique(which).tolist():
            here = np.flatnonzero(which == number)
            samples[here] = self._within(self._schedule.segments[number], blocks[here], offsets[here])
        return samples

    def counts(self, epoch: int, position: int) -> tuple[int, ...]:
        """Return how often each part was drawn before a position of an epoch, over the whole run."""
        block, offset = divmod(epoch * self.num_picks + position, self.block)
        segment = self._schedule.segments[self._schedule.find(block)]
        inside = self._arrangements(segment.quotas).counts(block, offset) if offset else (0,) * len(self._parts)
        return tuple(map(sum, zip(segment.draws_before(block), inside, strict=True)))

    def history(self, position: int) -> str:
        """Return the weights up to a position of the whole run, as the cursor keeps them."""
        return self._schedule.history(position, self.block)

    def with_history(self, history: str, position: int) -> "MixtureOrder":
        """Return the order of a run that was saved at a position of the whole run, and has this order's future.

        What is past stays as it was served. The weights that this order was made with for the next block's start apply
        from there on, and its later changes after that; every part goes on where it was. A history that this order got
        itself plays no part.

        Raises:
            ResumeError: if the history is damaged or not of this mixture.
        """
        resumed = copy.copy(self)
        resumed._schedule = self._planned.resumed(history, position, self.block, len(self._parts))  # noqa: SLF001 - of this class
        return resumed

    def runs_out(self) -> tuple[int, int] | None:
        """Return the first position of the run that no sample is left for, and the part that it belongs to."""
        found = [(self._last_place(number), number) for number in range(len(self._parts))]
        return min(((place, number) for place, number in found if place is not None), default=None)

    def check_epochs(self, num_epochs: int) -> None:
        """Refuse a run that some part's ``max_epochs`` does not suffice for.

        Raises:
            SourceError: naming part, limit, and the position at which it runs out.
        """
        end = self.runs_out()
        if end is not None and end[0] < num_epochs * self.num_picks:
            raise self._exhausted()

    def _within(self, segment: Segment, blocks: IndexArray, offsets: IndexArray) -> IndexArray:
        parts, seen = self._arrangements(segment.quotas).at(blocks, offsets)
        quotas, before = np.array([segment.quotas, segment.before], dtype=np.int64)
        blocks = blocks - segment.first_block
        draws = seen
        draws += blocks * quotas[parts]
        draws += before[parts]
        samples = np.empty_like(draws)
        by_part = np.argsort(parts.astype(np.uint16), kind="stable")
        draws = draws[by_part]
        end = 0
        for number, count in enumerate(np.bincount(parts, minlength=len(self._parts)).tolist()):
            begin, end = end, end + count
            if count:
                samples[by_part[begin:end]] = self._draw(number, draws[begin:end])
        return samples

    def _draw(self, number: int, draws: IndexArray) -> IndexArray:
        limit = self._parts[number].max_epochs
        if limit is not None and int(draws.max()) >= limit * self._parts[number].num_samples:
            raise self._exhausted()
        samples = self._passes[number].at(draws)
        samples += self._starts[number]
        return samples

    def _arrangements(self, quotas: tuple[int, ...]) -> Arrangements:
        for kept in self._kept:
            if kept.quotas == quotas:
                return kept
        made = Arrangements(quotas, self._seed)
        self._kept = (made, *self._kept[: _ARRANGEMENTS_KEPT - 1])
        return made

    def _last_place(self, number: int) -> int | None:
        """Return the first position that a part has no sample for; None if it never runs out."""
        part = self._parts[number]
        if part.max_epochs is None:
            return None
        left = part.max_epochs * part.num_samples
        segments = self._schedule.segments
        ends = [segment.before[number] for segment in segments[1:]]
        for segment, end in zip(segments, [*ends, None], strict=True):
            if segment.quotas[number] and (end is None or end > left):
                blocks, which = divmod(left - segment.before[number], segment.quotas[number])
                block = segment.first_block + blocks
                return block * self.block + self._arrangements(segment.quotas).place_of(block, number, which)
        return None

    def _exhausted(self) -> SourceError:
        place, number = self.runs_out() or (0, 0)
        part = self._parts[number]
        epoch, position = divmod(place, self.num_picks)
        return SourceError(
            f"the mixture's part '{part.name}' is exhausted after {place:,} samples of the run (epoch {epoch}, "
            f"position {position:,}): max_epochs={part.max_epochs} allows that many passes over its "
            f"{part.num_samples:,} samples; raise source.parts.{part.name}.max_epochs, lower its weight from there on "
            "with source.schedule, give it more data, or train for fewer steps"
        )


@final
class _MixtureEpoch:
    def __init__(self, order: MixtureOrder, start: int) -> None:
        self._order = order
        self._start = start

    def at(self, start: int, stop: int) -> IndexArray:
        if not 0 <= start <= stop <= self._order.num_picks:
            raise ValueError(
                f"positions {start} .. {stop} do not lie within the epoch of {self._order.num_picks} picks"
            )
        return self._order.at(np.arange(self._start + start, self._start + stop, dtype=np.int64))

    def pick(self, positions: IndexArray) -> IndexArray:
        return self._order.at(positions + self._start)

    def where(self, picks: IndexArray) -> NoReturn:
        raise LoaderError(
            f"{len(picks)} picks were to be found in the order of a mixture, where a sample may stand at several "
            "positions of an epoch or at none; ask for the samples at positions instead"
        )
