"""Subsets: what the source says, about fewer samples."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.config.source_base import SubsetConfig
from flodl_pipe.errors import ChangedError, ConfigError, SourceError
from flodl_pipe.sources.index_sets import select
from flodl_pipe.sources.ordering import Drawn, Mixed, MixedPart, Weights
from flodl_pipe.sources.protocol import BundledSource, Fact
from flodl_pipe.sources.records import RecordPart, Records
from flodl_pipe.sources.subset import Subset, apply_subset
from flodl_pipe.sources.tokens import TokenShards
from flodl_pipe.storage.memory import MemoryBlobs
from tests.contract.sources import SourceContract, read_delivered, read_stored, require_equal
from tests.loader.sources import Numbers

COUNTS = (900, 41, 700)
PARTS = {"x": RecordPart(0, "uint16", (3,)), "y": RecordPart(6, "uint8")}


def write_tokens(folder: Path) -> str:
    rng = np.random.default_rng(1)
    for number, count in enumerate(COUNTS):
        rng.integers(0, 60_000, count).astype("<u2").tofile(folder / f"t{number}.bin")
    return str(folder)


def tokens(folder: Path, **options: Any) -> TokenShards:
    return TokenShards.open(write_tokens(folder), dtype="uint16", **{"seq_len": 8, "stride": 3, **options})


def records(folder: Path, count: int = 90) -> Records:
    np.random.default_rng(2).integers(0, 256, (count, 7), dtype=np.uint8).tofile(folder / "r.bin")
    return Records.open(str(folder / "r.bin"), record_bytes=7, parts=PARTS)


class Expected(SourceContract):
    """The source itself, one sample at a time."""

    whole: Any
    chosen: Any

    @pytest.fixture(autouse=True)
    def _lets_go(self) -> Iterator[None]:
        yield
        vars(self).clear()  # pytest keeps the object of a test until the module ends, and what it holds stays open

    def make_source(self, folder: Path) -> Subset:
        self.whole, self.chosen = self.choice(folder)
        if not isinstance(self.chosen, SubsetConfig):
            return Subset(self.whole, self.chosen)
        found = apply_subset(self.whole, self.chosen)
        self.chosen = select(len(self.whole), self.chosen)[0]
        return found

    def choice(self, folder: Path) -> tuple[Any, Any]:
        """Return a source, and which of its samples: indices, or a section of a recipe."""
        raise NotImplementedError

    def expected(self, source: Subset, index: int) -> dict[str, Any]:
        picked = np.array(self.chosen)[index : index + 1]
        return {name: value[0] for name, value in read_delivered(self.whole, picked).items()}


@pytest.mark.full
class TestRangeOfTokens(Expected):
    def choice(self, folder: Path) -> Any:
        return tokens(folder), range(100, 400)


class TestScatteredOverlappingTokens(Expected):
    """Windows that overlap: the bytes between first and last are fewer than those of the rows."""

    def choice(self, folder: Path) -> Any:
        source = tokens(folder)
        return source, np.sort(np.random.default_rng(3).permutation(len(source))[:400])


@pytest.mark.full
class TestFewTokens(Expected):
    def choice(self, folder: Path) -> Any:
        return tokens(folder, stride=8), np.array([0, 5, 60, 61, 150])


@pytest.mark.full
class TestTokensWithTails(Expected):
    def choice(self, folder: Path) -> Any:
        return tokens(folder, stride=8, tail="keep"), SubsetConfig(fraction=0.4)


@pytest.mark.full
class TestRecordsOfASplit(Expected):
    def choice(self, folder: Path) -> Any:
        return records(folder), SubsetConfig(split={"train": 0.7, "val": 0.3}, take="train")


@pytest.mark.full
class TestRowsOfTheSourcesOwnContract(Expected):
    """Over a source that offers the least: no files, no buffers."""

    def choice(self, folder: Path) -> Any:
        return Indexed(300), np.arange(0, 300, 2)


@pytest.mark.full
class TestASubsetOfASubset(Expected):
    def choice(self, folder: Path) -> Any:
        return Subset(tokens(folder), range(50, 450)), np.arange(10, 300, 3)


class Indexed:
    """Sample ``i`` holds ``i``: nothing but the source contract."""

    def __init__(self, n: int, *, thread_safe: bool = False) -> None:
        self.spec = self.delivered = SampleSpec.of(id=("int64", ()))
        self.n, self.thread_safe = n, thread_safe

    def __len__(self) -> int:
        return self.n

    def read_into(self, indices: Any, rows: Any, out: Any) -> None:
        if len(indices) and not (indices.min() >= 0 and indices.max() < self.n):
            raise IndexError
        out["id"][rows] = indices

    def deliver(self, stored: Any, out: Any) -> None:
        np.copyto(out["id"], stored["id"])

    def fingerprint(self, *, full: bool = False) -> Any:
        return replace(Numbers(self.n).fingerprint(), full=full)


def test_it_is_a_bundled_source_whatever_it_is_made_of(tmp_path: Path) -> None:
    assert isinstance(Subset(Indexed(9), range(2, 4)), BundledSource)
    assert isinstance(Subset(records(tmp_path), range(2, 4)), BundledSource)


def test_the_samples_are_those_of_the_source_in_storage_order() -> None:
    subset = Subset(Indexed(300), np.array([4, 7, 290]))
    assert len(subset) == 3
    assert read_stored(subset, [2, 0, 2, 1])["id"].tolist() == [290, 4, 290, 7]
    assert Subset(Indexed(300, thread_safe=True), range(3)).thread_safe
    assert not subset.thread_safe


def test_one_range_holds_no_index_array_and_gives_the_bytes_it_needs(tmp_path: Path) -> None:
    source = records(tmp_path)
    for indices in (range(20, 50), np.arange(20, 50)):
        subset = Subset(source, indices)
        assert subset.held_bytes == 0
        assert subset.extents.num_bytes == 30 * 7
        assert subset.fingerprint() == Subset(source, range(20, 50)).fingerprint()
    assert Subset(source, np.array([20, 22])).held_bytes == 16


def test_extents_are_kept_where_they_take_less_than_rows(tmp_path: Path) -> None:
    source = tokens(tmp_path)  # rows of 18 bytes, one every 6
    assert Subset(source, np.arange(0, 200, 2)).extents.num_bytes == 198 * 6 + 18
    assert Subset(source, np.arange(0, 200, 4)).extents is None
    assert Subset(tokens(tmp_path, tail="keep"), range(9)).extents is None


def test_bytes_that_lie_in_memory_are_passed_on(tmp_path: Path) -> None:
    content = np.arange(70, dtype=np.uint8)
    source = Records(MemoryBlobs([content], ["m"]), record_bytes=7, parts=PARTS)
    assert source.extents.memory is not None
    for indices in (range(2, 5), np.array([2, 4])):
        subset = Subset(source, indices)
        assert np.shares_memory(subset.extents.memory, content)
        np.testing.assert_array_equal(subset.extents.memory, content[14:35])
    with pytest.raises(SourceError, match="lie outside the subset's 21 bytes"):
        Subset(source, range(2, 5)).extents.read(15, np.empty(7, np.uint8))


@pytest.mark.parametrize("indices", [[-1], [3]])
def test_starts_outside_the_subset_are_an_error(tmp_path: Path, indices: Any) -> None:
    subset = Subset(records(tmp_path), range(2, 5))
    with pytest.raises(IndexError, match=r"not all in 0 \.\. 2"):
        subset.extents.starts(np.array(indices))


def test_the_fingerprint_covers_content_and_choice(tmp_path: Path) -> None:
    source = records(tmp_path)
    found = Subset(source, range(10, 20)).fingerprint()
    assert found.summary == f"{source.fingerprint().summary}, 10 of 90 samples"
    others = [range(11, 21), range(10, 21), np.array([10, 12]), np.array([10, 13])]
    digests = {source.fingerprint().digest, found.digest, *(Subset(source, o).fingerprint().digest for o in others)}
    assert len(digests) == 6
    np.zeros((90, 7), np.uint8).tofile(tmp_path / "r.bin")
    assert (
        Subset(Records.open(str(tmp_path / "r.bin"), record_bytes=7, parts=PARTS), range(10, 20)).fingerprint() != found
    )


def test_facts_tell_how_many_and_by_which_rule(tmp_path: Path) -> None:
    source = records(tmp_path)
    subset = apply_subset(source, SubsetConfig(split={"train": 0.9, "val": 0.1}, take="val", seed=5))
    assert subset.facts() == (
        *source.facts(),
        Fact("subset", "9 of 90 samples: split val=0.1, seed 5"),
        Fact("indices of the subset", "72 B of memory"),
    )
    assert Subset(Indexed(9), range(2, 4)).facts() == (Fact("subset", "2 of 9 samples"),)


def test_the_order_of_a_source_that_is_drawn_is_scaled(tmp_path: Path) -> None:
    source = records(tmp_path)
    source.ordering = Drawn(200)
    assert Subset(source, range(45)).ordering == Drawn(100)
    assert Subset(source, range(1)).ordering == Drawn(2)
    source.ordering = Drawn(20)
    assert Subset(source, range(1)).ordering == Drawn(1)
    assert Subset(Indexed(9), range(3)).ordering is None


def test_what_the_source_holds_and_forbids_is_passed_on(tmp_path: Path) -> None:
    source = records(tmp_path)
    source.held_bytes, source.tiers_off = 1000, "the samples change"
    subset = Subset(source, np.array([1, 5]))
    assert (subset.held_bytes, subset.tiers_off) == (1016, "the samples change")


def test_a_file_that_changed_is_noticed(tmp_path: Path) -> None:
    subset = Subset(records(tmp_path), range(3))
    subset.check_unchanged()
    (tmp_path / "r.bin").write_bytes(bytes(7))
    with pytest.raises(ChangedError, match=r"r\.bin"):
        subset.check_unchanged()
    subset.close()
    Subset(Indexed(9), range(2)).close()
    Subset(Indexed(9), range(2)).check_unchanged()


def test_a_mixture_has_no_subset_of_its_own(tmp_path: Path) -> None:
    source = records(tmp_path)
    source.ordering = Mixed((MixedPart("a", 90),), (Weights(0, (1,)),), 10, 90)
    with pytest.raises(ConfigError, match="set subset in its parts"):
        apply_subset(source, SubsetConfig(fraction=0.5))


@pytest.mark.parametrize(
    "indices", [np.array([3, 2]), np.array([2, 2]), np.array([-1, 2]), np.array([2, 9]), range(0, 8, 2), range(2, 12)]
)
def test_indices_that_do_not_ascend_within_the_source_are_refused(indices: Any) -> None:
    with pytest.raises(ValueError, match=r"must ascend and lie in 0 \.\. 8"):
        Subset(Indexed(9), indices)


def test_no_samples_is_an_error_with_both_numbers() -> None:
    with pytest.raises(SourceError, match="0 of 9 samples"):
        Subset(Indexed(9), np.empty(0, np.int64))


def test_indices_given_are_copied() -> None:
    given = np.array([1, 5])
    subset = Subset(Indexed(9), given)
    given[:] = 0
    require_equal(read_stored(subset, [0, 1]), {"id": np.array([1, 5])})
