"""Memory of the ranks of a host for one RAM cache that they keep together: whose it is, in numbers and in words."""

from dataclasses import dataclass
from typing import final

from flodl_pipe.staging.ram_cache import RankRange
from flodl_pipe.units import format_bytes

__all__ = ["Together"]


@final
@dataclass(frozen=True)
class Together:
    """What the ranks of a host may hold together.

    Attributes:
        room_bytes: All of them.
        own_bytes: This rank.
        num_processes: How many ranks they are.
    """

    room_bytes: int
    own_bytes: int
    num_processes: int

    def part(self, num_bytes: int) -> int:
        """Return what this rank answers for of so many bytes: as much of them as of the room, rounded up.

        >>> Together(900, 300, 3).part(100), Together(900, 0, 3).part(100)
        (34, 0)
        """
        return -(-num_bytes * self.own_bytes // max(1, self.room_bytes))

    def why(self, found: RankRange, num_samples: int, set_bytes: int) -> str:
        """Return what they hold, and why that much, in words.

        Args:
            found: The samples.
            num_samples: Of the source.
            set_bytes: What all of those take.
        """
        held = "the whole set" if found.num_ranks == num_samples else f"{found.num_ranks:,} of {num_samples:,} samples"
        return (
            f"{held}, {format_bytes(found.num_bytes)}, kept once for the {self.num_processes} ranks of this host, "
            f"which may hold {format_bytes(self.room_bytes)}; {format_bytes(self.part(found.num_bytes))} of it count "
            f"as this rank's; the set takes {format_bytes(set_bytes)}"
        )
