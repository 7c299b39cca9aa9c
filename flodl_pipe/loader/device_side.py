"""A loader's part of a device: its stream, its sample pool, and how much of the memory it may hold when.

The budget is probed when the loader is built, as each epoch starts, and after the second batch, when a whole training
step was seen. What it allows is granted by the ledger first and taken late: steps in flight one by one, the pool slab
by slab. Out of memory, the ladder gives back: depth first, then the pool.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import final

from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.devices.protocol import Device
from flodl_pipe.errors import DeviceMemoryError
from flodl_pipe.loader.device_plan import DevicePlan, device_figures, model_bytes_on
from flodl_pipe.loader.gate import Gate
from flodl_pipe.loader.in_flight import InFlight, Room
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
        account: The ledger's account of its memory.
        stream: The stream that steps are uploaded on.
        pool: Samples that stay there; None: none do.
        gate: Who may work on the device.
        flight: Steps of the present pass that are in flight.
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
        self.account = plan.shared.account
        self.stream = self.device.stream("transfer")
        has_pool = plan.pool_off is None and ranking is not None
        self.pool = SamplePool(self.device, spec, ranking, stream=self.stream) if has_pool and ranking else None
        self._row_bytes = spec.row_bytes
        self.is_part = ranking is not None and ranking.is_part
        self.gate = Gate()
        self.flight = InFlight()
        self._decision, self._why = plan.decision, plan.why
        self._step_bytes, self._depth = plan.step_bytes, 1
        self._depth_changed: Callable[[], None] = lambda: None
        # Reentrant: collecting garbage inside a method may close another loader, and probe.
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
        """Bytes that it holds of the device now, work under way left out."""
        return (0 if self.pool is None else self.pool.held_bytes) + self.flight.num_bytes

    @property
    def depth(self) -> int:
        """Steps that may be in flight."""
        return self._depth

    @property
    def room(self) -> Room:
        """What may be in flight: as many steps, and no more bytes than was granted for them."""
        depth = self.depth
        return Room(depth, max(depth * self._plan.step_bytes, self._step_bytes), self._step_bytes)

    @property
    def mode(self) -> tuple[str, str]:
        """Whether the set is resident, and why."""
        return ("resident" if self._decision == "resident" else "streaming"), self._why

    @property
    def is_complete(self) -> bool:
        """Whether every sample that may be kept is on the device; see :attr:`is_part`."""
        return self.pool is not None and self.pool.is_complete

    @property
    def fills_ahead(self) -> bool:
        """Whether samples are to be uploaded before they are asked for: the set is to be resident, and is not yet."""
        pool = self.pool
        return self._decision == "resident" and pool is not None and pool.off is None and not pool.is_complete

    def on_depth(self, changed: Callable[[], None]) -> None:
        """Call a function whenever the depth may have changed."""
        self._depth_changed = changed

    def epoch_starts(self) -> None:
        """Probe anew, now that the model is likely to be there."""
        self._apply(self._plan.policy.at_epoch(self._figures(), model_bytes=model_bytes_on(self._plan.shared)))

    def delivered(self) -> None:
        """Count a batch that the loop took; after the second, probe, and decide whether the set becomes resident."""
        allowance = self._plan.policy.delivered(self._figures)
        if allowance is None:
            return
        self._apply(allowance)
        if self._decision != "promote":
            return
        figures = self._figures()
        budget = device_budget(
            figures,
            vram_max_usage=self._vram_max_usage,
            knowledge="honest",
            activation_reserve_bytes=self._reserve or 0,
        )
        # Beside the steps in flight, which stay.
        left = Grant(max(0, budget.num_bytes - self.depth * self._plan.step_bytes), budget.reason)
        decision, why = resident_decision(self._plan.set_bytes, figures, budget=left, is_honest=True)
        self._decision, self._why = decision, why
        _log.info("after the second batch: %s (%s)", *self.mode)
        if decision == "resident":
            self._go_resident()

    def set_prefetch_depth(self, depth: int) -> None:
        """Fix the steps in flight; see :meth:`flodl_pipe.memory.depth_policy.DepthPolicy.set_prefetch_depth`."""
        self._resize(self._plan.policy.set_prefetch_depth(depth, self._figures()))

    def auto_resize(self) -> None:
        """Size the steps in flight once; see :meth:`flodl_pipe.memory.depth_policy.DepthPolicy.auto_resize`."""
        self._resize(self._plan.policy.auto_resize(self._figures()))

    def set_activation_reserve(self, num_bytes: int | None) -> None:
        """State what a training step takes beyond what is in use."""
        allowance = self._plan.policy.set_activation_reserve(num_bytes, self._figures())
        self._reserve = num_bytes
        self._apply(allowance)

    def saw(self, step_bytes: int) -> None:
        """Note what a step took: batches that functions make are only guessed at before."""
        if step_bytes > self._step_bytes:
            self._step_bytes = step_bytes
            allowance = self._plan.policy.latest
            if allowance is not None:
                self._apply(allowance)

    def give_way(self, error: DeviceMemoryError) -> None:
        """Give something up, the device being out of memory.

        Raises:
            DeviceMemoryError: if there is nothing more to give up.
        """
        pool, policy = self.pool, self._plan.policy
        self._plan.shared.observe()
        rung = policy.out_of_memory(pool_bytes=0 if pool is None else pool.held_bytes)
        if rung.action == "nothing":
            raise DeviceMemoryError(f"{rung.words} ({error})") from error
        _log.warning("%s", rung.words)
        with self._lock:
            if pool is not None and rung.action == "pool":
                pool.shrink(rung.pool_bytes // max(1, self._row_bytes), at_once=True)
            if pool is not None and rung.action == "latch":
                pool.switch_off(rung.words, at_once=True)
            if rung.action in ("pool", "latch") and self._decision != "stream":
                self._decision, self._why = "stream", "the device ran out of memory"
            if policy.latest is not None:
                self._apply(policy.latest)
        self.device.empty_cache()

    def pause(self) -> contextlib.AbstractContextManager[None]:
        """Hold all background work on the device, for example while a CUDA graph is captured."""
        return self.gate.pause()

    def counts(self) -> tuple[TierCount, ...]:
        """Return what was asked of the pool so far."""
        return () if self.pool is None else (self.pool.count(),)

    def close(self) -> None:
        """Give everything back."""
        self._plan.shared.remove(self)
        if self.pool is not None:
            self.pool.close()
        self._depth_changed = lambda: None
        process_ledger().release(self._owner, account=self.account)

    def _figures(self) -> DeviceFigures:
        # Between two pieces of work, what it holds is known exactly.
        with self.gate.pause(forbids_own=False):
            return device_figures(self._plan.shared, self.device_bytes, self._owner, work_bytes=self._plan.work_bytes)

    def _resize(self, allowance: Allowance) -> None:
        """Take what the user asked for: a pool that the ladder switched off may hold samples again."""
        if self.pool is not None:
            self.pool.off = None
        self._apply(allowance)

    def _apply(self, allowance: Allowance) -> None:
        """Take what a probe allows: grants first. Of the pool, what it has stays: it does not evict."""
        plan, pool = self._plan, self.pool
        with self._lock:
            allowance = plan.policy.latest or allowance  # the ladder may have come in between
            depth = max(1, allowance.depth)
            self._depth = min(self._depth, depth)
            steps_bytes = max(depth * plan.step_bytes, self.flight.num_bytes + self._step_bytes)
            # What was not known of steps is not known of the work on them either.
            work_bytes = plan.work_bytes + 2 * (self._step_bytes - plan.step_bytes)
            pool_bytes = 0 if pool is None else max(allowance.pool.num_bytes, pool.held_bytes)
            if self._decision == "resident":
                pool_bytes = max(pool_bytes, plan.set_bytes)
            # A loop cannot be fed with less than one step in flight, whatever the budget.
            needed = steps_bytes + work_bytes + pool_bytes
            share = self._share(max(allowance.budget.num_bytes + work_bytes, needed), allowance.budget.reason)
            if pool is not None:
                # What the pool gives up goes first: both together must fit at any time.
                before = process_ledger().grants(self._owner, self.account).get("sample pool", 0)
                self._take("sample pool", min(before, pool_bytes), share)
            self._take("steps in flight", steps_bytes + work_bytes, share)
            if pool is not None:
                rows = pool_bytes // self._row_bytes if self._row_bytes else plan.num_samples
                pool.shrink(rows)
                self._take("sample pool", pool_bytes, share)
                pool.grow(rows)
            self._depth = depth
        self._depth_changed()

    def _share(self, own_bytes: int, reason: str) -> Grant:
        """Return what all loaders may hold of the device where this one may hold ``own_bytes``."""
        ledger, account = process_ledger(), self.account
        others = ledger.held(account) - sum(ledger.grants(self._owner, account).values())
        return Grant(others + own_bytes, reason)

    def _take(self, purpose: str, num_bytes: int, share: Grant) -> None:
        process_ledger().take(self._owner, purpose, num_bytes, share, self.account)

    def _go_resident(self) -> None:
        """Take the memory for every sample at once; without it, go on streaming, aloud."""
        pool, allowance = self.pool, self._plan.policy.latest
        assert pool is not None
        assert allowance is not None
        self._apply(allowance)
        if pool.grow(self._plan.num_samples, at_once=True):
            return
        why = f"the device refused memory for the whole set ({pool.refusal})"
        self._decision, self._why = "stream", why
        if self._forced:
            raise DeviceMemoryError(f"loader.mode=resident, but {why}")
        _log.warning("%s; batches are streamed instead", why)
        self._apply(allowance)
