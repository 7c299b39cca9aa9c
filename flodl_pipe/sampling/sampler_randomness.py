"""Random numbers of a user's sampler: where they come from, and how an epoch gets its own without touching the user's.

A sampler draws from generators it keeps, or from the global ones of torch, NumPy and Python. The ones it keeps are
those of a copy, so that they can be set; the global ones are set while a sampler is read and put back afterwards.

An epoch's numbers follow from ``(what the generator was when it was handed over, seed, epoch)``. Epoch 0 leaves a
generator as it was, so that the first epoch is what torch would give for the same generator.
"""

import hashlib
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch

from flodl_pipe.keyed.absorb import absorb

__all__ = [
    "ALGORITHM",
    "GlobalDraws",
    "KeptGenerator",
    "global_states_set",
    "kept_generator",
    "same_states",
    "states_now",
]

ALGORITHM = "s64v1"
"""Name of the keys that generators are set by; part of every cursor."""

_KEPT_DOMAIN, _GLOBAL_DOMAIN = 0x5A4B, 0x5A4C
_global_states = threading.RLock()  # there is one set of global states in a process, whoever reads a sampler


@final
class KeptGenerator:
    """A generator that a copy of a sampler keeps.

    Args:
        generator: One of torch, NumPy (a generator's bit generator, or a ``RandomState``) or Python.
    """

    def __init__(self, generator: "torch.Generator | np.random.BitGenerator | np.random.RandomState | random.Random"):
        self._generator = generator
        self._was = int.from_bytes(hashlib.blake2b(_state_bytes(generator), digest_size=8).digest(), "little")

    def begin(self, seed: int, epoch: int) -> None:
        """Set the generator for an epoch after the first; it need not be as it was."""
        key = absorb(_KEPT_DOMAIN, self._was, seed, epoch)
        match self._generator:
            case torch.Generator():
                self._generator.manual_seed(key)
            case np.random.BitGenerator():
                self._generator.state = type(self._generator)(key).state
            case np.random.RandomState():
                self._generator.set_state(_numpy_state(self._generator.get_state(legacy=False), key))
            case random.Random():
                self._generator.seed(key)


def kept_generator(found: object) -> KeptGenerator | None:
    """Return the generator that an object is, as one that can be set; None if it is none."""
    if isinstance(found, np.random.Generator):
        found = found.bit_generator
    if isinstance(found, torch.Generator | np.random.BitGenerator | np.random.RandomState):
        return KeptGenerator(found)
    if isinstance(found, random.Random) and not isinstance(found, random.SystemRandom):
        return KeptGenerator(found)
    return None


@final
@dataclass
class GlobalDraws:
    """Whether something was drawn from a global generator, known once it was put back."""

    happened: bool = False


@contextmanager
def global_states_set(seed: int, epoch: int) -> Iterator[GlobalDraws]:
    """Set torch's (CPU), NumPy's and Python's global generators for reading an epoch; put them back at the end.

    One reader at a time in a process. What another thread of the user draws meanwhile comes from the states set here,
    so this is for samplers that need it, and for the moment of building.
    """
    key = absorb(_GLOBAL_DOMAIN, seed, epoch)
    draws = GlobalDraws()
    with _global_states:
        before = states_now()
        try:
            # Not torch.manual_seed, which would set every accelerator's generator too.
            torch.default_generator.manual_seed(key)
            np.random.set_state(_numpy_state(before[1], key))  # noqa: NPY002 - the global state is what is meant
            random.seed(key)
            begun = states_now()
            yield draws
            draws.happened = not same_states(begun, states_now())
        finally:
            torch.default_generator.set_state(before[0])
            np.random.set_state(before[1])  # noqa: NPY002 - as above
            random.setstate(before[2])


def states_now() -> tuple[torch.Tensor, dict[str, Any], tuple[Any, ...]]:
    """Return the states of the global generators of torch (CPU), NumPy and Python."""
    numpy_state: dict[str, Any] = dict(np.random.get_state(legacy=False))  # noqa: NPY002 - as above
    return torch.default_generator.get_state(), numpy_state, random.getstate()


def same_states(
    one: tuple[torch.Tensor, dict[str, Any], tuple[Any, ...]],
    other: tuple[torch.Tensor, dict[str, Any], tuple[Any, ...]],
) -> bool:
    """Tell whether two answers of :func:`states_now` are the same."""
    return torch.equal(one[0], other[0]) and _plain(one[1]) == _plain(other[1]) and one[2] == other[2]


def _numpy_state(like: Any, key: int) -> dict[str, Any]:
    """Return a keyed state for a ``RandomState`` whose present one is ``like``."""
    bit_generator = getattr(np.random, like["bit_generator"])
    return {**bit_generator(key).state, "has_gauss": 0, "gauss": 0.0}


def _state_bytes(
    generator: "torch.Generator | np.random.BitGenerator | np.random.RandomState | random.Random",
) -> bytes:
    match generator:
        case torch.Generator():
            return generator.get_state().numpy().tobytes()
        case np.random.BitGenerator():
            state: Any = generator.state
        case np.random.RandomState():
            state = generator.get_state(legacy=False)
        case _:
            state = generator.getstate()
    return repr(_plain(state)).encode()


def _plain(state: Any) -> Any:
    """Return a state as dicts, tuples and numbers that compare and print alike everywhere."""
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in sorted(state.items())}
    return state.tolist() if isinstance(state, np.ndarray | np.generic) else state


def _start_anew_in_child() -> None:
    # Another thread of the parent may have held the lock.
    global _global_states  # noqa: PLW0603
    _global_states = threading.RLock()


os.register_at_fork(after_in_child=_start_anew_in_child)
