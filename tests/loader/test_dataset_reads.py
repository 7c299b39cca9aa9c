"""What a loader asks a user's dataset for, and when: no more than it needs, once, and nothing after its end."""

import contextlib
import threading

import numpy as np
import pytest
import torch

from flodl_pipe.loader.loader import Loader
from tests.loader.device_cases import small_device
from tests.loader.inside import demand_of, next_is_read, settled
from tests.loader.waiting import HANG_S, joined, until

PROBES = 16  # sample 0, and what the probe of purity reads twice
BATCH = 32


class Counted:
    """Samples that count how often they are asked for, and whether two are at once.

    Args:
        n: Samples.
        width: Numbers of each.
        before: Called before a sample is made.
    """

    def __init__(self, n=300, width=1, *, before=lambda index: None):
        self.n, self.width, self.before = n, width, before
        self.asked = []

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        self.asked.append(index)
        self.before(index)
        return torch.full((self.width,), float(index)), index


class Uneven(Counted):
    """Samples of different lengths."""

    def __getitem__(self, index):
        super().__getitem__(index)
        return {"tokens": np.full(1 + index % 5, index, dtype=np.int32)}


@pytest.mark.parametrize("width", [1, 800, 40_000])
@pytest.mark.parametrize("options", [{}, {"mode": "streaming"}, {"mode": "resident"}, {"prefetch": 16}, {"readers": 2}])
def test_the_first_batch_asks_for_two_steps_at_most(width, options):
    data = Counted(2000 if width < 40_000 else 200, width)
    with Loader(data, batch_size=BATCH, thread_safe=True, **options) as loader:
        next(iter(loader))
        assert len(data.asked) <= 2 * BATCH + PROBES


@pytest.mark.parametrize("mode", ["auto", "streaming", "resident"])
@pytest.mark.parametrize("on_device", [False, True])
def test_without_readers_a_step_asks_for_its_rows_alone(mode, on_device):
    data = Counted()
    with contextlib.ExitStack() as stack:
        options = stack.enter_context(small_device(64 << 20))[0] if on_device else {}
        loader = stack.enter_context(Loader(data, batch_size=BATCH, readers=0, mode=mode, **options))
        batches = iter(loader)
        next(batches)
        assert len(data.asked) <= BATCH + PROBES
        for step in range(1, 4):
            before = len(data.asked)
            wanted = next(batches)[1].tolist()
            assert sorted(data.asked[before:]) == sorted(wanted), step


@pytest.mark.parametrize(
    "options", [{}, {"mode": "streaming"}, {"mode": "resident"}, {"readers": 2}, {"drop_last": False}]
)
@pytest.mark.parametrize("kind", [Counted, Uneven])
def test_every_sample_is_read_once_whatever_the_passes(kind, options):
    data = kind()
    ragged = {"collate": "pad"} if kind is Uneven else {}
    if ragged and options.get("mode") == "resident":
        pytest.skip("rows of different lengths are not resident")
    with Loader(data, batch_size=BATCH, thread_safe=True, **ragged, **options) as loader:
        for _ in loader:
            pass
        if kind is Counted:
            assert loader.is_loaded
        else:
            settled(loader)
        asked = len(data.asked)
        assert asked <= data.n + PROBES + (kind is Uneven)  # which tries some to see what is ragged
        for _ in range(3):
            for _ in loader:
                pass
        assert len(data.asked) == asked


@pytest.mark.parametrize("readers", [1, 2])
def test_a_set_on_a_device_is_read_once_as_well(readers):
    data = Counted()
    with contextlib.ExitStack() as stack:
        options = stack.enter_context(small_device(64 << 20))[0]
        loader = stack.enter_context(Loader(data, batch_size=BATCH, readers=readers, thread_safe=True, **options))
        for _ in range(2):
            for batch in loader:
                del batch
        assert loader.is_loaded
        asked = len(data.asked)
        for batch in loader:
            del batch
        assert len(data.asked) == asked
        assert asked <= 1.02 * data.n + PROBES


class Held(Counted):
    """Samples that are held until they are let go one by one, but for the first ones."""

    def __init__(self, free):
        super().__init__(4000)
        self.free, self.let_go, self.waits = free, threading.Semaphore(0), threading.Event()

    def __getitem__(self, index):
        if len(self.asked) >= self.free:
            self.waits.set()
            assert self.let_go.acquire(timeout=HANG_S)
        return super().__getitem__(index)


@pytest.mark.parametrize("ending", ["close", "break"])
@pytest.mark.parametrize("readers", [1, 2])
def test_an_ending_waits_for_the_samples_in_hand_alone(ending, readers):
    data = Held(free=1 + 2 * BATCH)  # sample 0, and the two steps that are read before the first batch is taken
    loader = Loader(data, batch_size=BATCH, thread_safe=True, readers=readers, check_purity=False)
    batches = [iter(loader)]
    next(batches[0])
    until(lambda: next_is_read(loader), "the second step")
    next(batches[0])
    until(data.waits.is_set, "a read of the third step")
    asked, demand = len(data.asked), demand_of(loader)
    ends = threading.Thread(target=loader.close if ending == "close" else batches.clear)
    ends.start()
    until(lambda: demand.is_ended, "the end")
    for _ in range(readers):
        data.let_go.release()
    joined(ends)
    assert len(data.asked) <= asked + readers
    loader.close()


class Meeting(Counted):
    """Samples in which the first reader waits for a second one, and that notice how many are inside at once."""

    def __init__(self, *, waits):
        super().__init__(before=self.meet)
        self.waits, self.met = waits, threading.Event()
        self.lock, self.inside, self.most = threading.Lock(), 0, 0

    def meet(self, index):
        del index
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            if self.inside > 1:
                self.met.set()
        if self.waits and threading.current_thread().name.startswith("flodl_pipe-reader"):
            assert self.met.wait(HANG_S)
        with self.lock:
            self.inside -= 1


class Safe(Meeting):
    thread_safe = True


@pytest.mark.parametrize(("kind", "options"), [(Meeting, {"thread_safe": True}), (Safe, {})])
def test_several_threads_are_inside_where_the_dataset_allows_it(kind, options):
    data = kind(waits=True)
    with Loader(data, batch_size=BATCH, readers=2, check_purity=False, **options) as loader:
        for _ in loader:
            pass
    assert data.met.is_set()


@pytest.mark.parametrize(
    ("kind", "options"), [(Meeting, {}), (Meeting, {"thread_safe": False}), (Safe, {"thread_safe": False})]
)
def test_one_thread_is_inside_where_nobody_has_said_so(kind, options):
    data = kind(waits=False)
    with Loader(data, batch_size=BATCH, readers=3, **options) as loader:
        for _ in loader:
            pass
    assert data.most == 1
