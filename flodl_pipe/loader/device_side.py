"""A loader's part of a device: its stream, its sample pool, and how much of the memory it may hold when.

The budget is probed when the loader is built, as each epoch starts, and after the second batch, when a whole training
step was seen. What it allows is granted by the ledger first and taken late: steps in flight one by one, the pool slab by
slab. Out of memory, the ladder gives back: depth first, then the pool.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.devices.protocol import Device
from flodl_pipe.errors import DeviceMemoryError, LoaderError
from flodl_pipe.loader.device_plan import DevicePlan, device_figures
from flodl_pipe.memory.budget import Grant
from flodl_pipe.memory.depth_policy import Allowance
from flodl_pipe.memory.device_budget import DeviceFigures, device_budget, resident_decision
from flodl_pipe.memory.ledger import process_ledger
from flodl_pipe.staging.protocol import TierCount
from flodl_pipe.staging.ranking import Ranking
from flodl_pipe.staging.sample_pool import SamplePool

__all__ = ["DeviceSide"]

_log = logging.getLogger("flodl_pipe")


@final
class DeviceSide:
    """What a loader holds of a device. Thread-safe.

    Args:
        plan: What it may hold.
        spec: A row as it is uploaded.
        ranking: Which samples the pool holds first.
        owner: Whom the ledger grants to.
        vram_max_usage: ``loader.vram_max_usage``.
        forced: Whether ``loader.mode`` is ``resident``.
        activation_reserve: ``loader.activation_reserve``.

    Attributes:
        device: The device.
        stream: The stream that steps are uploaded on.
        pool: Samples that stay there; None: none do.
        gate: Held while work is enqueued in the background; :meth:`pause` holds it too.
        num_in_flight: Steps uploaded, or being uploaded, that the loop has not taken; kept by the pass.
    """

    def __init__(
        self,
        plan: DevicePlan,
        spec: SampleSpec,
        ranking: Ranking | None,
        *,
        owner: int,
        vram_max_usage: float,
        forced: bool,
        activation_reserve: int | None,
    ) -> None:
        self._plan = plan
        self._owner = owner
        self._vram_max_usage, self._forced, self._reserve = vram_max_usage, forced, activation_reserve
        self.device: Device = plan.shared.device
        self.stream = self.device.stream("transfer")
        self.pool = (
            None
            if plan.pool_off is not None or ranking is None
            else SamplePool(self.device, spec, ranking, stream=self.stream)
        )
        self._row_bytes = max(1, spec.row_bytes)
        self.gate = threading.RLock()
        self._pauses = 0
        self.num_in_flight = 0
        self._decision, self._why = plan.decision, plan.why
        self._depth_changed: Callable[[], None] = lambda: None
        self._lock = threading.RLock()
        plan.shared.add(self)
        try:
            self._apply(plan.allowance)
            if self._decision == "resident":
                self._go_resident()
        except BaseException:
            self.close()
            raise

    @property
    def device_bytes(self) -> int:
        """Bytes that it holds of the device now."""
        pool = 0 if self.pool is None else self.pool.held_bytes
        return pool + self.num_in_flight * self._plan.step_bytes

    @property
    def depth(self) -> int:
        """Steps that may be in flight."""
        return max(1, self._plan.policy.depth)

    @property
    def mode(self) -> tuple[str, str]:
        """Whether the set is resident, and why."""
        return ("resident" if self._decision == "resident" else "streaming"), self._why

    @property
    def is_complete(self) -> bool:
        """Whether every sample is on the device."""
        return self.pool is not None and self.pool.is_complete

    @property
    def fills_ahead(self) -> bool:
        """Whether samples are to be uploaded before they are asked for: the set is to be resident, and is not yet."""
        pool = self.pool
        return self._decision == "resident" and pool is not None and pool.off is None and not pool.is_complete

    @property
    def is_paused(self) -> bool:
        """Whether :meth:`pause` holds background work."""
        return self._pauses > 0

    def on_depth(self, changed: Callable[[], None]) -> None:
        """Call a function whenever the depth may have changed."""
        self._depth_changed = changed

    def epoch_starts(self) -> None:
        """Probe anew, now that the model is likely to be there."""
        self._apply(self._plan.policy.at_epoch(self._figures(), model_bytes=self._model_bytes()))

    def delivered(self) -> None:
        """Count a batch that the loop took; after the second, probe, and decide whether the set becomes resident."""
        allowance = self._plan.policy.delivered(self._figures)
        if allowance is None:
            return
        self._apply(allowance)
        if self._decision == "promote":
            figures = self._figures()
            budget = device_budget(
                figures,
                vram_max_usage=self._vram_max_usage,
                knowledge="honest",
                activation_reserve_bytes=self._reserve or 0,
            )
            decision, why = resident_decision(self._plan.set_bytes, figures, budget=budget, is_honest=True)
            self._decision, self._why = decision, why
            _log.info("after the second batch: %s (%s)", *self.mode)
            if decision == "resident":
                self._go_resident()

    def set_prefetch_depth(self, depth: int) -> None:
        """Fix the steps in flight; see :meth:`flodl_pipe.memory.depth_policy.DepthPolicy.set_prefetch_depth`."""
        self._apply(self._plan.policy.set_prefetch_depth(depth, self._figures()))

    def auto_resize(self) -> None:
        """Size the steps in flight once; see :meth:`flodl_pipe.memory.depth_policy.DepthPolicy.auto_resize`."""
        self._apply(self._plan.policy.auto_resize(self._figures()))

    def set_activation_reserve(self, num_bytes: int | None) -> None:
        """State what a training step takes beyond what is in use."""
        self._reserve = num_bytes
        self._apply(self._plan.policy.set_activation_reserve(num_bytes, self._figures()))

    def give_way(self, error: DeviceMemoryError) -> None:
        """Give something up, the device being out of memory.

        Raises:
            DeviceMemoryError: if there is nothing more to give up.
        """
        pool = self.pool
        rung = self._plan.policy.out_of_memory(pool_bytes=0 if pool is None else pool.held_bytes)
        if rung.action == "nothing":
            raise DeviceMemoryError(f"{rung.words} ({error})") from error
        _log.warning("%s", rung.words)
        if pool is not None and rung.action == "pool":
            pool.shrink(rung.pool_bytes // self._row_bytes)
        if pool is not None and rung.action == "latch":
            pool.switch_off(rung.words)
        if rung.action in ("pool", "latch") and self._decision != "stream":
            self._decision, self._why = "stream", "the device ran out of memory"
        self.device.empty_cache()
        self._depth_changed()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Hold all background work on the device, for example while a CUDA graph is captured."""
        self.gate.acquire()
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            self.gate.release()

    def require_running(self) -> None:
        """Refuse to wait for what is paused.

        Raises:
            LoaderError: if background work is paused.
        """
        if self._pauses:
            raise LoaderError(
                "next() inside loader.pause() has no batch ready, and none can come: nothing is transferred until the "
                "with block ends; take the batch before it"
            )

    def counts(self) -> tuple[TierCount, ...]:
        """Return what was asked of the pool so far."""
        return () if self.pool is None else (self.pool.count(),)

    def close(self) -> None:
        """Give everything back."""
        if self.pool is not None:
            self.pool.close()
        self._plan.shared.remove(self)
        process_ledger().release(self._owner, account=self.device.name)

    def _figures(self) -> DeviceFigures:
        return device_figures(self._plan.shared, self.device_bytes, self._owner)

    def _model_bytes(self) -> int:
        return max(0, self.device.memory().process_bytes - self._plan.shared.held_bytes())

    def _apply(self, allowance: Allowance) -> None:
        """Take what a probe allows: grants first."""
        with self._lock:
            ledger, account = process_ledger(), self.device.name
            steps_bytes, pool = allowance.depth * self._plan.step_bytes, self.pool
            pool_bytes = 0 if pool is None else max(allowance.pool.num_bytes, pool.held_bytes)
            others = ledger.held(account) - sum(ledger.grants(self._owner, account).values())
            # A loop cannot be fed with less than one step in flight, whatever the budget.
            share = Grant(others + max(allowance.budget.num_bytes, steps_bytes + pool_bytes), allowance.budget.reason)
            ledger.take(self._owner, "steps in flight", steps_bytes, share, account)
            if pool is not None:
                ledger.take(self._owner, "sample pool", pool_bytes, share, account)
                pool.grow(pool_bytes // self._row_bytes)
        self._depth_changed()

    def _go_resident(self) -> None:
        """Take the memory for every sample at once; without it, go on streaming, aloud."""
        pool, needed = self.pool, self._plan.set_bytes
        assert pool is not None
        ledger, account = process_ledger(), self.device.name
        ledger.take(self._owner, "sample pool", needed, Grant(ledger.held(account) + needed, self._why), account)
        if pool.grow(needed // self._row_bytes if self._row_bytes > 1 else 1 << 62, at_once=True):
            return
        if self._forced:
            raise DeviceMemoryError(f"loader.mode=resident, but {pool.refusal}")
        self._decision, self._why = "stream", f"the device refused memory for the whole set ({pool.refusal})"
        _log.warning("%s; batches are streamed instead", self._why)
        allowance = self._plan.policy.latest
        if allowance is not None:
            self._apply(allowance)
