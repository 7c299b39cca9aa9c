"""The ledger through cursors, other ranks, other limits, other modes, and a fork."""

import json
import os

import numpy as np
import pytest

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.errors import ResumeError
from flodl_pipe.sources.labelled_records import LabelledRecords
from flodl_pipe.sources.records import RecordPart
from flodl_pipe.storage.open import open_blobs
from flodl_pipe.transforms.image_basic import HorizontalFlip, Normalize
from tests.loader.inside import load_whole_set, split_steps
from tests.loader.skipping import BAD, BATCH, WAYS, N, plain, require_skipped, run, same, skipping
from tests.loader.sources import Numbers


@pytest.mark.parametrize(
    ("first", "second"), list(zip(WAYS, [WAYS[0], WAYS[2], WAYS[5], WAYS[2], WAYS[5], WAYS[0]], strict=True))
)
def test_resume_goes_on_as_if_nothing_had_happened(first, second):
    with skipping(Numbers(N, bad=BAD), keep_digest=True, **first) as loader:
        whole = run(loader, 2)
        digest = loader.statistics().digest
    for cut in (1, 7, 13, 14, 20):
        with skipping(Numbers(N, bad=BAD), keep_digest=True, **first) as loader:
            head = [batch for _, batch in zip(range(cut), (b for _ in (0, 1) for b in loader), strict=False)]
            state = json.loads(json.dumps(loader.state_dict()))
            parts = [loader.statistics().digest]
            ahead = loader.skipped
            assert head[-1].cursor["position"] == state["position"]
            head = [plain(batch) for batch in head]
        with skipping(Numbers(N, bad=BAD), keep_digest=True, **second) as loader:
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            assert loader.skipped == tuple(map(tuple, json.loads(state["skipped"] or "[]")))
            assert set(loader.skipped) <= set(ahead)
            tail = []
            while len(tail) < len(whole) - cut:
                tail += [plain(batch) for batch in loader]
            parts.append(loader.statistics().digest)
        same(head + tail, whole)
        halves = [sum(int(part[at : at + 16], 16) for part in parts) % 2**64 for at in (0, 16)]
        assert "".join(f"{half:016x}" for half in halves) == digest


def test_a_listed_sample_is_skipped_even_where_it_can_be_read_again():
    with skipping(Numbers(N, bad=BAD), readers=0, mode="streaming") as loader:
        whole = run(loader, 2)
        state = {**loader.state_dict(), "epoch": 0, "position": 0}
    for way in WAYS:
        source = Numbers(N)
        with skipping(source, **way) as loader:
            loader.load_state_dict(state)
            if way["mode"] == "resident":
                load_whole_set(loader)
            same(run(loader, 2), whole)


@pytest.mark.parametrize("way", [WAYS[0], WAYS[2]])
def test_another_world_size_resumes_from_any_rank(way):
    with skipping(Numbers(N, bad=BAD), **way) as loader:
        whole = run(loader)
    states = []
    for rank in range(2):
        with skipping(
            Numbers(N, bad=BAD), batch_size=4, context=RunContext(rank, 2), readers=0, mode="streaming"
        ) as loader:
            for _, _ in zip(range(5), loader, strict=False):
                pass
            states.append(loader.state_dict())
    assert states[0] != states[1]  # each lists what its rank has met
    for state in states:
        with skipping(Numbers(N, bad=BAD), **way) as loader:
            loader.load_state_dict(state)
            same(run(loader), whole[5:])
            assert loader.state_dict()["position"] == N
    rows = {}
    for rank in range(3):
        with skipping(Numbers(N, bad=BAD), context=RunContext(rank, 3), **way) as loader:
            loader.load_state_dict(states[0])
            for step, (samples, _, valid, _, fields) in enumerate(run(loader)):
                for row, sample in enumerate(samples):
                    if valid is None or valid[row]:
                        rows.setdefault(step, []).append((sample, fields[0][row].item()))
    for step, (samples, _, _, _, _) in enumerate(whole[5:]):
        assert rows.get(step, []) == [(sample, sample) for sample in samples if sample not in BAD]


def test_another_global_batch_keeps_the_ledger():
    with skipping(Numbers(N, bad=BAD), readers=0, mode="streaming") as loader:
        run(loader)
        state = loader.state_dict()
    with skipping(Numbers(N, bad=BAD), batch_size=5) as loader:
        loader.load_state_dict(state)
        assert loader.global_batch_size == BATCH
        assert {sample for sample, _ in loader.skipped} == BAD
        run(loader, 2)


@pytest.mark.parametrize("text", ["[", '[[101,"x"]]', '[["x",1]]'])
def test_a_damaged_ledger_is_refused(text):
    for on_error in ("skip", "raise"):
        with skipping(Numbers(N), on_error=on_error) as loader:
            state = loader.state_dict()
            with pytest.raises(ResumeError, match="skipped"):
                loader.load_state_dict({**state, "skipped": text})
            assert loader.state_dict() == state
            run(loader)


def test_a_state_that_lists_more_than_the_limit_is_refused():
    with skipping(Numbers(N, bad=BAD)) as loader:
        run(loader)
        state = loader.state_dict()
    with (
        skipping(Numbers(N), max_skipped=5) as loader,
        pytest.raises(ResumeError, match=f"would be {len(BAD)}, and source.max_skipped is 5"),
    ):
        loader.load_state_dict(state)


def test_going_on_with_raise_is_said(caplog):
    with skipping(Numbers(N, bad=BAD), readers=0, mode="streaming", shuffle=False) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with skipping(Numbers(N, bad=BAD), on_error="raise", shuffle=False, mode="streaming") as loader:
        loader.load_state_dict(state)
        assert "lists 2 skipped samples, which are read again: source.on_error is raise" in caplog.text
        with pytest.raises(OSError, match="record 40"):
            run(loader)


def test_a_forked_child_takes_the_ledger_over():
    with skipping(Numbers(N, bad=BAD), readers=0, mode="streaming") as loader:
        run(loader)
        read_end, write_end = os.pipe()
        child = os.fork()
        if not child:
            try:
                iter(loader)  # built afresh, and nothing read yet
                os.write(write_end, str([sample for sample, _ in loader.skipped] == sorted(BAD)).encode())
                run(loader)
            finally:
                os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end) as told:
            assert told.read() == "True"
        os.waitpid(child, 0)


@pytest.mark.parametrize("readers", [0, 1, 3])
@pytest.mark.parametrize(
    "transforms", [None, [HorizontalFlip(), Normalize([0.5] * 3, [0.2] * 3)]], ids=["plain", "fused"]
)
@pytest.mark.parametrize("in_parts", [False, True])
def test_fields_kept_apart_in_memory_skip_what_is_listed(tmp_path, monkeypatch, readers, transforms, in_parts):
    if in_parts:
        split_steps(monkeypatch)
    np.random.default_rng(0).integers(0, 256, (90, 13), dtype=np.uint8).tofile(tmp_path / "a.bin")
    fields = {"image": RecordPart(1, "uint8", (3, 2, 2)), "label": RecordPart(0, "uint8")}
    records = LabelledRecords(
        open_blobs([str(tmp_path / "a.bin")]), kind="test", record_bytes=13, parts=fields, labels=["label"]
    )
    listed = {3, 11, 12, *range(40, 48)}
    found = []
    for mode in ("streaming", "resident"):
        with skipping(records, shuffle=False, mode=mode, readers=readers, transforms=transforms) as loader:
            whole = run(loader)
            state = {**loader.state_dict(), "position": 0}
            state["skipped"] = json.dumps([[sample, "listed"] for sample in sorted(listed)])
            loader.load_state_dict(state)
            if mode == "resident":
                assert load_whole_set(loader)
            found.append(run(loader))
            assert {sample for sample, _ in loader.skipped} == listed
    same(found[1], found[0])
    if transforms is None:
        require_skipped(found[1], whole, listed)
