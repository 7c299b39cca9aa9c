"""What every tier must hold, as a battery of tests. Run it on a tier::

    from tests.contract.tiers import TierContract

    class TestMyTier(TierContract):
        def make_tier(self, source, folder):
            ...  # a tier of this source with room for at least half of its samples

``source`` is a :class:`Stamped`: every byte of a sample follows from its index, so that a wrong row is always seen.
Override :meth:`TierContract.fill` where a tier takes in nothing that it is offered.
"""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.errors import SourceError
from flodl_pipe.sources.protocol import Fingerprint
from flodl_pipe.staging.protocol import Tier

SPECS = {
    "scalars": SampleSpec.of(a=("int64", ()), b=("uint8", ()), c=("float32", ())),
    "narrow rows": SampleSpec.of(pixels=("uint8", (3, 5, 7)), label=("uint8", ())),
    "empty rows": SampleSpec.of(nothing=("float32", (0,)), label=("int32", ())),
    "booleans and halves": SampleSpec.of(mask=("bool", (9,)), x=("float16", (2, 2))),
    "big rows": SampleSpec.of(x=("float64", (5_000,))),
}
NUM_SAMPLES = 60


class Stamped:
    """Samples whose every byte follows from their index; a :class:`flodl_pipe.sources.protocol.Source`.

    Args:
        num_samples: How many.
        spec: Their fields.
        bad: Samples that cannot be read; rows before them are written by then.
        thread_safe: As the contract says; breaking it is an error.
    """

    def __init__(
        self,
        num_samples: int = NUM_SAMPLES,
        spec: SampleSpec = SPECS["narrow rows"],
        *,
        bad: tuple[int, ...] = (),
        thread_safe: bool = True,
    ) -> None:
        self.spec = self.delivered = spec
        self.thread_safe = thread_safe
        self.num_samples = num_samples
        self.bad = set(bad)
        self.reads: list[list[int]] = []
        self._inside = threading.Lock()

    def __len__(self) -> int:
        return self.num_samples

    def read_into(self, indices: Any, rows: Any, out: Any) -> None:
        assert self.thread_safe or self._inside.acquire(blocking=False), "two reads at once"
        try:
            self.reads.append(indices.tolist())
            if len(indices) and (indices.min() < 0 or indices.max() >= self.num_samples):
                raise IndexError(f"samples {indices.min()} .. {indices.max()} are not all in 0 .. {len(self) - 1}")
            for name, value in self.rows(indices).items():
                out[name][rows] = value
            for index in indices.tolist():
                if index in self.bad:
                    for name in out:
                        out[name][rows] = 0  # what a read leaves behind that fails half way
                    raise SourceError(f"sample {index} is damaged")
        finally:
            if not self.thread_safe:
                self._inside.release()

    def rows(self, indices: Any) -> dict[str, Any]:
        """Return what samples hold."""
        found = {}
        for number, field in enumerate(self.spec):
            places = np.arange(max(1, field.row_bytes))[: field.row_bytes]
            stamps = (np.asarray(indices)[:, None] * 131 + places * 7 + number * 17 + 1) % 251
            if field.dtype == "bool":
                stamps = stamps % 2
            raw = np.ascontiguousarray(stamps.astype(np.uint8))
            shape = (len(indices), *field.shape)
            found[field.name] = raw.reshape(-1).view(field.dtype).reshape(shape) if raw.size else field.empty(len(raw))
        return found

    def deliver(self, stored: Any, out: Any) -> None:
        for name, value in stored.items():
            np.copyto(out[name], value)

    def fingerprint(self, *, full: bool = False) -> Fingerprint:
        return Fingerprint(f"stamped: {self.num_samples}", f"{self.num_samples:08x}", full)


def raw(array: Any) -> Any:
    """Return the bytes of an array."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def marked(spec: SampleSpec, num_rows: int) -> dict[str, Any]:
    """Return rows that no sample holds: every byte is 0xFF."""
    out = spec.empty(num_rows)
    for value in out.values():
        value.reshape(-1).view(np.uint8)[:] = 0xFF
    return out


def read_tier(tier: Tier, source: Stamped, indices: Any, *, seed: int = 0) -> Any:
    """Read samples into scattered rows and check everything that was touched; return which were held."""
    indices = np.asarray(indices, dtype=np.int64)
    num_rows = len(indices) + 5
    rows = np.random.default_rng(seed).permutation(num_rows)[: len(indices)].astype(np.int64)
    if seed % 2:
        rows = np.arange(3, len(indices) + 3, dtype=np.int64)
    out = marked(source.spec, num_rows)
    held = tier.read_into(indices, rows, out)
    assert held.dtype == np.bool_
    assert held.shape == (len(indices),)
    wanted = marked(source.spec, num_rows)
    for name, value in source.rows(indices[held]).items():
        wanted[name][rows[held]] = value
    for name, value in wanted.items():
        np.testing.assert_array_equal(raw(out[name]), raw(value), err_msg=name)
    return held


def offer(tier: Tier, source: Stamped, indices: Any, *, seed: int = 0) -> None:
    """Offer samples in scattered rows, and overwrite the rows afterwards."""
    indices = np.asarray(indices, dtype=np.int64)
    rows = np.random.default_rng(seed).permutation(len(indices) + 4)[: len(indices)].astype(np.int64)
    out = marked(source.spec, len(indices) + 4)
    source.read_into(indices, rows, out)
    before = {name: value.copy() for name, value in out.items()}
    kept = indices.copy(), rows.copy()
    tier.offer(indices, rows, out)
    assert (indices.tolist(), rows.tolist()) == (kept[0].tolist(), kept[1].tolist())
    for name, value in out.items():
        np.testing.assert_array_equal(raw(value), raw(before[name]))
        value.reshape(-1).view(np.uint8)[:] = 0xEE


class TierContract:
    """Subclass it under a name that begins with ``Test`` and define :meth:`make_tier`."""

    def make_tier(self, source: Stamped, folder: Path) -> Tier:
        raise NotImplementedError

    def fill(self, tier: Tier, source: Stamped) -> None:
        """Make the tier take in what it can."""
        for first in range(0, len(source), 7):
            offer(tier, source, np.arange(first, min(first + 7, len(source))))

    @pytest.fixture(params=list(SPECS))
    def source(self, request: Any) -> Stamped:
        return Stamped(spec=SPECS[request.param])

    @pytest.fixture
    def tier(self, source: Stamped, tmp_path: Path) -> Any:
        tier = self.make_tier(source, tmp_path)
        yield tier
        tier.close()

    def test_an_empty_tier_holds_nothing_and_touches_no_row(self, tier: Tier, source: Stamped) -> None:
        assert not read_tier(tier, source, np.arange(len(source))).any()

    def test_what_is_held_is_exactly_what_the_source_holds(self, tier: Tier, source: Stamped) -> None:
        self.fill(tier, source)
        rng = np.random.default_rng(0)
        for seed in range(6):
            read_tier(tier, source, rng.permutation(len(source)), seed=seed)

    def test_it_takes_in_at_least_half_and_never_lets_go(self, tier: Tier, source: Stamped) -> None:
        self.fill(tier, source)
        first = read_tier(tier, source, np.arange(len(source)))
        assert first.sum() >= len(source) // 2
        self.fill(tier, source)
        offer(tier, source, np.random.default_rng(1).integers(0, len(source), 50))
        assert (first <= read_tier(tier, source, np.arange(len(source)))).all()

    def test_samples_may_be_asked_for_and_offered_twice_at_once(self, tier: Tier, source: Stamped) -> None:
        offer(tier, source, [7, 7, 50, 3, 50, 7])
        self.fill(tier, source)
        held = read_tier(tier, source, np.arange(len(source)))
        picks = np.random.default_rng(2).integers(0, len(source), 90)
        assert read_tier(tier, source, picks).tolist() == held[picks].tolist()

    def test_hits_do_not_depend_on_what_else_is_asked_for(self, tier: Tier, source: Stamped) -> None:
        self.fill(tier, source)
        held = read_tier(tier, source, np.arange(len(source)))
        for index in range(len(source)):
            assert read_tier(tier, source, [index], seed=index).tolist() == [held[index]]

    def test_an_empty_request_is_answered(self, tier: Tier, source: Stamped) -> None:
        assert read_tier(tier, source, []).shape == (0,)
        offer(tier, source, [])
        self.fill(tier, source)
        assert read_tier(tier, source, []).shape == (0,)

    def test_counts_add_up(self, tier: Tier, source: Stamped) -> None:
        assert tier.count().name == tier.name
        assert (tier.count().num_rows, tier.count().num_hits) == (0, 0)
        self.fill(tier, source)
        num_hits = sum(int(read_tier(tier, source, np.arange(low, low + 20)).sum()) for low in (0, 20, 40))
        count = tier.count()
        assert (count.num_rows, count.num_hits) == (60, num_hits)
        assert count.hit_bytes == num_hits * source.spec.row_bytes
        assert count.held_bytes >= num_hits * source.spec.row_bytes
        assert count.off is None

    def test_threads_read_and_offer_at_once(self, tier: Tier, source: Stamped) -> None:
        wrong: list[BaseException] = []
        asked = [0] * 4

        def work(number: int) -> None:
            rng = np.random.default_rng(number)
            try:
                for step in range(30):
                    picks = rng.integers(0, len(source), 24)
                    read_tier(tier, source, picks, seed=step)
                    asked[number] += len(picks)
                    offer(tier, source, rng.permutation(picks), seed=step)
            except BaseException as error:  # noqa: BLE001 - carried to the main thread
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert tier.count().num_rows == sum(asked)
        self.fill(tier, source)
        read_tier(tier, source, np.arange(len(source)))

    def test_a_closed_tier_misses_and_takes_nothing_in(self, tier: Tier, source: Stamped) -> None:
        self.fill(tier, source)
        tier.close()
        assert not read_tier(tier, source, np.arange(len(source))).any()
        offer(tier, source, np.arange(len(source)))
        assert not read_tier(tier, source, np.arange(len(source))).any()
        assert tier.count().held_bytes == 0
        tier.close()
