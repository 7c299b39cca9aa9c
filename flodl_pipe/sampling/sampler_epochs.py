"""Epochs of a user's sampler as a function: every epoch is read from a fresh copy, in any order, as often as asked.

::

    sampler --copy once--> kept --copy for a reading--> generators set by (seed, epoch) --> indices, checked, cached

So the answer depends on (the sampler as it was given, seed, epoch) and nothing else, a resumed run needs no state of
it, and the user's object and his global random states stay as they are. Whether that holds is tried when it is built:
epoch 0 is read twice and epoch 1 once, and a sampler that answers differently, or that counts its epochs by itself, is
refused. The last two epochs are kept, 8 bytes an index each.
"""

import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
import torch

from flodl_pipe.errors import ConfigError, LoaderError
from flodl_pipe.sampling.sampler_copy import SamplerCopies, SamplerCopy
from flodl_pipe.sampling.sampler_indices import EpochIndices, Reading, read_batches, read_indices
from flodl_pipe.sampling.sampler_randomness import ALGORITHM, global_states_set, same_states, states_now
from flodl_pipe.units import format_count

__all__ = ["SamplerEpochs"]

_KEPT_EPOCHS = 2
_BATCHED = "sampling.batch_sampler"


@final
class SamplerEpochs:
    """The epochs of a sampler.

    Args:
        sampler: What yields indices, or with ``batched`` lists of them: a torch sampler, another object that can be
            iterated anew, a list, a range, an array or a tensor.
        num_samples: Samples of the data set, at least 1.
        seed: Run seed, ``0 <= seed < 2**64``.
        batched: Whether it yields batches.
        shared: Objects that are not copied where the sampler holds them, such as its data set.

    Attributes:
        num_picks: Indices of an epoch.
        num_batches: Batches of an epoch; 0 for single indices.
        largest: Rows of the largest batch; 0 for single indices.
        identity: What the sampler is, for a tag: its type, numbers, the seed, and a digest of epoch 0.
        held_bytes: What the kept epochs take in memory at most.

    Raises:
        ConfigError: if the sampler cannot be copied, yields what are no samples, or does not answer the same twice.
        ValueError: if the seed is out of range.
    """

    def __init__(
        self, sampler: object, num_samples: int, seed: int, *, batched: bool = False, shared: Sequence[object] = ()
    ) -> None:
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"seed must be in 0 .. 2**64 - 1, got {seed}")
        self._key = _BATCHED if batched else "sampling.sampler"
        self._name = f"{type(sampler).__module__}.{type(sampler).__qualname__}"
        self._num_samples = num_samples
        self._seed = seed
        self._read_epoch = read_batches if batched else read_indices
        self._kept: dict[int, EpochIndices] = {}
        self._lock = threading.RLock()
        self.draws_globally = False
        self._copies: SamplerCopies | None = None
        if isinstance(sampler, np.ndarray | torch.Tensor) or type(sampler) in (list, tuple, range):
            self._name = "list"  # whatever holds them: such indices are all there is to know
            first = self._read_epoch(sampler, self._reading(self._refused))
            num_kept = 1
        else:
            self._copies = SamplerCopies(sampler, seed, shared=shared, fail=self._refused)
            first = self._tried(self._copies)
            num_kept = _KEPT_EPOCHS
        self._kept[0] = first
        self.num_picks = len(first.indices)
        self.num_batches = len(first.sizes)
        self.largest = int(first.sizes.max(initial=0))
        self.held_bytes = num_kept * (first.indices.nbytes + first.sizes.nbytes)
        digest = hashlib.blake2b(digest_size=16)
        for array in first:
            digest.update(array.astype("<i8", copy=False).data)
        batches = f" batches={self.num_batches}" if batched else ""
        self.identity = (
            f"{ALGORITHM} {self._name} samples={num_samples} picks={self.num_picks}{batches} seed={seed} "
            f"first={digest.hexdigest()}"
        )

    def read(self, epoch: int) -> EpochIndices:
        """Return an epoch, read now or kept; safe to call from several threads.

        Raises:
            ValueError: if ``epoch`` is not in ``0 .. 2**64 - 1``.
            LoaderError: if the sampler yields what are no samples, or other numbers than in epoch 0.
        """
        if not 0 <= epoch < 1 << 64:
            raise ValueError(f"epoch must be in 0 .. 2**64 - 1, got {epoch}")
        if self._copies is None:
            return self._kept[0]
        with self._lock:
            found = self._kept.pop(epoch, None)
            if found is None:
                found = self._read_now(self._copies, epoch)
            self._kept[epoch] = found  # the latest asked for is the last to go
            while len(self._kept) > _KEPT_EPOCHS:
                del self._kept[next(iter(self._kept))]
            return found

    def _tried(self, copies: SamplerCopies) -> EpochIndices:
        """Return epoch 0 after having tried whether epochs are a function of their number; keep epoch 1.

        Global states are set for every reading here, which also finds out whether the sampler needs that.
        """
        first = self._with_globals(copies.fresh(), 0, self._refused)
        again = self._with_globals(copies.fresh(), 0, self._refused)
        if not first.same(again):
            raise self._refused(
                f"the sampler, a {self._name}, gave two orders for epoch 0 ({_difference(first, again)}), so that a "
                "run could not resume in it; let it draw from a torch.Generator, numpy Generator or random.Random "
                "that it keeps as an attribute, and from nothing that changes by itself"
            )
        one = copies.fresh()
        second = self._with_globals(one, 1, self._refused)
        wrong = _other_numbers(1, _numbers(second), _numbers(first))
        if wrong:
            raise self._refused(wrong)
        # Where nothing random is set, an order that is the same in epoch 1, but not when the same object is read once
        # more, moves on by what the object counts itself: a fresh copy would stand still at epoch 0.
        if first.same(second) and not one.is_random and not self.draws_globally:
            try:
                moved_on = not self._with_globals(one, 1, self._refused).same(first)
            except ConfigError:
                moved_on = True  # for example nothing is left
            if moved_on:
                raise self._refused(
                    f"the sampler, a {self._name}, gives another order, or none, when it is read a second time, but "
                    "cannot be told the epoch: after a resume it would begin at its first one; give it a method "
                    "set_epoch(epoch) that decides the order, or give a list"
                )
        self._kept[1] = second
        return first

    def _with_globals(self, copied: SamplerCopy, epoch: int, fail: Callable[[str], Exception]) -> EpochIndices:
        with global_states_set(self._seed, epoch) as draws:
            found = self._from(copied, epoch, fail)
        self.draws_globally |= draws.happened
        return found

    def _from(self, copied: SamplerCopy, epoch: int, fail: Callable[[str], Exception]) -> EpochIndices:
        try:
            copied.begin(epoch)
            return self._read_epoch(copied.sampler, self._reading(fail))
        except (ConfigError, LoaderError):
            raise
        except Exception as error:
            error.add_note(f"raised by {self._key}, a {self._name}, when it was read for epoch {epoch}")
            raise

    def _reading(self, fail: Callable[[str], Exception]) -> Reading:
        return Reading(self._num_samples, fail, self._key == _BATCHED)

    def _read_now(self, copies: SamplerCopies, epoch: int) -> EpochIndices:
        def fail(message: str) -> LoaderError:
            return LoaderError(f"{self._key} in epoch {epoch}: {message}")

        if self.draws_globally:
            found = self._with_globals(copies.fresh(), epoch, fail)
        else:
            # Global states are left alone, for other threads draw from them now. If they moved, that was either one
            # of those, or the sampler, which then answers differently the next time.
            before = states_now()
            found = self._from(copies.fresh(), epoch, fail)
            if not same_states(before, states_now()) and not found.same(self._from(copies.fresh(), epoch, fail)):
                raise fail(
                    f"the sampler, a {self._name}, draws from a global random state in this epoch, but did not in "
                    "epochs 0 and 1, so that nothing was set for it; let it draw from a generator that it keeps as "
                    "an attribute"
                )
        wrong = _other_numbers(epoch, _numbers(found), (self.num_picks, self.num_batches, self.largest))
        if wrong:
            raise fail(wrong)
        return found

    def _refused(self, message: str) -> ConfigError:
        return ConfigError.at(self._key, message)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()


def _numbers(epoch: EpochIndices) -> tuple[int, int, int]:
    """Return indices, batches, and rows of the largest batch: what every epoch has in common."""
    return len(epoch.indices), len(epoch.sizes), int(epoch.sizes.max(initial=0))


def _other_numbers(epoch: int, found: tuple[int, int, int], first: tuple[int, int, int]) -> str:
    """Return what is wrong with the numbers of an epoch; empty if nothing is."""
    wrong = [
        f"{format_count(now)} {what} and epoch 0 has {format_count(then)}"
        for now, then, what in zip(found, first, ("indices", "batches", "rows in its largest batch"), strict=True)
        if now != then
    ]
    if not wrong:
        return ""
    return (
        f"epoch {epoch} of the sampler has {'; '.join(wrong)}, but steps, memory and the end of a run are planned with "
        "one number for all epochs; let every epoch yield as many"
    )


def _difference(one: EpochIndices, other: EpochIndices) -> str:
    """Return where two epochs begin to differ."""
    if len(one.indices) != len(other.indices):
        return f"of {format_count(len(one.indices))} and {format_count(len(other.indices))} indices"
    rows = np.flatnonzero(one.indices != other.indices)
    if len(rows):
        return f"index {rows[0]} is {one.indices[rows[0]]} and then {other.indices[rows[0]]}"
    return "with other batches"
