"""Copies of a user's sampler: one kept from the start, one more for every reading, so that nothing of his is advanced.

A copy is deep, but for the data a sampler holds, which is shared: a torch ``Dataset`` wherever it is kept, what torch's
own samplers were given as data, arrays that nobody may write to, and what the caller names. Everything else that a
sampler may change while it is read (index lists, counters, generators) is the copy's own.
"""

import copy
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
import torch
from torch.utils.data import (
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from flodl_pipe.keyed.absorb import absorb
from flodl_pipe.sampling.sampler_randomness import kept_generator

__all__ = ["SamplerCopies", "SamplerCopy"]

_OWN_DOMAIN = 0x5A4D
_ATOMS = (int, float, complex, str, bytes, bool, type(None), type, types.ModuleType, types.FunctionType, torch.Tensor)


@runtime_checkable
class _HasSetEpoch(Protocol):
    def set_epoch(self, epoch: int) -> object: ...


@runtime_checkable
class _HasReplicas(Protocol):
    num_replicas: int


@final
class SamplerCopies:
    """Makes copies of a sampler as it was when it was handed over.

    Args:
        sampler: The user's sampler; not changed, and not needed afterwards.
        seed: Run seed.
        shared: Objects that are not copied where the sampler holds them.
        fail: Makes the error to raise from a message.
    """

    def __init__(
        self, sampler: object, seed: int, *, shared: Sequence[object], fail: Callable[[str], Exception]
    ) -> None:
        self._seed = seed
        self._shared = tuple(shared)
        name = type(sampler).__qualname__
        try:
            self._kept, parts = _copied(sampler, self._shared)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            message = (
                f"the sampler, a {name}, cannot be copied ({reason}), and every epoch is read from a copy, so that "
                "your object is never advanced; a generator or an open iterator is read only once: give a list of "
                "the indices, or an object whose __iter__ begins anew and which copy.deepcopy can copy"
            )
            raise fail(message) from error
        for part in parts:
            is_sampler = isinstance(part, Sampler) or part is self._kept
            if is_sampler and isinstance(part, _HasReplicas) and part.num_replicas > 1:
                raise fail(
                    f"a {type(part).__qualname__} of {part.num_replicas} replicas gives one rank's share of the "
                    "samples, and here every step is dealt out among the ranks anyway: each sample would be shared "
                    "out twice; leave the sampler out, or give it num_replicas=1 and rank=0"
                )

    def fresh(self) -> "SamplerCopy":
        """Return a copy that nothing was read from yet."""
        sampler, parts = _copied(self._kept, self._shared)
        return SamplerCopy(sampler, parts, self._seed)


@final
class SamplerCopy:
    """A copy to read an epoch from.

    Args:
        sampler: The copy.
        parts: Every object it was made with.
        seed: Run seed.

    Attributes:
        sampler: The copy.
    """

    def __init__(self, sampler: object, parts: Sequence[object], seed: int) -> None:
        self.sampler = sampler
        self._seed = seed
        self._kept = [kept for kept in map(kept_generator, parts) if kept is not None]
        # Without a generator these draw from torch's global state; with one of their own that is left alone.
        self._without = [
            part
            for part in parts
            if isinstance(part, RandomSampler | SubsetRandomSampler | WeightedRandomSampler) and part.generator is None
        ]
        # The outermost comes last: what it tells those inside it is what counts.
        inner = [part for part in reversed(parts) if isinstance(part, Sampler) and part is not sampler]
        self._told = [part for part in (*inner, sampler) if isinstance(part, _HasSetEpoch)]

    @property
    def is_random(self) -> bool:
        """Whether it has generators that an epoch sets."""
        return bool(self._kept or self._without)

    def begin(self, epoch: int) -> None:
        """Set generators for an epoch, and tell the samplers which one it is."""
        if epoch:
            for kept in self._kept:
                kept.begin(self._seed, epoch)
        for place, part in enumerate(self._without):
            part.generator = torch.Generator().manual_seed(absorb(_OWN_DOMAIN, place, self._seed, epoch))
        for told in self._told:
            told.set_epoch(epoch)


def _copied(sampler: object, shared: Sequence[object]) -> tuple[object, list[object]]:
    """Return a copy, and every object that was made for it."""
    memo: dict[int, Any] = {id(held): held for held in (*shared, *_data_of(sampler, shared))}
    num_shared = len(memo)
    made = copy.deepcopy(sampler, memo)
    # What copy.deepcopy remembers is all it made, in order, and one list of its own.
    parts = [part for key, part in list(memo.items())[num_shared:] if key != id(memo)]
    return made, parts if any(part is made for part in parts) else [made, *parts]


def _data_of(sampler: object, shared: Sequence[object]) -> list[object]:
    """Return the data that a sampler and what it is made of hold."""
    data: list[object] = []
    seen = set(map(id, shared))
    waiting: list[object] = [sampler]
    while waiting:
        holder = waiting.pop()
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        if isinstance(holder, Dataset) or (isinstance(holder, np.ndarray) and not holder.flags.writeable):
            data.append(holder)
            continue
        if isinstance(holder, RandomSampler | SequentialSampler | DistributedSampler):
            held = holder.dataset if isinstance(holder, DistributedSampler) else holder.data_source
            data.append(held)
            seen.add(id(held))
        inside: Iterable[object]
        if isinstance(holder, list | tuple | set | frozenset):
            inside = holder
        else:
            attributes: dict[object, object] = holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})
            inside = attributes.values()
        waiting += [value for value in inside if not isinstance(value, _ATOMS)]
    return data
