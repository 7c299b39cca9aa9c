"""What a device delivers is what the CPU delivers, bit by bit, whatever stands between: over pairs of all settings."""

import json
from fractions import Fraction

import numpy as np
import pytest
import torch

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.loader.loader import Loader
from flodl_pipe.sources.mixture import Mixture
from flodl_pipe.sources.ordering import Weights
from flodl_pipe.sources.records import RecordPart, Records
from flodl_pipe.sources.tokens import TokenShards
from flodl_pipe.transforms.image_basic import HorizontalFlip, Normalize, RandomCrop
from tests.loader.device_cases import (
    Fields,
    Sentences,
    on_cpu,
    pairwise,
    plain,
    require_same,
    run,
    small_device,
    small_host,
)
from tests.loader.skipping import Pictures
from tests.loader.sources import Numbers
from tests.loader.streams import Lanes

EPOCHS = 3
ROOMS = {"huge": 64 << 20, "middle": 3 << 19, "tiny": 11 << 17}
SETTINGS = {
    "kind": [
        "fields",
        "records",
        "numbers",
        "pictures",
        "tokens",
        "padded",
        "nested",
        "alone",
        "mixture",
        "stream",
        "skipping",
        "dataset",
    ],
    "room": ["middle", "huge", "tiny"],
    "order": [
        "uniform",
        "weighted",
        "blocked",
        "bucketed",
        "sampler",
        "batch sampler",
        "storage",
        "lanes",
        "few lanes",
    ],
    "mode": ["streaming", "auto", "resident"],
    "batch_size": [16, 37],
    "drop_last": [True, False, "pad"],
    "readers": [3, 0, 1],
    "transforms": ["none", "fused", "users", "objects"],
    "augment": [1, 3],
    "ranks": [1, 3],
    "kill": [None, 1, 7],
    "host": ["small", "large"],
    "disk_stage": [0, "8MiB"],
    "vram_pool": [True, False],
    "sample_cache": [True, False],
    "digest": [True, False],
}


class Shift:
    """A transform with a state of its own."""

    scope = "row"

    def __init__(self, by):
        self.by = by

    def __call__(self, batch, keys):
        draws = torch.from_numpy(keys.uniform(1).astype(np.float64)).view(-1)
        fields = [
            field.double() + self.by + draws.view(-1, *[1] * (field.dim() - 1)) if field.is_floating_point() else field
            for field in batch
        ]
        return batch.with_fields(batch.names, tuple(fields))


def shift_in_place(batch, keys):
    first = batch[0]
    first += (
        torch.from_numpy((keys.words(1) % np.uint64(7)).astype(np.int64))
        .view(-1, *[1] * (first.dim() - 1))
        .to(first.dtype)
    )
    return batch


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    rng.integers(0, 256, (331, 4001), dtype=np.uint8).tofile(folder / "records.bin")
    rng.integers(0, 60_000, 65 * 401, dtype=np.uint16).tofile(folder / "tokens.bin")
    return folder


def source_of(kind, files):
    match kind:
        case "fields" | "alone":
            return Fields(331 if kind == "fields" else 61)
        case "records":
            parts = {"label": RecordPart(0, "uint8", ()), "pixels": RecordPart(1, "uint8", (4000,))}
            return Records.open(str(files / "records.bin"), record_bytes=4001, parts=parts)
        case "numbers":
            return Numbers(331, 3000)
        case "pictures":
            pictures = Pictures(n=203, side=20)
            pictures.delivery = "as stored"
            return pictures
        case "skipping":
            return Fields(331, bad={3, 40, 41, 42, 90, *range(200, 240)})
        case "tokens":
            return TokenShards.open(str(files / "tokens.bin"), seq_len=64, file_format="raw", dtype="uint16")
        case "padded" | "nested" | "dataset":
            return Sentences()
        case "mixture":
            weights = (Weights(0, (Fraction(3), Fraction(1))),)
            return Mixture({"a": Fields(200), "b": Fields(131)}, weights, block=10)
        case "stream":
            return Lanes(40, 75, 31, 60)
    raise AssertionError(kind)


def combinations():
    """Return the combinations that are tried, each once."""
    found = []
    for case in map(settled, pairwise(SETTINGS)):
        if case not in found:
            found.append(case)
    return found


def with_every_value(cases):
    """Return the numbers of a few cases that have every value of every setting at least once."""
    left, found = {value for case in cases for value in case.items()}, []
    while left:
        found.append(max(range(len(cases)), key=lambda number: len(left & set(cases[number].items()))))
        left -= set(cases[found[-1]].items())
    return found


def settled(case):
    """Take out of a combination what its kind refuses."""
    case = dict(case)
    kind = case["kind"]
    if kind in ("mixture", "stream"):
        case["order"], case["augment"] = "storage" if case["order"] == "storage" else "uniform", 1
    if kind == "stream":
        case["drop_last"] = True if case["drop_last"] == "pad" else case["drop_last"]
    if kind == "mixture":
        case["drop_last"] = True
        case["order"] = "uniform"
    if kind in ("numbers", "padded", "nested", "alone", "dataset", "stream", "tokens") and case["mode"] == "resident":
        case["mode"] = "auto"  # those that no pool may hold; of tokens, see below
    if kind == "alone":
        case |= {"batch_size": None, "order": "uniform" if "batch" in case["order"] else case["order"], "ranks": 1}
    if kind in ("padded", "nested", "stream", "tokens", "dataset"):
        case["disk_stage"] = 0
    if case["order"] in ("weighted", "sampler", "batch sampler"):
        case["augment"] = 1
    if case["order"] == "batch sampler":
        case |= {"batch_size": None, "drop_last": None, "ranks": 1}
    if kind == "alone" and case["drop_last"] == "pad":
        case["drop_last"] = False
    if case["mode"] == "resident":
        case["room"] = "huge"
    if case["transforms"] == "fused" and kind != "pictures":
        case["transforms"] = "users"
    if kind == "nested" and case["transforms"] != "none":
        case["transforms"] = "none"
    if kind == "numbers" and case["transforms"] == "objects":
        case["room"] = "huge"  # doubled, the batches that a loop holds are nearly all of a smaller one
    return case


CASES = combinations()
QUICK = with_every_value(CASES)


def options_of(case, source):
    """Return what decides the stream, and what must not."""
    stream = {"batch_size": case["batch_size"], "seed": 5, "augment": case["augment"], "keep_digest": case["digest"]}
    if case["drop_last"] is not None:
        stream["drop_last"] = case["drop_last"]
    length = 0 if case["kind"] == "stream" else len(source)
    match case["order"]:
        case "weighted":
            stream |= {"order": "weighted", "weights": np.arange(1, length + 1) % 7 + 1, "num_draws": 150}
        case "blocked":
            stream |= {"order": "blocked", "block_samples": 16}
        case "bucketed":
            stream |= {"order": "bucketed", "lengths": np.arange(length) % 29 + 1, "pool_batches": 3}
        case "sampler":
            stream["sampler"] = [(7 * n) % length for n in range(length)]
        case "batch sampler":
            stream["batch_sampler"] = [[(11 * n + k) % length for k in range(n % 9 + 1)] for n in range(20)]
            del stream["batch_size"]
        case "storage":
            stream["shuffle"] = False
        case "lanes":
            stream["order"] = "lanes"
        case "few lanes":
            stream |= {"order": "lanes", "num_lanes": case["ranks"] * (1 if case["batch_size"] in (37, None) else 4)}
    stream["transforms"] = {
        "none": None,
        "fused": [RandomCrop(8, padding=2), HorizontalFlip(), Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.25])],
        "users": shift_in_place,
        "objects": Shift(3),
    }[case["transforms"]]
    if case["kind"] in ("padded", "nested"):
        stream["collate"] = "pad" if case["kind"] == "padded" else "ragged"
    if case["kind"] == "dataset":
        stream["collate"] = lambda rows: {"label": torch.tensor([row["label"] for row in rows])}
    if case["kind"] == "skipping":
        stream["on_error"] = "skip"
    free = {key: case[key] for key in ("mode", "readers", "vram_pool", "sample_cache", "disk_stage")}
    if not free["vram_pool"] and free["mode"] == "resident":  # which would be refused
        free["mode"] = "auto"
    if case["kind"] == "stream":
        free["readers"] = min(1, free["readers"])
    return stream, free


def name_of(case):
    return "-".join(str(value).replace(" ", "_") for value in case.values())


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, id=name_of(case), marks=() if number in QUICK else pytest.mark.full)
        for number, case in enumerate(CASES)
    ],
)
def test_a_device_delivers_what_the_cpu_does(number, files, tmp_path):
    case, following = CASES[number], CASES[(number + 1) % len(CASES)]
    stream, free = options_of(case, source_of(case["kind"], files))
    context = RunContext(rank=case["ranks"] - 1, world_size=case["ranks"])
    with on_cpu(source_of(case["kind"], files), context=context, **stream) as loader:
        wanted = run(loader, EPOCHS)
        digest = loader.statistics().digest
        skipped = loader.skipped
    per_epoch = len(wanted) // EPOCHS
    available_bytes = 6 << 20 if case["host"] == "small" else 4 << 30
    with small_device(ROOMS[case["room"]]) as (device, get), small_host(available_bytes):
        with Loader(
            source_of(case["kind"], files), context=context, disk_stage_dir=str(tmp_path), **device, **stream, **free
        ) as loader:
            if case["kill"] is None:
                require_same(run(loader, EPOCHS), wanted)
                assert loader.statistics().digest == digest
                assert loader.skipped == skipped
            else:
                steps = min(per_epoch + case["kill"], len(wanted) - 1)
                batches = (batch for epoch in range(EPOCHS) for batch in loader.epoch(epoch))
                require_same([plain(next(batches)) for _ in range(steps)], wanted[:steps])
                state = json.loads(json.dumps(loader.state_dict()))
                batches.close()
        if case["kill"] is not None:
            other = {**following, "kind": case["kind"], "mode": "auto" if free["mode"] != "auto" else "streaming"}
            with Loader(
                source_of(case["kind"], files),
                context=context,
                **device,
                **stream,
                **{
                    **free,
                    "mode": "auto" if other["mode"] == "resident" else other["mode"],
                    "readers": min(1, other["readers"]),
                    "vram_pool": other["vram_pool"],
                },
            ) as loader:
                loader.load_state_dict(state)
                epoch = steps // per_epoch
                rest = [plain(batch) for number in range(epoch, EPOCHS) for batch in loader.epoch(number)]
            require_same(rest, wanted[steps:])
        assert get().faults == []
