"""What goes wrong on the way to a device stands at its step, once; modes of the loop's thread and forks do not leak."""

import os
import signal

import pytest
import torch

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.errors import ChangedError, LoaderError, TransformError
from flodl_pipe.loader.loader import Loader
from flodl_pipe.sources.records import RecordPart, Records
from tests.loader.device_cases import Fields, on_cpu, plain, require_same, run, small_device
from tests.loader.inside import lies_on
from tests.loader.waiting import HANG_S

MIB = 1 << 20
BATCH = 16
WAYS = [{"readers": 0}, {"readers": 2}, {"readers": 2, "prefetch": 1}]


def until_it_fails(iterator, error):
    """Return the batches before the error, and the error."""
    found = []
    with pytest.raises(error) as caught:
        for batch in iterator:
            found.append(plain(batch))  # noqa: PERF401 - what came before the error is kept
    return found, caught.value


def without_place(batch):
    """Leave out the cursor, which knows of transforms."""
    return (*batch[:4], batch[5])


@pytest.mark.parametrize("step", [0, 3, 19])
@pytest.mark.parametrize(
    ("mode", "way"), [*(("streaming", way) for way in WAYS), ("resident", WAYS[0])], ids=[*"012", "resident"]
)
def test_a_transform_that_breaks_its_contract_stands_at_its_step(mode, way, step):
    def fails(batch, keys):
        if step_of[int(batch["id"][0])] == step:
            return batch.with_fields(("id",), (batch["id"][:3],))
        return batch

    with on_cpu(Fields(), batch_size=BATCH) as loader:
        wanted = run(loader, 1)
    step_of = {batch[0][0]: number for number, batch in enumerate(wanted)}
    with (
        small_device(64 * MIB) as (options, get),
        Loader(Fields(), batch_size=BATCH, transforms=fails, mode=mode, **way, **options) as loader,
    ):
        iterator = iter(loader)
        found, _ = until_it_fails(iterator, TransformError)
        require_same([without_place(batch) for batch in found], [without_place(batch) for batch in wanted[:step]])
        with pytest.raises(StopIteration):
            next(iterator)
        assert loader.state_dict()["position"] == step * BATCH
        assert get().faults == []


@pytest.mark.parametrize(("pool", "way"), [*((True, way) for way in WAYS), (False, WAYS[1])])
def test_a_fault_of_the_source_stands_at_its_step(pool, way):
    with on_cpu(Fields(), batch_size=BATCH) as loader:
        wanted = run(loader, 2)
    bad = wanted[7][0][5]
    for mode in ("streaming", "auto"):
        with (
            small_device(64 * MIB) as (options, get),
            Loader(Fields(bad={bad}), batch_size=BATCH, mode=mode, vram_pool=pool, **way, **options) as loader,
        ):
            found, error = until_it_fails(iter(loader), OSError)
            assert f"sample {bad} is torn" in str(error)
            require_same(found, wanted[:7])
            # Whoever goes on meets it again, at the same step.
            again, _ = until_it_fails(loader.epoch(0), OSError)
            require_same(again, wanted[:7])
            assert get().faults == []


def test_data_that_changed_is_an_error_also_when_all_of_it_is_on_the_device(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(range(200)) * 10)
    os.utime(path, (1e9, 1e9))  # long ago: what changes it now has another time, however coarse times are
    source = Records.open(str(path), record_bytes=20, parts={"x": RecordPart(0, "uint8", (20,))})
    with small_device(64 * MIB) as (options, get), Loader(source, batch_size=10, mode="resident", **options) as loader:
        for epoch in range(2):
            for _ in loader.epoch(epoch):
                pass
        assert loader.is_loaded
        path.write_bytes(bytes(range(200))[::-1] * 10)
        with pytest.raises(ChangedError):
            loader.epoch(2)
        assert get().faults == []


@pytest.mark.parametrize("way", [{"readers": 0}, {"readers": 2}, {"mode": "resident"}])
def test_modes_of_the_loop_do_not_reach_what_is_delivered(way):
    seen = []

    def look(batch, keys):
        seen.append((torch.is_inference_mode_enabled(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        return batch

    with (
        small_device(64 * MIB) as (options, get),
        Loader(Fields(), batch_size=BATCH, drop_last="pad", transforms=look, **way, **options) as loader,
    ):
        for epoch in range(2):
            with torch.inference_mode(), torch.autocast("cpu"):
                batches = list(loader.epoch(epoch))
            for batch in batches:
                assert not any(field.is_inference() for field in batch)
                assert batch.valid is None or not batch.valid.is_inference()
            weight = torch.ones((), requires_grad=True)
            (batches[0]["grid"].float().sum() * weight).backward()
            assert weight.grad is not None
        assert set(seen) == {(False, False, False)}
        assert get().faults == []


@pytest.mark.parametrize("way", [{"readers": 2}, {"readers": 0}, {"mode": "resident"}])
def test_valid_lies_where_the_batch_does(way):
    with (
        small_device(64 * MIB) as (options, get),
        Loader(Fields(), batch_size=BATCH, drop_last="pad", **way, **options) as loader,
    ):
        for epoch in range(3):
            *_, last = loader.epoch(epoch)
            device = get()
            assert last.valid.tolist() == [True] * 11 + [False] * 5
            assert lies_on(device, last.valid)
            assert all(lies_on(device, field) for field in last if field.numel())
        assert device.faults == []


@pytest.mark.parametrize("mode", ["streaming", pytest.param("resident", marks=pytest.mark.full)])
def test_a_child_forked_in_the_middle_reads_for_itself(mode):
    with on_cpu(Fields(), batch_size=BATCH) as loader:
        wanted = run(loader, 2)
    with (
        small_device(64 * MIB) as (options, get),
        Loader(Fields(), batch_size=BATCH, mode=mode, readers=2, **options) as loader,
    ):
        for _ in loader:
            pass
        iterator = iter(loader)
        found = [plain(next(iterator)) for _ in range(4)]
        child = os.fork()
        if not child:
            status = 1
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(HANG_S))  # a child that hangs must not outlive the test
            torch.set_num_threads(1)  # torch's own threads did not follow either
            try:
                with pytest.raises(LoaderError, match="belongs to process"):
                    next(iterator)
                require_same([plain(batch) for batch in loader], wanted[20:])
                loader.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        require_same(found + [plain(batch) for batch in iterator], wanted[20:])
        assert get().faults == []


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_ranks_share_steps_of_uneven_length(rank):
    context = RunContext(rank=rank, world_size=3)
    settings = {"global_batch_size": 17, "drop_last": False, "context": context}
    with on_cpu(Fields(), **settings) as loader:
        wanted = run(loader, 2)
    with small_device(64 * MIB) as (options, get), Loader(Fields(), **settings, **options) as loader:
        require_same(run(loader, 2), wanted)
        assert get().faults == []
