"""Facts of this process that no config holds: its rank, and how many ranks there are.

Read once from the environment that torchrun sets, and passed down from there.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Self, final

from flodl_pipe.errors import ClusterError
from flodl_pipe.sampling.share_plan import AutoShares

if TYPE_CHECKING:
    from flodl_pipe.cluster.world import World

__all__ = ["RunContext"]


@final
@dataclass(frozen=True)
class RunContext:
    """This process among all processes of a run.

    Attributes:
        rank: Global rank, ``0 <= rank < world_size``.
        world_size: Number of ranks.
        ratios: How much of each global batch each rank takes, one positive number per rank, exact; None: equal shares.
        host: Name of this host; "" where nobody says.
        local_rank: This process among those of its host.
        co_hosted: Global ranks of this host, in order of local rank; empty: this rank alone, as far as is known.
        world: How the ranks talk to each other; None where they do not: alone, or built by hand.
        shares: How shares follow the ranks' speeds; None: they stay as ``ratios`` say.
        share_host_cache: Whether the ranks of a host keep samples in one RAM cache together.

    Raises:
        ClusterError: if the rank is outside the world, or the ratios are not the ranks'.
    """

    rank: int = 0
    world_size: int = 1
    ratios: tuple[int | Fraction, ...] | None = None
    host: str = ""
    local_rank: int = 0
    co_hosted: tuple[int, ...] = ()
    world: "World | None" = field(default=None, compare=False)
    shares: AutoShares | None = field(default=None, compare=False)
    share_host_cache: bool = True

    def __post_init__(self) -> None:
        given: dict[str, object] = {"rank": self.rank, "world_size": self.world_size}
        for name, value in given.items():
            if not isinstance(value, int) or isinstance(value, bool):
                raise ClusterError(f"{name} must be an integer, got {value!r}; what os.environ holds is text: int(...)")
        if self.world_size < 1:
            raise ClusterError(
                f"world_size must be at least 1, got {self.world_size}; one process alone is a world of 1"
            )
        if not 0 <= self.rank < self.world_size:
            raise ClusterError(
                f"rank {self.rank} is outside a world of {self.world_size}: ranks are 0 .. {self.world_size - 1}; "
                "torchrun sets RANK and WORLD_SIZE to numbers that fit"
            )
        if self.ratios is not None and not _are_ratios(self.ratios, self.world_size):
            raise ClusterError(
                f"ratios {self.ratios} must be one positive whole number or fraction for each of the {self.world_size} "
                "ranks"
            )
        if self.co_hosted and (self.rank not in self.co_hosted or max(self.co_hosted) >= self.world_size):
            raise ClusterError(
                f"co_hosted {self.co_hosted} must be the ranks of this host: {self.rank} among them, all below "
                f"{self.world_size}"
            )

    @property
    def share_of_host(self) -> Fraction:
        """This rank's part of its host's memory: its ratio among the ranks of the host."""
        if len(self.co_hosted) < 2:
            return Fraction(1)
        ratios = self.ratios or (1,) * self.world_size
        return Fraction(ratios[self.rank]) / sum(Fraction(ratios[rank]) for rank in self.co_hosted)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read RANK and WORLD_SIZE; a process without them is alone.

        Raises:
            ClusterError: if a variable is not a number, or only one of the two is set, to one of several processes:
                without its rank each of them would be rank 0.
        """
        numbers: dict[str, int] = {}
        for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")):
            text = environment.get(name, default)
            try:
                numbers[name] = int(text)
            except ValueError:
                raise ClusterError(f"{name}={text!r} is not a number; start the ranks with torchrun") from None
        given = [name for name in numbers if name in environment]
        if len(given) == 1 and (numbers["RANK"], numbers["WORLD_SIZE"]) != (0, 1):
            missing = "WORLD_SIZE" if given == ["RANK"] else "RANK"
            raise ClusterError(
                f"{given[0]}={environment[given[0]]}, and {missing} is not set: one of several processes needs both; "
                f"start the ranks with torchrun, which sets them, or unset {given[0]} to run one process alone"
            )
        return cls(numbers["RANK"], numbers["WORLD_SIZE"])


def _are_ratios(ratios: Sequence[object], world_size: int) -> bool:
    exact = all(isinstance(ratio, int | Fraction) and not isinstance(ratio, bool) and ratio > 0 for ratio in ratios)
    return exact and len(ratios) == world_size
