"""What a loader has handed out so far."""

from collections import deque
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np

from flodl_pipe.arrays import WordArray
from flodl_pipe.keyed.digest import Digest

__all__ = ["Counters", "Statistics", "Sums", "Traffic"]


_MOST_PENDING = 256


@final
@dataclass(frozen=True)
class Statistics:
    """A snapshot of a loader's counters.

    Attributes:
        num_steps: Batches handed to the loop.
        num_samples: Valid rows in them: no padding, no skipped samples.
        stored_bytes: Their bytes before widening.
        delivered_bytes: Their bytes as tensors.
        wait_s: Time the loop waited in ``next()`` for a batch that was not ready.
        digest: Digest of everything handed out, 32 hexadecimal digits; None unless the loader keeps one.
    """

    num_steps: int
    num_samples: int
    stored_bytes: int
    delivered_bytes: int
    wait_s: float
    digest: str | None


class Sums(Protocol):
    """Sums of row hashes that are not there yet."""

    def is_done(self) -> bool:
        """Return whether :meth:`resolve` would not wait."""
        ...

    def resolve(self) -> WordArray:
        """Wait for them, and return them: uint64, shape ``(2,)``."""
        ...


@final
@dataclass(frozen=True)
class Traffic:
    """What moved to make the batches so far, tiers left out.

    Attributes:
        source_rows: Rows that readers read from the source.
        source_bytes: Their bytes, as stored; fills ahead of a tier are the tier's.
        uploaded_bytes: Bytes copied to the device.
    """

    source_rows: int
    source_bytes: int
    uploaded_bytes: int


@final
class Counters:
    """Running counts; written by the loop's thread only.

    Args:
        stored_row_bytes: Bytes of one stored row.
        delivered_row_bytes: Bytes of one delivered row.
        keep_digest: Whether to sum row hashes.
    """

    def __init__(self, stored_row_bytes: int, delivered_row_bytes: int, *, keep_digest: bool) -> None:
        self._stored_row_bytes = stored_row_bytes
        self._delivered_row_bytes = delivered_row_bytes
        self._digest = Digest() if keep_digest else None
        self._pending: deque[tuple[Sums, int]] = deque()
        self.wait_s = 0.0
        self._num_steps = 0
        self._num_rows = 0
        self._num_valid = 0

    def count(self, num_rows: int, hash_sums: WordArray | Sums, num_valid: int) -> None:
        """Count one step, whose hashes may still be computed by a device."""
        self._num_steps += 1
        self._num_rows += num_rows
        self._num_valid += num_valid
        if self._digest is None:
            return
        if isinstance(hash_sums, np.ndarray):
            self._digest.add_sums(hash_sums, num_valid)
            return
        self._pending.append((hash_sums, num_valid))
        while self._pending and (len(self._pending) > _MOST_PENDING or self._pending[0][0].is_done()):
            self._resolve()

    @property
    def digest(self) -> Digest | None:
        """Digest of everything handed out; waits for a device's part of it. None unless one is kept."""
        while self._pending:
            self._resolve()
        return self._digest

    def _resolve(self) -> None:
        sums, num_valid = self._pending.popleft()
        assert self._digest is not None
        self._digest.add_sums(sums.resolve(), num_valid)

    def snapshot(self) -> Statistics:
        """Return the counts as they are now."""
        return Statistics(
            num_steps=self._num_steps,
            num_samples=self._num_valid,
            stored_bytes=self._num_rows * self._stored_row_bytes,
            delivered_bytes=self._num_rows * self._delivered_row_bytes,
            wait_s=self.wait_s,
            digest=None if self.digest is None else self.digest.hex(),
        )
