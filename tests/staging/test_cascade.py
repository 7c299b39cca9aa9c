"""The cascade: whatever is held where, the rows are exactly the source's, and each costs what it should."""

import contextlib
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flodl_pipe.errors import SourceError
from flodl_pipe.staging.cascade import Cascade
from flodl_pipe.staging.ram_cache import RamCache
from flodl_pipe.staging.ranking import ByParts, ByWeight, RankedPart, StorageOrder
from tests.contract.tiers import SPECS, Stamped, marked, raw
from tests.staging import real_sources
from tests.staging.caches import after, cache_of


def require_rows(cascade: Cascade, source: Any, indices: Any, rows: Any, num_rows: int) -> None:
    """Read through the cascade and from the source alone, and compare every byte."""
    found, wanted = marked(source.spec, num_rows), marked(source.spec, num_rows)
    source.read_into(indices, rows, wanted)
    cascade.read_into(indices, rows, found)
    for name, value in wanted.items():
        np.testing.assert_array_equal(raw(found[name]), raw(value), err_msg=name)


def rankings(num_samples: int) -> Any:
    third = num_samples // 3
    return st.one_of(
        st.just(StorageOrder(num_samples)),
        st.integers(0, 5).map(lambda seed: ByWeight(np.random.default_rng(seed).integers(0, 4, num_samples))),
        st.permutations([0.5, 1.0, 2.0]).map(
            lambda rates: ByParts(
                [
                    RankedPart(0, third, rates[0]),
                    RankedPart(third, third, rates[1]),
                    RankedPart(2 * third, num_samples - 2 * third, rates[2]),
                ]
            )
        ),
    )


def play(data: Any, source: Any) -> None:
    """Let a random play of reads and fills run over one to three tiers, and check every read."""
    num_samples = len(source)
    tiers = []
    for _ in range(data.draw(st.integers(1, 3), "tiers")):
        first = data.draw(st.integers(0, num_samples), "first rank")
        count = data.draw(st.integers(0, num_samples - first), "ranks")
        tiers.append(cache_of(source, data.draw(rankings(num_samples)), first, count))
    cascade = Cascade(source, tiers, read_lock=contextlib.nullcontext())
    held = [0] * len(tiers)
    for _ in range(data.draw(st.integers(1, 8), "moves")):
        move = data.draw(st.sampled_from(["read", "read", "fill", "close"]))
        number = data.draw(st.integers(0, len(tiers) - 1))
        if move == "read":
            rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
            count = data.draw(st.integers(0, 40))
            indices, num_rows = rng.integers(0, num_samples, count), count + data.draw(st.integers(0, 3))
            rows = rng.permutation(num_rows)[:count] if data.draw(st.booleans()) else np.arange(count)
            require_rows(cascade, source, indices, rows, num_rows)
        elif move == "fill":
            size = data.draw(st.integers(1, 4 * max(1, source.spec.row_bytes)))
            tiers[number].fill(after(data.draw(st.integers(0, 6))), chunk_bytes=size)
        elif data.draw(st.integers(0, 3)) == 0:
            tiers[number].close()
            held[number] = 0
        for at, tier in enumerate(tiers):
            now = tier.count().held_bytes
            assert held[at] <= now <= tier.num_bytes or now == 0
            held[at] = now
    everything = np.random.default_rng(0).permutation(num_samples)
    for indices in np.array_split(everything, 3):
        require_rows(cascade, source, indices, np.arange(len(indices)), len(indices))


@settings(deadline=None, max_examples=30)
@given(st.data(), st.sampled_from(list(SPECS)[:4]))
def test_any_play_of_reads_and_fills_gives_the_sources_rows(data: Any, spec: str) -> None:
    play(data, Stamped(60, SPECS[spec]))


@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
@pytest.mark.parametrize("kind", real_sources.KINDS)
def test_any_play_over_bundled_sources_gives_their_rows(tmp_path: Path, kind: str, data: Any) -> None:
    play(data, real_sources.make(kind, tmp_path))


@pytest.mark.parametrize("kind", real_sources.KINDS)
def test_readers_and_fillers_at_once_see_only_whole_rows(tmp_path: Path, kind: str) -> None:
    source = real_sources.make(kind, tmp_path)
    half = len(source) // 2
    order = StorageOrder(len(source))
    tiers = [cache_of(source, order, half, len(source) - half), cache_of(source, order, 3, half - 3)]
    cascade = Cascade(source, tiers, read_lock=contextlib.nullcontext())
    wrong: list[BaseException] = []

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(60):
                require_rows(cascade, source, rng.integers(0, len(source), 30), rng.permutation(32)[:30], 32)
        except BaseException as error:  # noqa: BLE001 - carried to the main thread
            wrong.append(error)

    def fill(tier: RamCache) -> None:
        tier.fill(lambda: False, chunk_bytes=2 * source.spec.row_bytes)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    threads += [threading.Thread(target=fill, args=(tier,)) for tier in tiers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert all(tier.is_full for tier in tiers)
    counts = cascade.tier_counts()
    assert counts[0].num_rows == 3 * 60 * 30
    assert counts[1].num_rows == counts[0].num_rows - counts[0].num_hits
    assert cascade.source_count().num_rows == counts[1].num_rows - counts[1].num_hits


@pytest.mark.parametrize("kind", real_sources.KINDS)
def test_hits_are_the_share_that_is_held_and_the_source_is_read_for_the_rest(tmp_path: Path, kind: str) -> None:
    source = real_sources.make(kind, tmp_path)
    num_held = len(source) // 3
    cache = cache_of(source, StorageOrder(len(source)), len(source) - num_held, num_held)
    cache.fill(lambda: False)
    cascade = Cascade(source, [cache], read_lock=contextlib.nullcontext())
    out = source.buffers(25)
    for epoch in range(10):
        order = np.random.default_rng(epoch).permutation(len(source))
        for low in range(0, len(order), 25):
            some = order[low : low + 25]
            cascade.read_into(some, np.arange(len(some)), out)
    count = cache.count()
    assert (count.num_rows, count.num_hits) == (10 * len(source), 10 * num_held)
    assert count.hit_bytes == 10 * num_held * source.spec.row_bytes
    assert cascade.source_count().num_rows == 10 * (len(source) - num_held)
    assert cascade.source_count().num_bytes == 10 * (len(source) - num_held) * source.spec.row_bytes


def test_each_sample_is_in_the_first_tier_that_wants_it_and_read_once() -> None:
    source = Stamped()
    order = StorageOrder(60)
    low, high = cache_of(source, order, 0, 30), cache_of(source, order, 30, 30)
    cascade = Cascade(source, [high, low], read_lock=contextlib.nullcontext())
    out = source.spec.empty(60)
    for _ in range(2):
        cascade.read_into(np.random.default_rng(0).permutation(60), np.arange(60), out)
    assert len(source.reads) == 1
    assert [count.num_hits for count in cascade.tier_counts()] == [30, 30]
    assert cascade.source_count().num_reads == 1


def test_a_read_that_fails_is_raised_as_it_is_and_offered_to_no_tier() -> None:
    source = Stamped(bad=(9,))
    cache = cache_of(source, StorageOrder(60), 0, 60)
    cascade = Cascade(source, [cache], read_lock=contextlib.nullcontext())
    out, rows = source.spec.empty(20), np.arange(20)
    with pytest.raises(SourceError, match=r"^sample 9 is damaged$"):
        cascade.read_into(np.arange(20), rows, out)
    assert not cache.read_into(np.arange(20), rows, out).any()
    assert cascade.source_count().num_rows == 0
    source.bad.clear()
    require_rows(cascade, source, np.arange(20), rows, 20)


@pytest.mark.parametrize("index", [-1, 60])
@pytest.mark.parametrize("weights", [None, np.arange(60)])
def test_an_index_outside_the_source_is_an_error(index: int, weights: Any) -> None:
    source = Stamped()
    ranking = StorageOrder(60) if weights is None else ByWeight(weights)
    cascade = Cascade(source, [cache_of(source, ranking, 0, 60)], read_lock=contextlib.nullcontext())
    out, rows = source.spec.empty(60), np.arange(60)
    cascade.read_into(np.arange(60), rows, out)
    with pytest.raises(IndexError, match=r"not all in 0 \.\. 59"):
        cascade.read_into(np.array([3, index]), rows[:2], out)


def test_a_source_that_is_not_thread_safe_is_read_by_one_thread_at_a_time() -> None:
    source = Stamped(thread_safe=False)
    lock = threading.Lock()
    cache = cache_of(source, StorageOrder(60), 30, 30, lock)
    cascade = Cascade(source, [cache], read_lock=lock)
    wrong: list[BaseException] = []

    def read(seed: int) -> None:
        out = source.spec.empty(30)
        try:
            for _ in range(40):
                picks = np.random.default_rng(seed).integers(0, 60, 30)
                cascade.read_into(picks, np.arange(30), out)
                for name, value in source.rows(picks).items():
                    np.testing.assert_array_equal(out[name], value)
        except BaseException as error:  # noqa: BLE001 - carried to the main thread
            wrong.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    cache.fill(lambda: False, chunk_bytes=1)
    for thread in threads:
        thread.join()
    assert wrong == []


def test_without_tiers_the_source_is_read() -> None:
    source = Stamped()
    require_rows(Cascade(source, [], read_lock=contextlib.nullcontext()), source, np.arange(9), np.arange(9), 9)


def test_closing_gives_all_tiers_back() -> None:
    source = Stamped()
    caches = [cache_of(source, StorageOrder(60), 0, 60) for _ in range(2)]
    cascade = Cascade(source, caches, read_lock=contextlib.nullcontext())
    require_rows(cascade, source, np.arange(60), np.arange(60), 60)
    cascade.close()
    assert [count.held_bytes for count in cascade.tier_counts()] == [0, 0]
    require_rows(cascade, source, np.arange(60), np.arange(60), 60)
