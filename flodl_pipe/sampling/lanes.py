"""A shuffle in which a rank meets the same samples every epoch, and the sequence still knows nothing of ranks.

Samples are dealt once into ``V`` lanes. An epoch shuffles each lane by itself, and takes ``m`` rows of each in turn::

    storage   | 0 1 2 3 | 4 5 6 7 | 8 9 ...        stripes of V samples, here 4
    dealt     | 3 1 0 2 | 4 6 5 7 | ...            each turned by a keyed number of places: one sample to each lane
    lanes       3 4 .. | 1 6 .. | 0 5 .. | 2 7 ..  the same in every epoch
    shuffled    4 3 .. | 1 6 .. | 5 0 .. | 7 2 ..  each by a key of the lane and the epoch
    epoch     | 4 1 5 7 | 3 6 0 2 | ...            blocks of m rows of lane 0, m of lane 1, ...; here m = 1

A block is a global batch of the run's first start, so a rank's share of it, cut between lanes, is some lanes as a
whole, the same in every step: what a rank keeps in its tiers it asks for again. Which ranks there are, and what share
each has, decides who takes which lanes, and nothing else.

What fills no block stands at the end: a block of fewer rows, and then what the first lanes have more than the others.

A lane has one sample of each stripe: it comes from all over the data, whatever that is sorted by. Places of a stripe go
to lanes in a keyed order, so that neighbours in storage, which may be alike, go to any ranks.

The values are pinned by golden tests; another algorithm needs another :data:`ALGORITHM`, which is part of the tag.

Shape letters: ``N`` samples, ``K`` positions asked for, ``V`` lanes, ``m`` rows of a lane in a block.
"""

import re
from typing import NamedTuple, final

import numpy as np

from flodl_pipe.arrays import IndexArray, WordArray
from flodl_pipe.keyed.absorb import absorb, absorb_words
from flodl_pipe.keyed.permute import ALGORITHM as SHUFFLE
from flodl_pipe.keyed.permute import MAX_ITEMS, permutation
from flodl_pipe.keyed.permute_many import ALGORITHM as SHUFFLES
from flodl_pipe.keyed.permute_many import MAX_MEMBERS, permutations
from flodl_pipe.sampling.orders import EpochOrder

__all__ = ["ALGORITHM", "Deal", "LaneConstants", "LanesOrder", "constants_in"]

ALGORITHM = "c1"
"""Name of the values this module produces; part of every cursor."""

_TURNS_DOMAIN, _PLACES_DOMAIN, _ROWS_DOMAIN = 0x1A9E, 0x1A9F, 0x1A90
_CONSTANTS = re.compile(rf"lanes {ALGORITHM} .*\blanes=([1-9][0-9]*) rows=([1-9][0-9]*) ")


class LaneConstants(NamedTuple):
    """What is fixed when a run starts first.

    Attributes:
        num_lanes: ``V``.
        rows: Rows of a lane in a block, ``m``.
    """

    num_lanes: int
    rows: int


def constants_in(tag: str) -> LaneConstants | None:
    """Return the constants that the tag of a :class:`LanesOrder` names; None for another order's tag.

    >>> constants_in(LanesOrder(100, 42, num_lanes=8, rows=2).tag)
    LaneConstants(num_lanes=8, rows=2)
    """
    found = _CONSTANTS.match(tag)
    return LaneConstants(int(found[1]), int(found[2])) if found else None


@final
class Deal:
    """Which lane has which sample: one of each stripe of ``V`` samples; of a last, short stripe only the first lanes.

    Holds 16 bytes a lane, up to 65,536 lanes, and nothing above.

    Args:
        num_samples: ``N``.
        num_lanes: ``V``, at most ``N``.
        seed: Run seed.

    >>> deal = Deal(9, 4, 42)
    >>> lanes = deal.lanes_of(np.arange(9))
    >>> sorted(lanes[:4].tolist()), int(lanes[8]), deal.samples_at(lanes, np.arange(9) // 4).tolist()
    ([0, 1, 2, 3], 0, [0, 1, 2, 3, 4, 5, 6, 7, 8])
    """

    def __init__(self, num_samples: int, num_lanes: int, seed: int) -> None:
        self.num_samples = num_samples
        self.num_lanes = num_lanes
        self.num_stripes, self.last_stripe = divmod(num_samples, num_lanes)
        self._key = absorb(_TURNS_DOMAIN, num_samples, num_lanes, seed)
        self._lanes = permutation(num_lanes, _PLACES_DOMAIN, num_samples, seed)

    def lanes_of(self, samples: IndexArray) -> IndexArray:
        """Return the lane of samples, int64, shape ``(K,)``; its row is ``sample // V``."""
        rows, places = np.divmod(samples, self.num_lanes)
        sizes = self._sizes(rows)
        places += self._turns(rows, sizes)
        places -= np.where(places >= sizes, sizes, 0)
        lanes = self._lanes.at(places)
        return lanes if isinstance(sizes, int) else np.where(rows < self.num_stripes, lanes, places)

    def samples_at(self, lanes: IndexArray, rows: IndexArray) -> IndexArray:
        """Return the sample in a row of a lane, int64, shape ``(K,)``."""
        sizes = self._sizes(rows)
        places = self._lanes.inverse(lanes)
        if not isinstance(sizes, int):
            places = np.where(rows < self.num_stripes, places, lanes)
        places -= self._turns(rows, sizes)
        places += np.where(places < 0, sizes, 0)
        places += rows * self.num_lanes
        return places

    def _sizes(self, rows: IndexArray) -> IndexArray | int:
        """Return how many samples stripes have, int64, shape ``(K,)``; a number where all have as many."""
        if not len(rows) or not self.last_stripe or int(rows.max()) < self.num_stripes:
            return self.num_lanes
        return np.where(rows < self.num_stripes, self.num_lanes, self.last_stripe)

    def _turns(self, rows: IndexArray, sizes: IndexArray | int) -> IndexArray:
        """Return by how many places stripes are turned, int64, shape ``(K,)``; less than their sizes."""
        words: WordArray = absorb_words(self._key, rows.view(np.uint64))
        words >>= np.uint64(32)
        words *= np.uint64(sizes) if isinstance(sizes, int) else sizes.view(np.uint64)
        words >>= np.uint64(32)
        return words.view(np.int64)


@final
class LanesOrder:
    """A shuffle inside lanes, keyed by ``(seed, epoch)``; which sample is in which lane is keyed by the seed alone.

    Args:
        num_samples: ``N``.
        seed: Run seed, ``0 <= seed < 2**64``; held for the whole run.
        num_lanes: ``V``, 1 to ``N`` and at most 2**31.
        rows: Rows of a lane in a block, ``m``, at least 1.
        num_repeats: How often each sample comes in an epoch. Its repeats are in one lane.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(self, num_samples: int, seed: int, *, num_lanes: int, rows: int, num_repeats: int = 1) -> None:
        if num_samples < 1 or num_repeats < 1 or num_samples * num_repeats > MAX_ITEMS:
            raise ValueError(f"an order needs 1 to 2**62 picks, got {num_samples} samples x {num_repeats} repeats")
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"seed must be in 0 .. 2**64 - 1, got {seed}")
        if not 1 <= num_lanes <= min(num_samples, MAX_MEMBERS):
            raise ValueError(f"lanes must be 1 to the {num_samples} samples, and at most 2**31, got {num_lanes}")
        if rows < 1:
            raise ValueError(f"a block needs at least 1 row of each lane, got {rows}")
        self.num_picks = num_samples * num_repeats
        self.num_repeats: int | None = num_repeats
        self.seed = seed
        self.deal = Deal(num_samples, num_lanes, seed)
        self.num_lanes = num_lanes
        self.rows = rows
        augmented = f" augment={num_repeats}" if num_repeats > 1 else ""
        self.tag = (
            f"lanes {ALGORITHM} {SHUFFLE} {SHUFFLES} picks={self.num_picks}{augmented} lanes={num_lanes} rows={rows} "
            f"seed={seed}"
        )

    @property
    def block(self) -> int:
        """Positions of a block, ``V * m``."""
        return self.num_lanes * self.rows

    @property
    def held_bytes(self) -> int:
        """Bytes held for the whole run, and by an epoch: three words for each lane."""
        return 24 * self.num_lanes

    def epoch(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch; see :class:`flodl_pipe.sampling.orders.Order`."""
        if not 0 <= epoch < 1 << 64:
            raise ValueError(f"epoch must be in 0 .. 2**64 - 1, got {epoch}")
        return _LanesEpoch(self, epoch)


class _Stretch(NamedTuple):
    """Positions ``begin .. end - 1``, where each lane gives ``width`` of its rows at a time.

    Attributes:
        begin: First position.
        end: One past the last.
        first_row: First row of a lane here.
        width: Rows of a lane that follow each other.
        block: Positions of one turn through the lanes.
    """

    begin: int
    end: int
    first_row: int
    width: int
    block: int


@final
class _LanesEpoch:
    def __init__(self, order: LanesOrder, epoch: int) -> None:
        deal, repeats = order.deal, order.num_repeats or 1
        self._num_picks, self._repeats, self._deal = order.num_picks, repeats, deal
        lane_rows = deal.num_stripes * repeats
        self._shuffles = permutations(
            *(order.num_lanes, lane_rows, _ROWS_DOMAIN, order.seed, epoch),
            num_larger=deal.last_stripe,
            step=repeats,
        )
        blocks, rest = divmod(lane_rows, order.rows)
        in_blocks, in_lanes = blocks * order.block, lane_rows * order.num_lanes
        stretches = (
            _Stretch(0, in_blocks, 0, order.rows, order.block),
            _Stretch(in_blocks, in_lanes, blocks * order.rows, rest, rest * order.num_lanes),
            _Stretch(in_lanes, order.num_picks, lane_rows, repeats, repeats * deal.last_stripe),
        )
        self._stretches = tuple(stretch for stretch in stretches if stretch.begin < stretch.end)

    def at(self, start: int, stop: int) -> IndexArray:
        if not 0 <= start <= stop <= self._num_picks:
            raise ValueError(f"positions {start} .. {stop} do not lie within the epoch of {self._num_picks} picks")
        return self.pick(np.arange(start, stop, dtype=np.int64))

    def pick(self, positions: IndexArray) -> IndexArray:
        lanes, rows = np.empty_like(positions), np.empty_like(positions)
        for stretch in self._stretches:
            here = _within(positions, stretch.begin, stretch.end)
            if here is None:
                continue
            blocks, offsets = np.divmod(positions[here] - stretch.begin, stretch.block)
            lanes[here], within = np.divmod(offsets, stretch.width)
            rows[here] = blocks * stretch.width + within + stretch.first_row
        items = self._shuffles.at(lanes, rows)
        if self._repeats == 1:
            return self._deal.samples_at(lanes, items)
        stripes, repeats = np.divmod(items, self._repeats)
        picks = self._deal.samples_at(lanes, stripes)
        picks *= self._repeats
        picks += repeats
        return picks

    def where(self, picks: IndexArray) -> IndexArray:
        samples, repeats = np.divmod(picks, self._repeats)
        lanes = self._deal.lanes_of(samples)
        rows = self._shuffles.inverse(lanes, samples // self._deal.num_lanes * self._repeats + repeats)
        positions = np.empty_like(rows)
        for stretch in self._stretches:
            turns = (stretch.end - stretch.begin) // stretch.block
            here = _within(rows, stretch.first_row, stretch.first_row + turns * stretch.width)
            if here is None:
                continue
            blocks, within = np.divmod(rows[here] - stretch.first_row, stretch.width)
            positions[here] = blocks * stretch.block + lanes[here] * stretch.width + within + stretch.begin
        return positions


def _within(numbers: IndexArray, begin: int, end: int) -> IndexArray | slice | None:
    """Return where numbers lie in a range: all, or some; None where none does."""
    # Seen as unsigned, what lies before the range is huge as well.
    inside = (numbers - begin).view(np.uint64) < end - begin
    count = int(np.count_nonzero(inside))
    if count == len(numbers):
        return slice(None) if count else None
    return np.flatnonzero(inside) if count else None
