"""The ledger: one book per process of every byte the data plane was granted.

Training and validation loaders of one process share one budget, so grants are taken from here, not from a loader's own
arithmetic. Taking is atomic: two loaders built at once cannot both get the last gigabyte.

The book has one account per kind of memory: ``"host"``, ``"disk"``, and each device under its name (``"cuda:0"``). What
is held in one is no concern of the others.
"""

import os
import threading
from typing import final

from flodl_pipe.errors import StagingError
from flodl_pipe.memory.budget import Grant
from flodl_pipe.units import format_bytes

__all__ = ["DISK", "HOST", "Ledger", "process_ledger"]

HOST = "host"
"""Account of host memory."""

DISK = "disk"
"""Account of disk space."""

_REMEDIES = {
    HOST: "raise loader.ram_max_usage, lower loader.batch_size or loader.prefetch, or close another loader",
    DISK: "lower loader.disk_stage, or close another loader",
}
_DEVICE_REMEDY = "raise loader.vram_max_usage, lower loader.batch_size or loader.prefetch, or close another loader"


@final
class Ledger:
    """Grants by (account, owner, purpose). All methods may be called from several threads."""

    def __init__(self) -> None:
        # Reentrant: a loader may be collected, and release its grants, while this thread is inside a method.
        self._lock = threading.RLock()
        self._grants: dict[tuple[str, int, str], int] = {}
        self._next_owner = 0

    def new_owner(self) -> int:
        """Return a number for a new holder of grants."""
        with self._lock:
            self._next_owner += 1
            return self._next_owner

    @property
    def held_bytes(self) -> int:
        """Bytes of host memory granted now, over all owners."""
        return self.held(HOST)

    def held(self, account: str = HOST) -> int:
        """Return the bytes granted of an account now, over all owners."""
        with self._lock:
            return sum(num_bytes for (which, _, _), num_bytes in self._grants.items() if which == account)

    def take(self, owner: int, purpose: str, num_bytes: int, share: Grant, account: str = HOST) -> None:
        """Grant ``num_bytes`` if all grants of an account stay within ``share``; replaces the purpose's earlier grant.

        A grant that is not larger than the one it replaces is never refused, whatever became of the share.

        Raises:
            StagingError: if they would not; nothing changes then.
        """
        with self._lock:
            before = self._grants.get((account, owner, purpose))
            others = self.held(account) - (before or 0)
            if others + num_bytes > share.num_bytes and (before is None or num_bytes > before):
                where = "" if account == HOST else f" on {account}"
                raise StagingError(
                    f"{purpose} needs {format_bytes(num_bytes)}, but only "
                    f"{format_bytes(max(0, share.num_bytes - others))} of this process's "
                    f"{format_bytes(share.num_bytes)}{where} is left ({share.reason}); "
                    f"{_REMEDIES.get(account, _DEVICE_REMEDY)}"
                )
            self._grants[account, owner, purpose] = num_bytes

    def grow(self, owner: int, purpose: str, more_bytes: int, share: Grant, account: str = HOST) -> bool:
        """Add ``more_bytes`` to a grant if all grants of the account stay within ``share``, and return whether.

        For tiers, which take their memory slab by slab and stop when there is no more.
        """
        with self._lock:
            if self.held(account) + more_bytes > share.num_bytes:
                return False
            key = (account, owner, purpose)
            self._grants[key] = self._grants.get(key, 0) + more_bytes
            return True

    def grants(self, owner: int, account: str = HOST) -> dict[str, int]:
        """Return the bytes of an account granted to an owner, by purpose."""
        with self._lock:
            return {
                purpose: num_bytes
                for (which, who, purpose), num_bytes in self._grants.items()
                if who == owner and which == account
            }

    def accounts(self) -> dict[str, int]:
        """Return the bytes held of each account that anything is held of."""
        with self._lock:
            return {account: self.held(account) for account in sorted({key[0] for key in self._grants})}

    def release(self, owner: int, purpose: str | None = None, account: str | None = None) -> None:
        """Give back grants of an owner: all of them, or those of one purpose, of one account, or both."""
        with self._lock:
            for key in list(self._grants):
                which, who, what = key
                if who == owner and purpose in (None, what) and account in (None, which):
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
