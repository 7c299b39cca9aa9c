"""A made-up ``torch.cuda``: it notes who asks for what on which stream and device, and counts a driver's memory.

Tensors lie on the CPU and work is done at once, so nothing here shows that copies overlap, or that a wait is missing.
"""

import threading
from contextlib import contextmanager
from types import SimpleNamespace


class FakeStream:
    def __init__(self, module, device=None):
        self.module, self.device = module, device

    def wait_event(self, event):
        self.module.calls.append(("wait", self, event))


class FakeTorch:
    """A device of ``total`` bytes, of which the driver counts ``others`` as taken by other programs."""

    def __init__(self, *, total=1 << 20, others=0, blocking=True, driver_tells=True, **properties):
        self.total, self.others, self.blocking, self.driver_tells = total, others, blocking, driver_tells
        self.properties = SimpleNamespace(total_memory=total, **properties)
        self.reserved = self.allocated = self.peak = 0
        self.calls = []
        self.default = FakeStream(self)
        self.local = threading.local()

    def Stream(self, device):
        return FakeStream(self, device)

    def Event(self, **options):
        if options and not self.blocking:
            raise TypeError("Event.__new__() got an unexpected keyword argument 'blocking'")
        module = self

        class FakeEvent:
            made_with = options

            def record(self, stream):
                module.calls.append(("record", stream, self))

            def query(self):
                return True

            def synchronize(self):
                module.calls.append(("synchronize", self))

        return FakeEvent()

    def current_stream(self, device=None):
        return getattr(self.local, "stream", self.default)

    @contextmanager
    def stream(self, stream):
        before = self.current_stream()
        self.local.stream = stream
        try:
            yield
        finally:
            self.local.stream = before

    @contextmanager
    def device(self, device):
        self.calls.append(("device", device))
        yield

    def get_device_properties(self, device):
        return self.properties

    def mem_get_info(self, device):
        if not self.driver_tells:
            raise RuntimeError("The device doesn't support querying the available free memory.")
        return self.total - self.others - self.reserved, self.total

    def memory_reserved(self, device):
        return self.reserved

    def memory_stats(self, device):
        if not self.reserved:
            return {}
        self.peak = max(self.peak, self.allocated)
        return {
            "reserved_bytes.all.current": self.reserved,
            "allocated_bytes.all.current": self.allocated,
            "allocated_bytes.all.peak": self.peak,
        }

    def empty_cache(self):
        self.reserved = self.allocated
