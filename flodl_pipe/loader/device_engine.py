"""The device's half of an engine: what readers leave for it to do, and the passes that do it."""

import contextlib
from collections.abc import Callable
from typing import final

from flodl_pipe.arrays import ByteArray, IndexArray
from flodl_pipe.batch.ragged import Columns
from flodl_pipe.config.loader import LoaderConfig
from flodl_pipe.errors import DeviceMemoryError
from flodl_pipe.loader.device_fill import DeviceFill
from flodl_pipe.loader.device_pass import DevicePass
from flodl_pipe.loader.device_plan import DevicePlan
from flodl_pipe.loader.device_side import DeviceSide
from flodl_pipe.loader.feed import Pass
from flodl_pipe.loader.finish import Finish
from flodl_pipe.loader.group_upload import GroupUpload
from flodl_pipe.loader.lookahead import Lookahead
from flodl_pipe.loader.making import Making
from flodl_pipe.loader.resident_pass import ResidentPass
from flodl_pipe.loader.slots import SlotLayout, SlotPool
from flodl_pipe.loader.torch_modes import outside_of_the_loop
from flodl_pipe.loader.upload import Upload
from flodl_pipe.staging.pool_slabs import GatherPlan
from flodl_pipe.staging.ranking import Ranking

__all__ = ["DeviceEngine"]


@final
class DeviceEngine:
    """What stands between an engine's readers and a loop whose batches are on a device.

    Args:
        plan: What may be held of the device.
        making: How batches are made.
        layout: Layout of a slot.
        ranking: Which samples the pool holds first; None without one.
        config: Section ``loader``.
        reads_ahead: Whether samples may be read before they are asked for, which is dear for a dataset in Python.
        seed: Run seed.
        owner: Whom the ledger grants to.
        keep_digest: Whether to hash delivered rows.

    Attributes:
        side: What is held of the device.
        upload: Moves steps there.
        delivers: Whether readers leave stored rows for the device to deliver.
        keeps_digest: Whether rows are hashed there.
        is_quick: Whether a complete pool is gathered from without readers.
        gather_plan: Plans a step whose rows the pool may hold; None without a pool.

    Raises:
        StagingError: if memory is refused.
    """

    def __init__(
        self,
        plan: DevicePlan,
        making: Making,
        layout: SlotLayout,
        ranking: Ranking | None,
        config: LoaderConfig,
        *,
        reads_ahead: bool,
        seed: int,
        owner: int,
        keep_digest: bool,
    ) -> None:
        self._reads_ahead = reads_ahead
        self._alone = making.parts.passes_through
        self._spec = layout.spec
        self._is_apart, self._chunk_rows = plan.host.making.is_apart, plan.chunk_rows
        self.delivers = plan.host.rows is not None
        self.keeps_digest = keep_digest and self.delivers
        self.side = DeviceSide(
            plan,
            self._spec,
            ranking,
            owner=owner,
            vram_max_usage=config.vram_max_usage,
            forced=config.mode == "resident",
            activation_reserve=config.activation_reserve,
        )
        finish = Finish(plan.host.rows, making.rows, plan.host.chain, seed, keep_digest=self.keeps_digest)
        self.upload = Upload(self.side.device, self.side.stream, layout, finish, self.side.pool)
        # Samples that are skipped are found by readers only.
        self.is_quick = making.parts.max_skipped is None
        self.gather_plan: Callable[[IndexArray], GatherPlan] | None = (
            None if self.side.pool is None else self.side.pool.plan
        )

    def host_slab(self, num_bytes: int) -> ByteArray:
        """Return memory for slots; see :meth:`flodl_pipe.devices.protocol.Device.host_slab`."""
        return self.side.device.host_slab(num_bytes)

    def load(self, read: Callable[[IndexArray], Columns]) -> None:
        """Upload all that is to be resident, in this thread; nothing where samples are kept as they are read."""
        if self._reads_ahead:
            self._load(read)

    def load_rest(self, read: Callable[[IndexArray], Columns], most: int) -> None:
        """Upload what is still missing of a set that is to be resident, if it is no more than so many samples."""
        pool = self.side.pool
        if pool is not None and self.side.fills_ahead and len(pool.missing(0, most + 1)[0]) <= most:
            self._load(read)

    def _load(self, read: Callable[[IndexArray], Columns]) -> None:
        fill = self._fill(read)
        with outside_of_the_loop(without_graph=True):
            while fill is not None and self.side.fills_ahead:
                chunk = fill.read()
                if chunk is None:
                    return
                try:
                    with self.side.gate.work(lambda: False):
                        fill.upload(chunk)
                except DeviceMemoryError as error:
                    self.side.give_way(error)

    def wrap(
        self,
        inner: Pass,
        pool: SlotPool,
        pool_lock: contextlib.AbstractContextManager[object],
        read: Callable[[IndexArray], Columns] | None,
        *,
        num_readers: int,
    ) -> DevicePass:
        """Return a pass that uploads what another one reads."""
        try:
            if not self._is_apart:
                with pool_lock:  # page-locked memory is taken in this thread, not by a reader while the loop may pause
                    for run in pool.take(1):
                        pool.put_back(run.first)
            return DevicePass(
                inner,
                self.side,
                GroupUpload(self.upload, pool.layout, read, alone=self._alone),
                self._fill(read) if self._reads_ahead else None,
                pool,
                pool_lock,
                in_background=num_readers > 0 and self.side.device.has_streams,
            )
        except BaseException:
            inner.stop()
            raise

    def resident_pass(self, ahead: Lookahead, go_on: Callable[[int], Pass]) -> ResidentPass:
        """Return a pass over samples that are all on the device.

        Args:
            ahead: Picks of the pass.
            go_on: Returns a pass that reads, from a position on, for when the device runs out of memory.
        """
        return ResidentPass(ahead, self.side, self.upload, go_on)

    def close(self) -> None:
        """Give everything back."""
        self.side.close()

    def _fill(self, read: Callable[[IndexArray], Columns] | None) -> DeviceFill | None:
        pool = self.side.pool
        if pool is None or read is None:
            return None
        return DeviceFill(pool, self.upload, self._spec, read, chunk_rows=self._chunk_rows)
