"""The ledger: one account per process of every byte the data plane was granted.

Training and validation loaders of one process share one budget, so grants are taken from here, not from a loader's own
arithmetic. Taking is atomic: two loaders built at once cannot both get the last gigabyte.
"""

import os
import threading
from typing import final

from flodl_pipe.errors import StagingError
from flodl_pipe.memory.budget import Grant
from flodl_pipe.units import format_bytes

__all__ = ["Ledger", "process_ledger"]


@final
class Ledger:
    """Grants by (owner, purpose). All methods may be called from several threads."""

    def __init__(self) -> None:
        # Reentrant: a loader may be collected, and release its grants, while this thread is inside a method.
        self._lock = threading.RLock()
        self._grants: dict[tuple[int, str], int] = {}
        self._next_owner = 0

    def new_owner(self) -> int:
        """Return a number for a new holder of grants."""
        with self._lock:
            self._next_owner += 1
            return self._next_owner

    @property
    def held_bytes(self) -> int:
        """Bytes granted now, over all owners."""
        with self._lock:
            return sum(self._grants.values())

    def take(self, owner: int, purpose: str, num_bytes: int, share: Grant) -> None:
        """Grant ``num_bytes`` if all grants together stay within ``share``; replaces an earlier grant of the purpose.

        Raises:
            StagingError: if they would not; nothing is granted then.
        """
        with self._lock:
            others = self.held_bytes - self._grants.get((owner, purpose), 0)
            if others + num_bytes > share.num_bytes:
                raise StagingError(
                    f"{purpose} needs {format_bytes(num_bytes)}, but only "
                    f"{format_bytes(max(0, share.num_bytes - others))} of this process's "
                    f"{format_bytes(share.num_bytes)} is left ({share.reason}); raise loader.ram_max_usage, lower "
                    "loader.batch_size or loader.prefetch, or close another loader"
                )
            self._grants[owner, purpose] = num_bytes

    def grants(self, owner: int) -> dict[str, int]:
        """Return the bytes granted to an owner, by purpose."""
        with self._lock:
            return {purpose: num_bytes for (who, purpose), num_bytes in self._grants.items() if who == owner}

    def release(self, owner: int, purpose: str | None = None) -> None:
        """Give back one grant of an owner, or all of them."""
        with self._lock:
            for key in [key for key in self._grants if key[0] == owner and purpose in (None, key[1])]:
                del self._grants[key]


_ledger = Ledger()


def process_ledger() -> Ledger:
    """Return the ledger of this process."""
    return _ledger


def _start_anew_in_child() -> None:
    # A forked child holds none of its parent's loaders, and another thread may have held the parent's lock.
    global _ledger  # noqa: PLW0603
    _ledger = Ledger()


os.register_at_fork(after_in_child=_start_anew_in_child)
