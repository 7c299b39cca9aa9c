"""When the device budget is taken anew, and who decides from then on.

::

    build            4 steps in flight                    nothing is there yet
    epoch starts     probe; 1/3, 1/2 or all of the budget the model is there, its activations may not be
    second batch     probe; all of the budget             a whole step is over
    each epoch       probe                                memory comes and goes

``loader.prefetch=N``, ``set_prefetch_depth`` and ``auto_resize`` end the adaptation of the depth: it is what it was set
to, until it is set again. The sample pool goes on growing into what is left. Out of memory overrules all of it
(:mod:`flodl_pipe.memory.ladder`).
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from flodl_pipe.errors import LoaderError
from flodl_pipe.memory.budget import Grant
from flodl_pipe.memory.depth import depth_and_reason
from flodl_pipe.memory.device_budget import (
    DeviceFigures,
    Knowledge,
    derived_reserve_bytes,
    device_budget,
    pool_grant,
    slab_rows,
)
from flodl_pipe.memory.ladder import Ladder, Rung

__all__ = ["Allowance", "DepthPolicy", "StepSizes"]

_HONEST_AFTER_BATCHES = 2


@final
@dataclass(frozen=True)
class StepSizes:
    """What moves to the device.

    Attributes:
        step_bytes: What a step in flight takes there.
        num_steps: Steps of an epoch.
        row_bytes: Bytes of a stored row.
        num_rows: Rows of the whole set; 0 where no pool may be kept.
    """

    step_bytes: int
    num_steps: int
    row_bytes: int
    num_rows: int


@final
@dataclass(frozen=True)
class Allowance:
    """What a probe allows.

    Attributes:
        budget: All that may be held on the device.
        depth: Steps in flight.
        why: Reason for the depth.
        pool: The sample pool's part.
    """

    budget: Grant
    depth: int
    why: str
    pool: Grant


@final
class DepthPolicy:
    """Depth and pool of one loader on one device. All methods may be called from several threads."""

    def __init__(
        self,
        sizes: StepSizes,
        *,
        vram_max_usage: float,
        forced: int | None = None,
        activation_reserve_bytes: int | None = None,
    ) -> None:
        """Start before anything is known.

        Args:
            sizes: What moves.
            vram_max_usage: Fraction of the device's memory, see :func:`~flodl_pipe.memory.device_budget.device_budget`.
            forced: ``loader.prefetch`` as a number; None adapts.
            activation_reserve_bytes: ``loader.activation_reserve``; None where none is stated.
        """
        self._lock = threading.RLock()
        self._sizes = sizes
        self._vram_max_usage = vram_max_usage
        self._fixed = forced
        self._stated_bytes = activation_reserve_bytes
        self._derived_bytes = 0
        self._num_delivered = 0
        self._has_started = False
        self._latest: Allowance | None = None
        self.ladder = Ladder(slab_bytes=slab_rows(sizes.row_bytes, max(1, sizes.num_rows)) * sizes.row_bytes)

    @property
    def is_automatic(self) -> bool:
        """Whether the depth still adapts."""
        return self._fixed is None

    @property
    def depth(self) -> int:
        """Steps in flight at present; 1 before the first probe."""
        with self._lock:
            return self._latest.depth if self._latest else 1

    @property
    def latest(self) -> Allowance | None:
        """What the latest probe allowed; None before the first."""
        return self._latest

    @property
    def knowledge(self) -> Knowledge:
        """What is known of a training step's memory."""
        with self._lock:
            if self._num_delivered >= _HONEST_AFTER_BATCHES:
                return "honest"
            if self._stated_bytes is not None:
                return "stated"
            return "derived" if self._derived_bytes else "unknown"

    def at_build(self, figures: DeviceFigures, *, model_bytes: int = 0) -> Allowance:
        """Return what is taken before training.

        Args:
            figures: Probe of the device.
            model_bytes: What this process has on the device for its model already.

        Raises:
            StagingError: if a forced depth does not fit.
        """
        with self._lock:
            self._derived_bytes = derived_reserve_bytes(model_bytes)
            return self._decide(figures)

    def at_epoch(self, figures: DeviceFigures, *, model_bytes: int = 0) -> Allowance:
        """Return what may be taken as an epoch starts; see :meth:`at_build`."""
        with self._lock:
            self._has_started = True
            self._derived_bytes = derived_reserve_bytes(model_bytes)
            return self._decide(figures, keeps=self._latest is not None)

    def delivered(self, probe: Callable[[], DeviceFigures]) -> Allowance | None:
        """Count a delivered batch; after the second one, probe and return what may be taken now that it is known.

        Args:
            probe: Called that one time.
        """
        with self._lock:
            self._has_started = True
            self._num_delivered += 1
            if self._num_delivered != _HONEST_AFTER_BATCHES:
                return None
            return self._decide(probe(), keeps=self._latest is not None)

    def set_prefetch_depth(self, depth: int, figures: DeviceFigures) -> Allowance:
        """Fix the depth; the automatic adaptation ends.

        Raises:
            LoaderError: if it is less than 1.
            StagingError: if it does not fit; everything stays as it was then.
        """
        if depth < 1:
            raise LoaderError(f"set_prefetch_depth({depth}): the depth must be at least 1")
        with self._lock:
            before, self._fixed = self._fixed, depth
            try:
                allowance = self._decide(figures, new_size=True)
            except BaseException:
                self._fixed = before
                raise
            return allowance

    def auto_resize(self, figures: DeviceFigures) -> Allowance:
        """Size the depth by the present figures, once; the automatic adaptation ends."""
        with self._lock:
            self._has_started = True
            self._fixed = None
            allowance = self._decide(figures, new_size=True)
            self._fixed = allowance.depth
            return allowance

    def set_activation_reserve(self, num_bytes: int | None, figures: DeviceFigures) -> Allowance:
        """State what a training step takes beyond what is in use, or take the statement back with None.

        Raises:
            LoaderError: if it is negative.
        """
        if num_bytes is not None and num_bytes < 0:
            raise LoaderError(f"set_activation_reserve({num_bytes}): the reserve must be at least 0 bytes")
        with self._lock:
            self._stated_bytes = num_bytes
            return self._decide(figures, keeps=self._latest is not None)

    def out_of_memory(self, what: str = "a batch", *, pool_bytes: int | None = None) -> Rung:
        """Return what to give up, a device being out of memory.

        Args:
            what: What there was no memory for.
            pool_bytes: What the pool holds; by default all that it may.
        """
        with self._lock:
            latest = self._latest
            held_bytes = pool_bytes if pool_bytes is not None else latest.pool.num_bytes if latest else 0
            rung = self.ladder.give_way(depth=self.depth, pool_bytes=held_bytes, what=what)
            if latest is not None:
                pool = Grant(min(latest.pool.num_bytes, rung.pool_bytes), rung.words)
                self._latest = Allowance(latest.budget, rung.depth, rung.words, pool)
            return rung

    def _decide(self, figures: DeviceFigures, *, keeps: bool = False, new_size: bool = False) -> Allowance:
        """Return what ``figures`` allow.

        Args:
            figures: Probe of the device.
            keeps: Whether a fixed depth that ran before stays, even if the budget has become too small for it: what
                was allowed once is no error in the middle of a run, and out of memory has the ladder.
            new_size: Whether the user asked for a new size, so that earlier shortages are forgotten.
        """
        knowledge = self.knowledge
        reserve_bytes = self._derived_bytes if knowledge == "derived" else self._stated_bytes or 0
        budget = device_budget(
            figures,
            vram_max_usage=self._vram_max_usage,
            knowledge=knowledge,
            activation_reserve_bytes=reserve_bytes,
        )
        sizes = self._sizes
        if keeps and self._fixed is not None:
            depth, why = min(self._fixed, max(1, sizes.num_steps)), f"{self._fixed} steps, as asked for"
        else:
            full = device_budget(
                figures,
                vram_max_usage=self._vram_max_usage,
                knowledge="honest",
                activation_reserve_bytes=reserve_bytes,
            )
            depth, why = depth_and_reason(
                budget.num_bytes,
                sizes.step_bytes,
                at_build=not self._has_started,
                forced=self._fixed,
                num_steps=sizes.num_steps,
                forced_budget_bytes=full.num_bytes,
            )
        if new_size:
            self.ladder.reset()
        capped = self.ladder.cap_depth(depth)
        if capped < depth:
            depth, why = capped, f"{capped} steps, for the device ran out of memory with more"
        pool = pool_grant(budget.num_bytes, depth * sizes.step_bytes, sizes.row_bytes, sizes.num_rows)
        capped_bytes = self.ladder.cap_pool(pool.num_bytes)
        if capped_bytes < pool.num_bytes:
            pool = Grant(capped_bytes, "the device ran out of memory with more")
        self._latest = Allowance(budget, depth, why, pool)
        return self._latest
