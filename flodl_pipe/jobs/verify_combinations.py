"""The matrix of ``job=verify``: ways to read a stream, and where each reading is interrupted.

A *setting* is how a loader is built: way to serve, readers, and the ranks with their shares. A *combination* is a
setting and a kill: the steps after which everything is thrown away and built anew from the saved state, each time as
another setting if the key says so. Everything here is a function of the seed, so a combination can be run again by its
number.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np

from flodl_pipe.keyed.absorb import absorb, spread
from flodl_pipe.keyed.permute import permutation

__all__ = ["NUM_KILLS", "WAYS", "Combination", "Leg", "Setting", "Way", "choice", "legs", "settings"]

Way = Literal["resident", "streaming", "cached", "disk", "device", "device pool", "uploaded"]
"""A way to serve; :mod:`flodl_pipe.jobs.verify_ways` says what each is."""

WAYS: tuple[Way, ...] = ("resident", "streaming", "cached", "disk", "device", "device pool", "uploaded")

NUM_KILLS = 20
"""Kill points of each setting."""

_ON_DEVICE = ("device", "device pool", "uploaded")
_READERS = (0, 1, 4)
_WORLD_SIZES = (1, 2, 3, 5, 8)
_DOMAIN = 0x7E21F
_MAX_RATIO = 5


@final
@dataclass(frozen=True)
class Setting:
    """A way to read a stream.

    Attributes:
        way: Way to serve.
        readers: Reader threads of each rank.
        ratios: How much of each global batch each rank takes; ones for equal shares.
    """

    way: Way = "streaming"
    readers: int = 0
    ratios: tuple[int, ...] = (1,)

    @property
    def mode(self) -> Literal["resident", "streaming"]:
        """Mode that loaders are in."""
        return "resident" if self.way in ("resident", "device") else "streaming"

    @property
    def is_on_device(self) -> bool:
        """Whether batches are delivered to a simulated device."""
        return self.way in _ON_DEVICE

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.ratios)

    @property
    def is_equal(self) -> bool:
        """Whether all ranks take the same."""
        return len(set(self.ratios)) == 1

    def __str__(self) -> str:
        shares = "" if self.is_equal else f" shares={':'.join(map(str, self.ratios))}"
        return f"way={self.way} readers={self.readers} world={self.world_size}{shares}"


@final
@dataclass(frozen=True)
class Combination:
    """A setting and a kill.

    Attributes:
        number: Its place in the whole matrix.
        setting: How it begins.
        kill: Which of the :data:`NUM_KILLS` ways to interrupt it.
    """

    number: int
    setting: Setting
    kill: int

    def __str__(self) -> str:
        return f"combination {self.number} ({self.setting}, kill {self.kill})"


@final
@dataclass(frozen=True)
class Leg:
    """A part of a combination between two kills.

    Attributes:
        setting: How it is read.
        start: First step.
        stop: One past the last.
    """

    setting: Setting
    start: int
    stop: int


def settings(seed: int) -> tuple[Setting, ...]:
    """Return every setting: ways x readers x world sizes x equal and unequal shares."""
    worlds = [(1,) * world for world in _WORLD_SIZES] + [_unequal(world, seed) for world in _WORLD_SIZES if world > 1]
    return tuple(Setting(way, readers, ratios) for way in WAYS for readers in _READERS for ratios in worlds)


def choice(possible: Sequence[tuple[int, Setting]], seed: int) -> Iterator[Combination]:
    """Yield every combination once, in an order in which any first part touches all settings about equally.

    The ways take turns, so that also a few combinations have all of them.

    Args:
        possible: Settings that can be run, each with its place among all settings.
        seed: Another one is another order.
    """
    if not possible:
        return
    for turn in range(NUM_KILLS):
        shuffled = _shuffled(len(possible), seed, 0, turn)
        for place in _in_turns(shuffled, [possible[place][1].way for place in shuffled]):
            number, setting = possible[place]
            kill = _shuffled(NUM_KILLS, seed, 1, number)[turn]
            yield Combination(number * NUM_KILLS + kill, setting, kill)


def legs(
    combination: Combination, possible: Sequence[tuple[int, Setting]], num_steps: int, ends: Sequence[int], seed: int
) -> tuple[Leg, ...]:
    """Return where a combination is interrupted, and how it goes on.

    The first kills of a setting are where faults like to sit: before the first step and after it, before the last one,
    and around the ends of epochs. The rest are anywhere. One in two has a second kill, one in four a third.

    Args:
        combination: The combination.
        possible: Settings to go on with.
        num_steps: Steps of the stream that is compared.
        ends: Steps before each epoch's end that lies inside it.
        seed: As of :func:`choice`.
    """
    words = spread(absorb(_DOMAIN, seed, 2, combination.number), 9)
    corners = [1, *ends[:2], num_steps - 1, 0, *(end + 1 for end in ends[:1]), *(end - 1 for end in ends[:1])]
    corners = [step for step in dict.fromkeys(corners) if 0 <= step < num_steps]
    kills = [corners[combination.kill] if combination.kill < len(corners) else words[0] % num_steps]
    for more in range((words[1] % 4 >= 2) + (words[1] % 4 == 3)):
        kills.append(kills[-1] + words[2 + more] % (num_steps - kills[-1]))
    found = [Leg(combination.setting, 0, kills[0])]
    for place, start in enumerate(kills):
        word = words[4 + place]
        setting = combination.setting if word % 4 == 0 else possible[(word >> 8) % len(possible)][1]
        found.append(Leg(setting, start, kills[place + 1] if place + 1 < len(kills) else num_steps))
    return tuple(found)


def _in_turns(items: Sequence[int], ways: Sequence[Way]) -> list[int]:
    """Return items so that those of each way are spread evenly; of one way they keep their order."""
    seen: Counter[Way] = Counter()
    keys = []
    for way in ways:
        keys.append(seen[way])
        seen[way] += 1
    return [items[at] for at in sorted(range(len(items)), key=keys.__getitem__)]


def _unequal(world_size: int, seed: int) -> tuple[int, ...]:
    words = spread(absorb(_DOMAIN, seed, 3, world_size), world_size)
    ratios = [1 + word % _MAX_RATIO for word in words]
    if len(set(ratios)) == 1:
        ratios[0] = ratios[0] % _MAX_RATIO + 1
    return tuple(ratios)


def _shuffled(count: int, *key: int) -> list[int]:
    return [int(item) for item in permutation(count, _DOMAIN, *key).at(np.arange(count, dtype=np.int64))]
