"""What a loader has handed out so far."""

from dataclasses import dataclass
from typing import final

from flodl_pipe.arrays import WordArray
from flodl_pipe.keyed.digest import Digest

__all__ = ["Counters", "Statistics"]


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
        self.digest = Digest() if keep_digest else None
        self.wait_s = 0.0
        self._num_steps = 0
        self._num_rows = 0
        self._num_valid = 0

    def count(self, num_rows: int, hash_sums: WordArray, num_valid: int) -> None:
        """Count one step."""
        self._num_steps += 1
        self._num_rows += num_rows
        self._num_valid += num_valid
        if self.digest is not None:
            self.digest.add_sums(hash_sums, num_valid)

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
