"""The order of a user's sampler: a torch ``Sampler``, or anything that yields the indices of an epoch.

A pick is the sample itself and may come any number of times; its repeat is the position. How an epoch follows from the
sampler, the seed and the epoch's number is told in :mod:`flodl_pipe.sampling.sampler_epochs`. Unlike the orders of this
package, an epoch is read whole: 8 bytes an index, and the sampler's own time.
"""

from collections.abc import Sequence
from typing import final

import numpy as np

from flodl_pipe.arrays import IndexArray
from flodl_pipe.errors import LoaderError
from flodl_pipe.sampling.orders import EpochOrder
from flodl_pipe.sampling.sampler_epochs import SamplerEpochs

__all__ = ["ListedOrder", "SamplerOrder"]


@final
class SamplerOrder:
    """The order that a sampler gives; an :class:`flodl_pipe.sampling.orders.Order`.

    Args:
        sampler: A torch sampler, another object that can be iterated anew for every epoch, a list, a range, an
            array or a tensor of indices. It is copied, and stays as it is.
        num_samples: Samples of the data set, at least 1.
        seed: Run seed, ``0 <= seed < 2**64``; held for the whole run.
        shared: Objects that are not copied where the sampler holds them, such as the data set.

    Raises:
        ConfigError: at ``sampling.sampler``, if it cannot be copied, yields what are no samples of the data set, or
            does not give the same order twice.
        ValueError: if the seed is out of range.

    >>> order = SamplerOrder([3, 1, 1, 2], 4, seed=42)
    >>> order.num_picks, order.epoch(5).at(1, 4).tolist()
    (4, [1, 1, 2])
    """

    def __init__(self, sampler: object, num_samples: int, seed: int, *, shared: Sequence[object] = ()) -> None:
        self._epochs = SamplerEpochs(sampler, num_samples, seed, shared=shared)
        self.num_picks = self._epochs.num_picks
        self.num_repeats: int | None = None
        self.seed = seed
        self.tag = f"sampler {self._epochs.identity}"
        self.held_bytes = self._epochs.held_bytes

    @property
    def draws_globally(self) -> bool:
        """Whether it draws from the process's global random states, which are set and put back while it is read."""
        return self._epochs.draws_globally

    def epoch(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch; see :class:`flodl_pipe.sampling.orders.Order`.

        Raises:
            LoaderError: if the sampler yields in this epoch what are no samples, or not as many as in epoch 0.
            ValueError: if ``epoch`` is not in ``0 .. 2**64 - 1``.
        """
        return ListedOrder(self._epochs.read(epoch).indices)


@final
class ListedOrder:
    """The order of one epoch as the list of its samples; an :class:`flodl_pipe.sampling.orders.EpochOrder`.

    Args:
        samples: int64, shape ``(K,)``, each at least 0; not written to.
    """

    def __init__(self, samples: IndexArray) -> None:
        self._samples = samples
        self._by_sample: IndexArray | None = None

    def at(self, start: int, stop: int) -> IndexArray:
        if not 0 <= start <= stop <= len(self._samples):
            raise ValueError(f"positions {start} .. {stop} do not lie within the epoch of {len(self._samples)} picks")
        return self._samples[start:stop].copy()

    def pick(self, positions: IndexArray) -> IndexArray:
        return self._samples[positions]

    def where(self, picks: IndexArray) -> IndexArray:
        """Return the position of each sample, int64, shape ``(K,)``.

        Raises:
            LoaderError: if a sample does not come in this epoch, or any sample comes more than once.
        """
        if self._by_sample is None:
            by_sample = np.argsort(self._samples, kind="stable")
            ascending = self._samples[by_sample]
            again = np.flatnonzero(ascending[1:] == ascending[:-1])
            if len(again):
                raise LoaderError(
                    f"where {len(picks)} samples stand was asked in an order of a sampler that brings sample "
                    f"{ascending[again[0]]} more than once in this epoch; ask for the samples at positions instead"
                )
            self._by_sample = by_sample
        places = np.searchsorted(self._samples, picks, sorter=self._by_sample)
        positions = self._by_sample[np.minimum(places, len(self._samples) - 1)]
        absent = np.flatnonzero(self._samples[positions] != picks)
        if len(absent):
            raise LoaderError(
                f"sample {picks[absent[0]]} does not come in this epoch of the sampler, which yields "
                f"{len(self._samples)} samples; ask for one of those"
            )
        return positions
