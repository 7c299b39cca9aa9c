"""What tests of the loader see inside of one, where nothing that it tells by itself would do.

White box: the engine behind a loader, its tiers and its device are looked at, and the sizes of pieces are made small.
"""

import contextlib
import threading

from flodl_pipe.devices.simulated_memory import Block
from flodl_pipe.loader import device_fill, plan, targets
from flodl_pipe.memory import device_budget
from flodl_pipe.staging import sample_pool
from tests.loader.waiting import joined


def wait_until_filled(loader):
    """Wait until what fills the host's memory in the background has ended; return whether all is there that may be."""
    tiers = loader._engine._tiers
    thread = tiers._thread if tiers.whole is None else tiers.whole._thread
    if thread is not None:
        joined(thread)
    return tiers.is_filled


def demand_of(loader):
    """Return what the reads of the pass at work are for."""
    return loader._engine._reading._demand


def next_is_read(loader):
    """Return whether the next group of the pass at work has been read."""
    return loader._engine._reading._table.is_ready()


def settled(loader):
    """Wait for what is read between two passes."""
    loader._engine._rest.settle()


def start_filling(loader):
    """Begin to fill memory now, not with the first batch."""
    loader._engine.start_resident()


def load_whole_set(loader):
    """Load the resident set in this thread; return whether it is kept field by field."""
    whole = loader._engine._tiers.whole
    whole.load()
    return whole.planes is not None


def bytes_in_use(memory):
    """Return what tensors take of simulated memory at this moment, but for those whose end it has not seen yet."""
    alive = [lease for lease in list(memory._leases.values()) if lease() is not None]
    return sum(lease.holds.size_bytes for lease in alive if isinstance(lease.holds, Block))


def disk_file(loader):
    """Return the file of a loader whose only tier is a disk stage."""
    return loader._engine._tiers.cascade._tiers[0]._file


def order_of(loader):
    """Return the order in which samples come."""
    return loader._engine._order


def making_of(loader):
    """Return how batches are made."""
    return loader._engine._making


def slots_of(loader):
    """Return the slots that readers fill."""
    return loader._engine.pool


def interrupt_reads(loader):
    """Break off what is being read, as the end of a loader does."""
    loader._engine._interrupt()


def device_of(loader):
    """Return the device that a loader delivers to."""
    return loader._engine.side.device


def lies_on(device, tensor):
    """Return whether a tensor is in the memory of a simulated device."""
    return device._core.holds(tensor)


def pool_of(loader):
    """Return the samples that are kept on the device."""
    return loader._engine.side.pool


@contextlib.contextmanager
def asks_gate(loader):
    """Give an event that is set as soon as something asks to work on the device, whether it may or not."""
    gate, asked = loader._engine.side.gate, threading.Event()
    work = gate.work

    def watched(is_stopped):
        asked.set()
        return work(is_stopped)

    gate.work = watched
    try:
        yield asked
    finally:
        del gate.work


def holds_all(loader):
    """Return whether every sample that may be kept is on the device."""
    return loader._engine.side.is_complete


def policy_of(loader):
    """Return what decides how much of the device may be held."""
    return loader._engine.side._plan.policy


def num_in_flight(loader):
    """Return the steps that are on the device, or on their way, and not taken."""
    return loader._engine.side.flight.num_steps


def num_ready(loader):
    """Return the steps that the loop may take from the device now."""
    return len(loader._engine._reading._ready)


def simulated_device():
    """Return the one simulated device that there is."""
    (shared,) = targets._shared.values()
    return shared.device


def shared_devices():
    """Return the devices of this process, each with who holds memory of it."""
    return list(targets._shared.values())


def make_devices(patch, make):
    """Let another device be made where a simulated one is asked for."""
    patch.setattr(targets, "SimulatedDevice", make)


def small_pieces(patch, *, slab_bytes, least_slab_bytes=None, chunk_bytes=None):
    """Keep samples on a device in small slabs, and upload them ahead in small chunks."""
    patch.setattr(sample_pool, "_SLAB_BYTES", slab_bytes)
    patch.setattr(device_budget, "_MIN_SLAB_BYTES", least_slab_bytes or slab_bytes)
    if chunk_bytes is not None:
        patch.setattr(device_fill, "CHUNK_BYTES", chunk_bytes)


def split_steps(patch):
    """Let readers share steps that are otherwise too small for it."""
    patch.setattr(plan, "_PART_STORED_BYTES", 100)
    patch.setattr(plan, "_GROUP_STORED_BYTES", 100)
