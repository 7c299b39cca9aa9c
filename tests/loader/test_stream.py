"""One stream: the same batches in every mode, with any readers, depth, world size and timing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.errors import ConfigError, StagingError
from flodl_pipe.loader.loader import Loader
from flodl_pipe.sampling.orders import UniformOrder
from flodl_pipe.sources.tokens import TokenShards
from tests.loader.inside import start_filling, wait_until_filled
from tests.loader.sources import Numbers, ids

WAYS = [
    {"readers": 0, "mode": "streaming"},
    {"readers": 1, "mode": "streaming"},
    {"readers": 3, "mode": "streaming", "prefetch": 1},
    {"readers": 2, "mode": "streaming", "prefetch": 50},
    {"readers": 0, "mode": "resident"},
    {"readers": 2, "mode": "resident"},
]


def batches(source, epochs=1, **options):
    with Loader(source, keep_digest=True, **options) as loader:
        found = [ids(loader.epoch(epoch)) for epoch in range(epochs)]
        return found, loader.statistics().digest


@pytest.mark.parametrize("drop_last", [True, False, "pad"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_way_gives_the_same_batches_and_digest(shuffle, drop_last):
    options = {"batch_size": 7, "shuffle": shuffle, "drop_last": drop_last, "seed": 5}
    results = [batches(Numbers(100), epochs=3, **options, **way) for way in WAYS]
    assert all(result == results[0] for result in results)
    order = UniformOrder(100, 5).epoch(1).at(0, 100).tolist() if shuffle else list(range(100))
    second_epoch = sum(results[0][0][1], [])
    expected = {True: order[:98], False: order, "pad": order + order[:5]}[drop_last]
    assert second_epoch == expected


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 400),
    batch=st.integers(1, 64),
    drop_last=st.sampled_from([False, "pad"]),
    seed=st.integers(0, 2**64 - 1),
    readers=st.integers(0, 3),
    prefetch=st.sampled_from(["auto", 1, 2, 9]),
    mode=st.sampled_from(["streaming", "resident"]),
)
def test_an_epoch_is_its_order_cut_into_batches(n, batch, drop_last, seed, readers, prefetch, mode):
    way = {"readers": readers, "prefetch": prefetch, "mode": mode}
    (found,), _ = batches(Numbers(n), batch_size=batch, drop_last=drop_last, seed=seed, **way)
    order = UniformOrder(n, seed).epoch(0).at(0, n).tolist()
    if drop_last == "pad":
        order += [order[place % n] for place in range(-n % batch)]
    assert found == [order[start : start + batch] for start in range(0, len(order), batch)]


@pytest.mark.parametrize("drop_last", [True, False, "pad"])
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks_together_give_the_single_stream(ranks, drop_last):
    options = {"global_batch_size": 30, "batch_size": 30, "drop_last": drop_last, "seed": 1}
    (single,), digest = batches(Numbers(200), **options)
    parts, sums = [], [0, 0]
    for rank in range(ranks):
        context = RunContext(rank, ranks)
        with Loader(Numbers(200), keep_digest=True, context=context, **options) as loader:
            step_ids, weights = [], []
            for batch in loader:
                valid = slice(None) if batch.valid is None else batch.valid
                step_ids.append(batch["id"][valid].tolist())
                weights.append(batch.weight)
            parts.append(step_ids)
            text = loader.statistics().digest
            sums = [(sums[0] + int(text[:16], 16)) % 2**64, (sums[1] + int(text[16:], 16)) % 2**64]
            assert all(weight > 0 or not part for weight, part in zip(weights, step_ids, strict=True))
    joined = [sum((part[step] for part in parts), []) for step in range(len(parts[0]))]
    if drop_last == "pad":
        single[-1] = single[-1][: 200 - 180]  # joined holds valid rows only
    assert joined == single
    assert f"{sums[0]:016x}{sums[1]:016x}" == digest


def test_a_large_step_is_split_among_readers_and_whole_again():
    source = Numbers(64, width=1 << 18)  # 8 MiB of stored rows a step
    options = {"batch_size": 32, "mode": "streaming"}
    with Loader(source, readers=2, **options) as loader:
        assert loader.plan.step_parts == 2
        split = ids(loader)
    assert split == batches(Numbers(64, width=4), **options)[0][0]


@pytest.mark.parametrize("readers", [1, 3])
@pytest.mark.parametrize(("helps", "hands_over"), [(True, False), (False, True)])
def test_whoever_reads_the_batches_are_the_same(monkeypatch, helps, hands_over, readers):
    options = {"batch_size": 4, "seed": 2, "drop_last": False}
    expected = batches(Numbers(3001), readers=0, **options)

    def decide(pace, _seconds, _num_steps):
        pace.helps, pace.hands_over = helps, hands_over

    monkeypatch.setattr("flodl_pipe.loader.pace.Pace.loop_took", decide)
    assert batches(Numbers(3001), readers=readers, **options) == expected


@pytest.fixture
def shards(tmp_path):
    rng = np.random.default_rng(7)
    for number in range(3):
        # Long enough for groups of more rows than one request to storage takes.
        rng.integers(0, 50_000, 25_000 + 77 * number).astype("<u2").tofile(tmp_path / f"part-{number}.bin")
    return str(tmp_path / "*.bin")


@pytest.mark.parametrize(
    ("stride", "tail"),
    [
        *((None, "drop"), (12, "keep"), (40, "keep")),
        *(pytest.param(*how, marks=pytest.mark.full) for how in ((None, "keep"), (5, "keep"), (40, "drop"))),
    ],
)
def test_tokens_are_the_same_resident_and_streaming(shards, stride, tail):
    def run(**way):
        source = TokenShards.open(shards, seq_len=16, stride=stride, tail=tail, file_format="raw", dtype="uint16")
        with Loader(source, batch_size=8, drop_last=False, keep_digest=True, **way) as loader:
            if way["mode"] == "resident" and way["readers"]:
                start_filling(loader)
                assert wait_until_filled(loader)
            pairs = [(batch["input"].numpy().tobytes(), batch["target"].numpy().tobytes()) for batch in loader]
            return pairs, loader.statistics().digest

    results = [run(**way) for way in WAYS]
    assert all(result == results[0] for result in results)


def test_resident_is_chosen_when_the_set_fits_and_says_why():
    with Loader(Numbers(1000), batch_size=8) as loader:
        mode, why = loader.mode
        assert mode == "resident"
        assert loader.is_resident
        assert "10.7 KiB" in why
    with Loader(Numbers(1000), batch_size=8, mode="streaming") as loader:
        assert loader.mode == ("streaming", "loader.mode=streaming")
        assert not loader.is_resident


def test_resident_that_cannot_fit_is_refused_with_both_numbers():
    with pytest.raises(StagingError, match=r"the whole set takes 10\.\d TiB, and \d.* left beside the ring"):
        Loader(Numbers(10**9, width=11_000), batch_size=1, mode="resident")


def test_a_share_of_zero_still_runs_with_the_smallest_ring():
    with Loader(Numbers(50), batch_size=8, ram_max_usage=0.0) as loader:
        assert loader.mode[0] == "streaming"
        assert ids(loader) == batches(Numbers(50), batch_size=8)[0][0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch_size": 0}, "loader.batch_size: must be at least 1, got 0"),
        ({"batch_size": 2.5}, "loader.batch_size"),
        ({"batch_size": 4, "readers": -1}, "loader.readers: must be 'auto' or an integer from 0 to 256, got -1"),
        ({"batch_size": 4, "ram_max_usage": 80}, r"did you mean 0\.8\?"),
        ({"batch_size": 4, "drop_last": "some"}, "sampling.drop_last"),
        ({"batch_size": 4, "seed": -1}, "sampling.seed"),
        ({"batch_size": 4, "device": "gpu"}, r"did you mean 'cuda'"),
        ({"batch_size": 4, "names": ["a"]}, r"\['a'\] has 1 names, but the source delivers 2 fields"),
        ({"batch_size": 400}, "global batch of 400 is larger than the epoch of 100 samples"),
    ],
)
def test_a_bad_value_is_refused_at_build(options, says):
    with pytest.raises(ConfigError, match=says):
        Loader(Numbers(100), **options)


def test_fields_can_be_renamed():
    with Loader(Numbers(10), batch_size=5, names=["x", "y"]) as loader:
        batch = next(iter(loader))
        assert loader.names == batch.names == ("x", "y")
        assert batch["x"].tolist() == batch.pick_keys.sample.tolist()
