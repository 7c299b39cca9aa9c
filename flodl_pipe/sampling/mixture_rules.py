"""What a mixture may be made of: the rules for parts, blocks and weights, and what they are called in a config."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Protocol

from flodl_pipe.config.proportions import quotas, smallest_block
from flodl_pipe.errors import ConfigError
from flodl_pipe.keyed.permute import MAX_ITEMS
from flodl_pipe.sampling.mixture_blocks import MAX_BLOCK, MAX_TABLE

__all__ = ["PartOf", "WeightsFrom", "changes", "check_mixture"]


class PartOf(Protocol):
    """What the order has to know of a part; :class:`flodl_pipe.sources.ordering.MixedPart` is one."""

    @property
    def name(self) -> str:
        """What the user calls it."""
        ...

    @property
    def num_samples(self) -> int:
        """Its samples; in the joined index space the parts follow each other."""
        ...

    @property
    def drawn(self) -> bool:
        """Whether its samples are drawn with replacement."""
        ...

    @property
    def max_epochs(self) -> int | None:
        """Passes over it that may be made in the whole run; None: no limit."""
        ...


class WeightsFrom(Protocol):
    """Weights from a place of the run on; :class:`flodl_pipe.sources.ordering.Weights` is one."""

    @property
    def at(self) -> int:
        """Samples of the whole run before them; they take effect at the next block."""
        ...

    @property
    def weights(self) -> tuple[Fraction, ...]:
        """One per part, at least 0, not all 0."""
        ...


def check_mixture(parts: Sequence[PartOf], *, block: int, num_picks: int, seed: int, shuffle: bool) -> None:
    """Refuse what no mixture can be made of.

    Args:
        parts: The parts.
        block: Positions of a block.
        num_picks: Positions of an epoch.
        seed: Run seed.
        shuffle: Whether the order is keyed.

    Raises:
        ConfigError: with the key that is wrong.
    """
    if not 0 <= seed < 1 << 64:
        raise ConfigError.at("sampling.seed", f"must be in 0 .. 2**64 - 1, got {seed}")
    if not parts:
        raise ConfigError.at("source.parts", "a mixture needs at least one part, got none")
    if not 1 <= block <= MAX_BLOCK or block * len(parts) > MAX_TABLE:
        most = min(MAX_BLOCK, MAX_TABLE // len(parts))
        raise ConfigError.at("source.block", f"must be from 1 to {most} with {len(parts)} parts, got {block}")
    if num_picks < 1 or num_picks % block or num_picks > MAX_ITEMS:
        below = num_picks // block * block
        raise ConfigError.at(
            "source.epoch_samples",
            f"must be a multiple of the block of {block}, got {num_picks}; use {below or block} or {below + block}",
        )
    for part in parts:
        key = f"source.parts.{part.name}"
        if not 1 <= part.num_samples <= MAX_ITEMS:
            raise ConfigError.at(key, f"a part needs 1 to 2**62 samples, got {part.num_samples}")
        if part.drawn and not shuffle:
            raise ConfigError.at(
                "sampling.shuffle",
                f"false asks for storage order, but the part '{part.name}' draws its samples at random, with "
                "replacement; leave sampling.shuffle at true, or have the part read each sample once",
            )
        if part.max_epochs is not None and (part.drawn or part.max_epochs < 1):
            rule = "has no meaning for a part that is drawn with replacement" if part.drawn else "must be at least 1"
            raise ConfigError.at(f"{key}.max_epochs", f"{rule}, got {part.max_epochs}; leave it null")


def changes(parts: Sequence[PartOf], schedule: Sequence[WeightsFrom], block: int) -> list[tuple[int, tuple[int, ...]]]:
    """Return first block and quotas of each entry of a schedule.

    Args:
        parts: The parts.
        schedule: Weights over the run, ascending, the first at 0.
        block: Positions of a block.

    Raises:
        ConfigError: if places do not ascend by blocks, or a part with a weight has no place in a block.
    """
    found: list[tuple[int, tuple[int, ...]]] = []
    for number, entry in enumerate(schedule):
        first_block = -(-entry.at // block)
        follows = first_block > found[-1][0] if found else entry.at == 0
        if not follows or len(entry.weights) != len(parts):
            raise ConfigError.at(
                "source.schedule",
                f"entry {number} of the weights begins at {entry.at} and has {len(entry.weights)} weights; the first "
                f"begins at 0, each later one at least a block of {block} after the one before, with a weight for each "
                f"of the {len(parts)} parts",
            )
        places = _quotas(parts, entry, block)
        found.append((first_block, places))
    if not found:
        raise ConfigError.at("source.schedule", "a mixture needs weights from position 0 on, got none")
    return found


def _quotas(parts: Sequence[PartOf], entry: WeightsFrom, block: int) -> tuple[int, ...]:
    try:
        places = quotas(block, entry.weights)
    except ValueError as error:
        raise ConfigError.at("source.schedule", f"from position {entry.at} on: {error}") from None
    for part, weight, count in zip(parts, entry.weights, places, strict=True):
        if weight and not count:
            raise ConfigError.at(
                "source.block",
                f"the part '{part.name}' has weight {weight} from position {entry.at} on, and no place in a block of "
                f"{block}; a block of {smallest_block(entry.weights)} would do",
            )
    return places
