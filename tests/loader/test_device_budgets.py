"""What a loader may hold of a device, and what it does hold: granted first, late, and never at the model's expense."""

import logging
import textwrap
import threading

import pytest

from flodl_pipe.devices.simulated_memory import SimulatedMemory
from flodl_pipe.errors import DeviceMemoryError, LoaderError, StagingError
from flodl_pipe.loader.in_flight import InFlight
from flodl_pipe.loader.loader import Loader
from flodl_pipe.memory.ledger import process_ledger
from tests.loader.device_cases import Fields, on_cpu, plain, require_same, run, small_device
from tests.loader.inside import bytes_in_use, num_in_flight, policy_of, pool_of
from tests.loader.sources import Numbers
from tests.loader.waiting import until
from tests.support import programs

MIB = 1 << 20
SET_BYTES = 331 * Fields().spec.row_bytes  # 1.3 MB
BATCH = 16
BATCH_BYTES = BATCH * Fields().spec.row_bytes + 8 * 512


def account(loader):
    return dict(loader.granted())


def held_of_devices():
    """Return what is granted of simulated devices, each an account of its own."""
    return sum(held for account, held in process_ledger().accounts().items() if account.startswith("simulated"))


@pytest.fixture
def watched(monkeypatch):
    """Compare what is allocated with what was granted, at every allocation; the loop holds one batch at most."""
    seen = []
    lease = SimulatedMemory.lease

    def checked(self, block, num_bytes):
        granted = held_of_devices()  # first: the loop may let go of a batch meanwhile, and take the next
        tensor = lease(self, block, num_bytes)
        seen.append((bytes_in_use(self), granted))
        return tensor

    monkeypatch.setattr(SimulatedMemory, "lease", checked)
    # Work that is put off holds tensors that a real device would have had back.
    put = "flodl_pipe.devices.simulated_stream.SimulatedStream.put"
    original = __import__("flodl_pipe.devices.simulated_stream", fromlist=["x"]).SimulatedStream.put

    def at_once(self, entry):
        original(self, entry)
        self.run_all()

    monkeypatch.setattr(put, at_once)
    return seen


def passed(loader, epochs, *, on_step=lambda: None):
    """Run a loop that lets go of each batch before it asks for the next, and takes memory for each step."""
    found = []
    for epoch in range(epochs):
        for batch in loader.epoch(epoch):
            found.append(plain(batch))
            on_step()
            del batch
    return found


@pytest.mark.parametrize(
    ("total", "model", "mode"),
    [
        (64 * MIB, 0.8, "auto"),
        (4 * MIB, 0.55, "streaming"),
        (3 * MIB, 0.3, "auto"),
        (2 * MIB, 0.0, "streaming"),
        *(
            pytest.param(*case, marks=pytest.mark.full)
            for case in (
                (64 * MIB, 0.8, "streaming"),
                (4 * MIB, 0.55, "auto"),
                (3 * MIB, 0.3, "streaming"),
                (2 * MIB, 0.0, "auto"),
            )
        ),
    ],
)
def test_every_byte_was_granted_and_a_step_gets_what_is_left(watched, total, model, mode):
    with on_cpu(Fields(), batch_size=BATCH) as loader:
        wanted = run(loader, 3)
    with small_device(total) as (options, get), Loader(Fields(), batch_size=BATCH, mode=mode, **options) as loader:
        device = get()
        held = device.take(int(model * total))  # after the loader was built, before the first step
        # The loop's own batch, and one that it may still hold while it asks for the next.
        left = int(total * 0.1) - 2 * BATCH_BYTES
        found = passed(loader, 3, on_step=lambda: device.take(left))
        require_same(found, wanted)
        assert device.faults == []
        for allocated, granted in watched:
            assert allocated - BATCH_BYTES <= granted
            assert allocated - BATCH_BYTES + model * total <= 0.9 * total
        del held


def test_a_transfer_thread_waits_for_credits_from_its_first_step_on(monkeypatch):
    waits, too_many = threading.Event(), []
    has_room, start = InFlight.has_room, threading.Thread.start

    def asked(self, room):
        found = has_room(self, room)
        if not found:
            waits.set()
        return found

    def goes_beyond():
        return num_in_flight(loader) > loader.prefetch_depth

    def started(thread):
        start(thread)
        if thread.name == "flodl_pipe-transfer":  # who starts it does nothing more for a while
            until(lambda: waits.is_set() or goes_beyond(), "a wait for a credit")
            too_many.append(goes_beyond())

    monkeypatch.setattr(InFlight, "has_room", asked)
    monkeypatch.setattr(threading.Thread, "start", started)
    with small_device(4 * MIB) as (options, get), Loader(Fields(), batch_size=BATCH, **options) as loader:
        model = get().take(int(0.55 * 4 * MIB))
        next(iter(loader))
        assert too_many == [False]
        del model


@pytest.mark.parametrize("late", [False, True])
def test_a_model_that_comes_after_the_first_read_gets_its_memory(late):
    total = 4 * MIB
    with small_device(total) as (options, get), Loader(Fields(), batch_size=BATCH, **options) as loader:
        device, left = get(), int(total * 0.1) - 2 * BATCH_BYTES
        before = iter(loader) if late else None
        if before is not None:
            next(before)  # the transfer is at work
        model = device.take(int(total * 0.5))
        for _ in before or iter(loader):
            device.take(left)
        for _ in loader:
            device.take(left)
        del model
        assert device.faults == []


def test_hits_are_the_part_of_the_set_that_the_pool_holds():
    with small_device(3 << 19) as (options, get), Loader(Fields(), batch_size=BATCH, drop_last=False, **options) as it:
        before, pool = (0, 0), pool_of(it)
        held = []
        for epoch in range(10):
            held.append(pool.num_rows / 331)
            for batch in it.epoch(epoch):
                del batch  # else its memory is the loop's
            count = it.tiers()[0]
            assert count.name == "sample pool"
            rate = (count.num_hits - before[1]) / (count.num_rows - before[0])
            before = count.num_rows, count.num_hits
            # While it fills, the samples of the epoch so far are none that come again.
            assert held[-1] - 0.01 <= rate <= pool.num_rows / 331 + 0.01
            if pool.num_rows / 331 == held[-1]:
                assert rate == pytest.approx(held[-1], abs=0.01)
        assert 0.3 < held[-1] < 0.9
        assert len(set(held[2:])) == 1
        assert get().faults == []


def test_before_the_first_step_a_third_then_a_half_then_all_of_it():
    total = 64 * MIB

    def budget(**more):
        return Loader(Fields(), batch_size=BATCH, mode="streaming", **options, **more)

    with small_device(total) as (options, get):
        with budget() as loader:
            policy = policy_of(loader)
            assert policy.knowledge == "unknown"
            third = policy.latest.budget.num_bytes
            assert loader.prefetch_depth == 4
            iterator = iter(loader)
            assert third == pytest.approx(0.9 * total / 3, rel=0.02)
            next(iterator)
            next(iterator)
            assert policy.knowledge == "honest"
            assert policy.latest.budget.num_bytes == pytest.approx(0.9 * total, rel=0.05)
            assert loader.prefetch_depth == 20  # a whole epoch fits
        with budget(activation_reserve=4 * MIB) as loader:
            policy = policy_of(loader)
            assert policy.knowledge == "stated"
            assert policy.latest.budget.num_bytes == pytest.approx(0.9 * total - 4 * MIB, rel=0.05)
            loader.set_activation_reserve(8 * MIB)
            assert policy.latest.budget.num_bytes == pytest.approx(0.9 * total - 8 * MIB, rel=0.05)
            with pytest.raises(LoaderError, match="at least 0"):
                loader.set_activation_reserve(-1)
        model = get().take(8 * MIB)
        with budget() as loader:
            policy = policy_of(loader)
            assert policy.knowledge == "derived"
            expected = (0.9 * total - 8 * MIB - 3 * 8 * MIB) / 2
            assert policy.latest.budget.num_bytes == pytest.approx(expected, rel=0.05)
        del model


def test_a_depth_that_was_set_is_kept_until_it_is_set_again():
    with small_device(64 * MIB) as (options, get), Loader(Fields(), batch_size=BATCH, readers=2, **options) as loader:
        loader.set_prefetch_depth(3)
        for epoch in range(3):
            for _ in loader.epoch(epoch):
                assert num_in_flight(loader) <= 3
            assert loader.prefetch_depth == 3
        loader.auto_resize()
        assert loader.prefetch_depth == 20
        with pytest.raises(LoaderError, match="at least 1"):
            loader.set_prefetch_depth(0)
        assert get().faults == []
    with small_device(MIB) as (options, _):
        with pytest.raises(StagingError, match="prefetch depth 15"):
            Loader(Fields(), batch_size=BATCH, prefetch=15, **options)
        with Loader(Fields(), batch_size=BATCH, prefetch=5, mode="streaming", **options) as loader:
            assert loader.prefetch_depth == 5
            assert account(loader)["steps in flight"] >= 5 * BATCH * Fields().spec.row_bytes


def test_a_set_that_fits_becomes_resident_after_the_second_batch(caplog):
    total = 8 * MIB  # of which the set is more than a tenth
    caplog.set_level(logging.INFO, logger="flodl_pipe")
    with small_device(total) as (options, get), Loader(Fields(), batch_size=BATCH, readers=2, **options) as loader:
        assert loader.mode[0] == "streaming"
        assert "decided after the second one" in loader.mode[1]
        iterator = iter(loader)
        next(iterator)
        assert not loader.is_resident
        next(iterator)
        assert loader.is_resident
        assert "a whole training step was seen" in loader.mode[1]
        assert "after the second batch: resident" in caplog.text
        for _ in iterator:
            pass
        for _ in loader:  # what the first epoch left out, and what it was too short for
            pass
        before = loader.traffic().uploaded_bytes
        assert before >= SET_BYTES
        for _ in loader:
            pass
        assert loader.is_loaded
        assert loader.traffic().uploaded_bytes - before <= 20 * BATCH * 16  # the numbers of the rows
        assert get().faults == []


def test_a_small_set_is_resident_at_once_and_a_forced_one_of_any_size_that_fits():
    with small_device(64 * MIB) as (options, _), Loader(Fields(), batch_size=BATCH, **options) as loader:
        assert loader.is_resident
        assert "at most a tenth" in loader.mode[1]
    with small_device(4 * MIB) as (options, get):
        with Loader(Fields(), batch_size=BATCH, mode="resident", readers=0, **options) as loader:
            assert loader.is_resident
            next(iter(loader))
            assert loader.is_loaded
        assert get().faults == []
    with small_device(MIB) as (options, _), pytest.raises(StagingError, match=r"takes 1\.27 MiB.*75 %|budget"):
        Loader(Fields(), batch_size=BATCH, mode="resident", **options)


def test_why_samples_that_readers_deliver_do_not_stay_on_the_device_is_said():
    with small_device(64 * MIB) as (options, _), Loader(Numbers(40), batch_size=8, **options) as loader:
        assert loader.mode == (
            "streaming",
            "readers deliver: the source does not say that to deliver is only to copy fields",
        )


def test_without_memory_for_the_set_batches_are_streamed_and_it_is_said(caplog):
    with on_cpu(Fields(), batch_size=BATCH) as loader:
        wanted = run(loader, 2)
    with small_device(64 * MIB) as (options, get):
        next_device = Loader(Fields(9), batch_size=3, mode="streaming", **options)
        next_device.close()
        get().fail_next(1)
        with Loader(Fields(), batch_size=BATCH, **options) as loader:
            assert not loader.is_resident
            assert "refused memory for the whole set" in loader.mode[1]
            assert "batches are streamed instead" in caplog.text
            require_same(run(loader, 2), wanted)
        get().fail_next(1)
        with pytest.raises(DeviceMemoryError, match=r"loader\.mode=resident"):
            Loader(Fields(), batch_size=BATCH, mode="resident", **options)
        assert get().faults == []


def test_two_loaders_share_one_budget(watched):
    total = 3 * MIB
    with on_cpu(Fields(), batch_size=BATCH) as loader:
        wanted = run(loader, 4)
    with on_cpu(Fields(200, 2000), batch_size=BATCH, shuffle=False) as loader:
        wanted_validation = run(loader, 1)
    with small_device(total) as (options, get):
        training = Loader(Fields(), batch_size=BATCH, readers=1, **options)
        validation = Loader(Fields(200, 2000), batch_size=BATCH, shuffle=False, readers=1, **options)
        found = []
        for epoch in range(2):
            for batch in training.epoch(epoch):
                found.append(plain(batch))
                del batch
            require_same(passed(validation, 1), wanted_validation)
        assert held_of_devices() <= 0.9 * total
        budget = policy_of(training).latest.budget.num_bytes
        validation.close()
        found += [plain(batch) for epoch in (2, 3) for batch in training.epoch(epoch)]
        require_same(found, wanted)
        assert policy_of(training).latest.budget.num_bytes > budget
        training.close()
        for allocated, granted in watched:
            assert allocated - 2 * BATCH_BYTES <= granted
            assert granted <= 0.9 * total
        assert get().faults == []


@pytest.mark.full
def test_host_memory_stays_within_the_grants():
    program = """
        import gc
        from flodl_pipe.loader.loader import Loader
        from flodl_pipe.memory.ledger import process_ledger
        from flodl_pipe.memory.probe import resident_set_bytes
        from tests.loader.device_cases import Fields

        def build(n):
            return Loader(Fields(n, 20_000), batch_size=64, device="simulated", simulated={"memory_bytes": "16MiB"},
                          readers=2, ram_max_usage=0.5)

        with build(200) as loader:  # what imports and threads take is not the loader's
            for _ in loader: pass
        gc.collect()
        baseline = resident_set_bytes()
        with build(5000) as loader:
            most = 0
            for epoch in range(2):
                for step, _ in enumerate(loader.epoch(epoch)):
                    held = sum(process_ledger().accounts().values())  # the simulated device is host memory
                    most = max(most, resident_set_bytes() - baseline - held)
        assert baseline, "no figure"
        print(most)
    """
    done = programs.run(["-c", textwrap.dedent(program)])
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 64 * MIB
