"""The key of each row of a batch: which pick it is, and every random number that follows from it.

A pick is one appearance of a sample in an epoch: ``(sample, repeat)``. Its key is ``(seed, epoch, sample, repeat)``,
and a draw is a pure function of the key, the stream numbers (one for each transform, so that no two share numbers; one
more for a transform's own use) and the draw's place. Rank, reader, device, step and history have no part in it.

Shape letter: ``B`` rows of a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from flodl_pipe.arrays import IndexArray, WordArray
from flodl_pipe.keyed.absorb import absorb, absorb_words
from flodl_pipe.keyed.philox import philox4x32

__all__ = ["PickKeys", "to_integers", "to_uniform"]

_DOMAIN = 0x91C5


@final
@dataclass(slots=True, eq=False)
class PickKeys:
    """Keys of the rows of one batch.

    Attributes:
        sample: Sample index of each row, int64, shape ``(B,)``.
        repeat: Which of the sample's appearances in this epoch, int64, shape ``(B,)``: ``0 .. augment - 1``, or where
            an order may bring a sample again (draws with replacement, mixtures, samplers of one's own) the position.
        epoch: Epoch number, counted from 0.
        seed: Run seed, ``0 <= seed < 2**64``.
        stream: Whose numbers are drawn: 0, or what a chain of transforms gives to each of its steps.
    """

    sample: IndexArray
    repeat: IndexArray
    epoch: int
    seed: int
    stream: int = 0

    def of_stream(self, stream: int) -> "PickKeys":
        """Return the same keys with random numbers of another stream, ``0 <= stream < 2**64``."""
        return PickKeys(self.sample, self.repeat, self.epoch, self.seed, stream)

    def rows(self, rows: slice) -> "PickKeys":
        """Return the keys of some of the rows."""
        return PickKeys(self.sample[rows], self.repeat[rows], self.epoch, self.seed, self.stream)

    def __len__(self) -> int:
        return len(self.sample)

    def words(self, count: int, *, stream: int = 0) -> WordArray:
        """Return ``count`` 32-bit random words per row.

        Args:
            count: Words per row, at least 1.
            stream: Which numbers of a transform's own, where it draws for several purposes.

        Returns:
            uint64 array of shape ``(B, count)``, every element below 2**32.
        """
        keys = absorb_words(absorb(_DOMAIN, self.seed, self.epoch, self.stream, stream), self.sample.astype(np.uint64))
        keys = absorb_words(keys, self.repeat.astype(np.uint64))
        blocks = [philox4x32(keys, np.array([block, 0], dtype=np.uint64)) for block in range(-(-count // 4))]
        return np.concatenate(blocks)[:count].T.copy()

    def first_words(self, streams: Sequence[int]) -> WordArray:
        """Return the first four words of each row in several streams, all at once.

        Args:
            streams: The streams, at least one.

        Returns:
            uint64 array of shape ``(S, 4, B)``; ``[s].T`` is ``of_stream(streams[s]).words(4)``.
        """
        bases = [absorb(_DOMAIN, self.seed, self.epoch, stream, 0) for stream in streams]
        samples, repeats = self.sample.view(np.uint64), self.repeat.view(np.uint64)
        keys = np.concatenate([absorb_words(base, samples) for base in bases])
        keys = absorb_words(keys, np.tile(repeats, len(streams)))
        blocks = philox4x32(keys, np.zeros(2, dtype=np.uint64))
        return blocks.reshape(4, len(streams), len(self)).transpose(1, 0, 2)

    def uniform(self, count: int, *, stream: int = 0) -> npt.NDArray[np.float32]:
        """Return ``count`` numbers per row, uniform on ``[0, 1)`` in steps of 2**-24, float32, shape ``(B, count)``.

        24 bits are what a float32 holds exactly, so the value is the same on every device.
        """
        return to_uniform(self.words(count, stream=stream))

    def integers(self, high: int, count: int, *, stream: int = 0) -> IndexArray:
        """Return ``count`` integers per row, in ``[0, high)``, int64, shape ``(B, count)``.

        A 32-bit word is scaled by multiply-shift; no value is off the uniform probability by more than ``2**-32``.

        Raises:
            ValueError: if ``high`` is not in ``1 .. 2**32``.
        """
        if not 1 <= high <= 1 << 32:
            raise ValueError(f"high must be in 1 .. 2**32, got {high}")
        return to_integers(self.words(count, stream=stream), high)


def to_uniform(words: WordArray) -> npt.NDArray[np.float32]:
    """Turn 32-bit words into numbers on ``[0, 1)`` in steps of 2**-24, float32, of the same shape."""
    return (words >> np.uint64(8)).astype(np.float32) * np.float32(2**-24)


def to_integers(words: WordArray, high: int) -> IndexArray:
    """Turn 32-bit words into integers in ``[0, high)``, int64, of the same shape; ``high`` is at most 2**32."""
    return ((words * np.uint64(high)) >> np.uint64(32)).view(np.int64)
