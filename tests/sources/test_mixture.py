"""Mixtures: several sources as one, each delivering as it does by itself."""

import itertools
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flodl_pipe.batch.ragged import Ragged
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.config.proportions import exact
from flodl_pipe.config.source_base import SubsetConfig
from flodl_pipe.config.source_mixture import MixtureConfig
from flodl_pipe.errors import ChangedError, ConfigError, SourceError
from flodl_pipe.loader.loader import Loader
from flodl_pipe.sources.build_mixture import build_mixture
from flodl_pipe.sources.joined_extents import JoinedExtents
from flodl_pipe.sources.mixture import PART_FIELD, Mixture
from flodl_pipe.sources.ordering import Drawn, Mixed, MixedPart, Weights
from flodl_pipe.sources.protocol import BundledSource, Fact
from flodl_pipe.sources.ragged_source import RaggedRows
from flodl_pipe.sources.records import RecordPart, Records
from flodl_pipe.sources.subset import Subset, apply_subset
from flodl_pipe.sources.tokens import TokenShards
from tests.contract.sources import SourceContract, read_delivered, read_stored
from tests.loader.sources import Numbers
from tests.sources.test_subset import Indexed

HALF = (Weights(0, (Fraction(7, 10), Fraction(3, 10))),)
FIELDS = {"x": RecordPart(0, "uint16", (2,)), "y": RecordPart(4, "uint8")}
SWAPPED = {"x": RecordPart(1, "uint16", (2,)), "y": RecordPart(0, "uint8")}


def tokens(
    file: Path, seed: int, count: int = 700, alike: bool = True, dtype: str = "uint16", **options: Any
) -> TokenShards:
    file.parent.mkdir(parents=True, exist_ok=True)
    np.random.default_rng(seed).integers(0, 60_000, count).astype(np.dtype(dtype).newbyteorder("<")).tofile(file)
    source = TokenShards.open(str(file), dtype=dtype, **{"seq_len": 8, **options})
    if not alike:
        source.delivery = None  # as of a source that says nothing
    return source


def records(file: Path, seed: int, parts: dict[str, RecordPart], count: int = 40) -> Records:
    np.random.default_rng(seed).integers(0, 256, (count, 5), dtype=np.uint8).tofile(file)
    return Records.open(str(file), record_bytes=5, parts=parts)


class Expected(SourceContract):
    """The part itself, one sample at a time."""

    schedule = HALF
    parts: dict[str, Any]

    @pytest.fixture(autouse=True)
    def _lets_go(self) -> Iterator[None]:
        yield
        vars(self).clear()  # pytest keeps the object of a test until the module ends, and what it holds stays open

    def make_source(self, folder: Path) -> Mixture:
        self.parts = self.make_parts(folder)
        return Mixture(self.parts, self.schedule, block=10)

    def make_parts(self, folder: Path) -> dict[str, Any]:
        raise NotImplementedError

    def expected(self, source: Mixture, index: int) -> dict[str, Any]:
        for part in self.parts.values():
            if index < len(part):
                return {name: value[0] for name, value in read_delivered(part, [index]).items()}
            index -= len(part)
        raise AssertionError


@pytest.mark.full
class TestTokensThatDeliverAlike(Expected):
    def make_parts(self, folder: Path) -> dict[str, Any]:
        return {"web": tokens(folder / "a.bin", 1), "code": tokens(folder / "b.bin", 2, 300, stride=3)}


class TestSubsetsOfTokens(Expected):
    def make_parts(self, folder: Path) -> dict[str, Any]:
        whole = tokens(folder / "a.bin", 1, stride=2)
        return {
            "one": Subset(whole, range(10, 60)),
            "two": apply_subset(tokens(folder / "b.bin", 2, stride=2), SubsetConfig(fraction=0.8)),
        }


@pytest.mark.full
class TestTokensThatMayNotDeliverAlike(Expected):
    schedule = (Weights(0, (Fraction(1),) * 3),)

    def make_parts(self, folder: Path) -> dict[str, Any]:
        return {
            "web": tokens(folder / "a.bin", 1, alike=False),
            "code": tokens(folder / "b.bin", 2, 205, alike=False),
            "more": tokens(folder / "c.bin", 3, 90, alike=False),
        }


class TestRecordsWithFieldsAtOtherOffsets(Expected):
    def make_parts(self, folder: Path) -> dict[str, Any]:
        return {"a": records(folder / "a.bin", 1, FIELDS), "b": records(folder / "b.bin", 2, SWAPPED)}


@pytest.mark.full
class TestTokensWithTails(Expected):
    def make_parts(self, folder: Path) -> dict[str, Any]:
        return {"a": tokens(folder / "a.bin", 1, tail="keep"), "b": tokens(folder / "b.bin", 2, 77, tail="keep")}


@pytest.mark.full
class TestSourcesOfTheLeastContract(Expected):
    def make_parts(self, folder: Path) -> dict[str, Any]:
        return {"a": Indexed(60), "b": Subset(Indexed(90), range(30))}


@pytest.mark.full
class TestOnePart(Expected):
    schedule = (Weights(0, (Fraction(1),)),)

    def make_parts(self, folder: Path) -> dict[str, Any]:
        return {"a": records(folder / "a.bin", 1, FIELDS)}


def test_a_row_knows_its_part_only_where_it_must(tmp_path: Path) -> None:
    alike = TestTokensThatDeliverAlike().make_source(tmp_path)
    assert alike.spec.names == ("tokens",)
    assert isinstance(alike.extents, JoinedExtents)
    of_unlike = TestTokensThatMayNotDeliverAlike()
    other = of_unlike.make_source(tmp_path)
    assert other.spec.names == ("tokens", PART_FIELD)
    assert other.extents is None
    assert other.delivered.names == ("input", "target")
    sizes = [len(part) for part in of_unlike.parts.values()]
    stored = read_stored(other, np.arange(len(other)))
    assert np.array_equal(stored[PART_FIELD], np.repeat([0, 1, 2], sizes))
    # One that says how it delivers does not speak for those that do not.
    some = {**of_unlike.parts, "code": tokens(tmp_path / "b.bin", 2, 205)}
    assert Mixture(some, of_unlike.schedule, block=10).spec.names == ("tokens", PART_FIELD)


def test_parts_of_which_one_has_no_extents_are_kept_as_rows(tmp_path: Path) -> None:
    whole = tokens(tmp_path / "a.bin", 1)
    scattered = Subset(tokens(tmp_path / "b.bin", 2), np.arange(0, 80, 9))
    assert scattered.extents is None
    mixture = Mixture({"a": whole, "b": scattered}, HALF, block=10)
    assert mixture.spec == whole.spec
    assert mixture.extents is None


def test_bytes_and_starts_outside_the_mixture_are_errors(tmp_path: Path) -> None:
    extents = TestTokensThatDeliverAlike().make_source(tmp_path).extents
    assert extents.num_bytes == 2000
    with pytest.raises(SourceError, match="lie outside the mixture's 2,000 bytes"):
        extents.read(1999, np.empty(2, np.uint8))
    with pytest.raises(IndexError, match="not all in"):
        extents.starts(np.array([-1]))


def test_it_describes_its_order(tmp_path: Path) -> None:
    first, second = tokens(tmp_path / "a.bin", 1), tokens(tmp_path / "b.bin", 2)  # 87 windows each
    schedule = (*HALF, Weights(500, (Fraction(1), Fraction(1))))
    mixture = Mixture({"web": first, "code": second}, schedule, block=10, max_epochs={"code": 3})
    assert isinstance(mixture, BundledSource)
    assert mixture.ordering == Mixed((MixedPart("web", 87), MixedPart("code", 87, False, 3)), schedule, 10, 170)
    assert Mixture({"web": first, "code": second}, HALF, block=1000).ordering.num_picks == 1000
    assert Mixture({"web": first, "code": second}, HALF, block=10, num_picks=40).ordering.num_picks == 40


def test_a_part_that_is_drawn_stays_so(tmp_path: Path) -> None:
    drawn = tokens(tmp_path / "a.bin", 1)
    drawn.ordering = Drawn(20)
    mixture = Mixture({"a": drawn, "b": tokens(tmp_path / "b.bin", 2)}, HALF, block=10)
    assert mixture.ordering.parts == (MixedPart("a", 87, drawn=True), MixedPart("b", 87))
    assert mixture.ordering.num_picks == 100


def test_what_parts_hold_and_forbid_is_summed_up(tmp_path: Path) -> None:
    first, second = tokens(tmp_path / "a.bin", 1), tokens(tmp_path / "b.bin", 2)
    assert Mixture({"a": first, "b": second}, HALF, block=10).tiers_off is None
    first.held_bytes, second.held_bytes, second.tiers_off = 7, 5, "samples change"
    second.thread_safe = False
    mixture = Mixture({"a": first, "b": second}, HALF, block=10)
    assert (mixture.held_bytes, mixture.tiers_off, mixture.thread_safe) == (12, "part b: samples change", False)


def test_the_fingerprint_covers_names_and_parts_and_no_weights(tmp_path: Path) -> None:
    first, second = tokens(tmp_path / "a.bin", 1), tokens(tmp_path / "b.bin", 2)
    found = Mixture({"web": first, "code": second}, HALF, block=10).fingerprint()
    assert found.summary == (
        f"mixture of 2: web ({first.fingerprint().summary}); code ({second.fingerprint().summary})"
    )
    even = (Weights(0, (Fraction(1), Fraction(1))),)
    assert Mixture({"web": first, "code": second}, even, block=20).fingerprint() == found
    others = [{"web": second, "code": first}, {"www": first, "code": second}, {"code": second, "web": first}]
    digests = {found.digest, *(Mixture(parts, HALF, block=10).fingerprint().digest for parts in others)}
    assert len(digests) == 4


def test_facts_tell_the_share_of_each_part(tmp_path: Path) -> None:
    first, second = Indexed(1000), Subset(Indexed(500), range(100))
    schedule = (*HALF, Weights(4995, (Fraction(1), Fraction(1))))
    mixture = Mixture({"web": first, "code": second}, schedule, block=10, max_epochs={"code": 12})
    assert mixture.facts() == (
        Fact("parts", "2 in blocks of 10: web, code"),
        Fact("part web", "1,000 samples; 7 of a block (70.00%), weight 7/10; 0.77 passes over them an epoch"),
        Fact(
            "part code",
            "100 samples; 3 of a block (30.00%), weight 3/10; 3.3 passes over them an epoch, 12 at most in the run",
        ),
        Fact("from sample 5,000 on", "web 5, code 5 of a block"),
        Fact("delivery", "each part's rows by the part itself: they may not be delivered alike"),
        Fact("code: subset", "100 of 500 samples"),
    )


def test_a_file_that_changed_is_noticed(tmp_path: Path) -> None:
    mixture = TestTokensThatDeliverAlike().make_source(tmp_path)
    mixture.check_unchanged()
    (tmp_path / "b.bin").write_bytes(bytes(7))
    with pytest.raises(ChangedError, match=r"b\.bin"):
        mixture.check_unchanged()
    mixture.close()


def test_parts_of_other_layouts_are_refused_with_both(tmp_path: Path) -> None:
    first = tokens(tmp_path / "a.bin", 1)
    wide = tokens(tmp_path / "b.bin", 2, dtype="uint32")
    with pytest.raises(
        ConfigError,
        match=r"parts\.b\.source.*'a' stores tokens uint16 \(9,\), and 'b' stores tokens uint32 .*write one",
    ):
        Mixture({"a": first, "b": wide}, HALF, block=10)
    with pytest.raises(
        ConfigError, match=r"uint16 \(9,\), and 'b' stores tokens uint16 \(5,\); give both the same fields"
    ):
        Mixture({"a": first, "b": tokens(tmp_path / "b.bin", 2, seq_len=4)}, HALF, block=10)
    with pytest.raises(ConfigError, match="num_tokens"):
        Mixture({"a": first, "b": tokens(tmp_path / "b.bin", 2, tail="keep")}, HALF, block=10)
    signed = {**FIELDS, "y": RecordPart(4, "int8")}
    with pytest.raises(ConfigError, match=r"'a' delivers .*uint8 \(\), and 'b' delivers .*int8"):
        Mixture({"a": records(tmp_path / "c", 1, FIELDS), "b": records(tmp_path / "d", 1, signed)}, HALF, block=10)


def test_mixtures_in_mixtures_parts_without_samples_and_missing_weights_are_refused() -> None:
    inner = Mixture({"a": Indexed(9)}, (Weights(0, (Fraction(1),)),), block=1)
    inner_too = Indexed(9)
    inner_too.spec = inner.spec
    with pytest.raises(ConfigError, match=r"parts\.b\.source: a mixture cannot be part of a mixture"):
        Mixture({"a": inner_too, "b": inner}, HALF, block=10)
    with pytest.raises(SourceError, match="part 'b' of the mixture has 0 samples"):
        Mixture({"a": Indexed(9), "b": Indexed(0)}, HALF, block=10)
    with pytest.raises(ConfigError, match="one for each of the 3 parts"):
        Mixture({"a": Indexed(9), "b": Indexed(9), "c": Indexed(9)}, HALF, block=10)
    with pytest.raises(ConfigError, match="needs parts"):
        Mixture({}, HALF, block=10)


def section(**keys: Any) -> MixtureConfig:
    source = {"kind": "token_shards", "path": "/none", "seq_len": 8, "dtype": "uint16", "subset": {"fraction": 0.5}}
    parts = {"web": {"source": source, "weight": 0.7}, "code": {"source": source, "weight": 0.3, "max_epochs": 4}}
    return MixtureConfig(parts=parts, block=10, **keys)


def test_a_config_is_built_part_by_part() -> None:
    config = section(schedule=[{"at": 100, "weights": {"code": 0.5, "web": 0.5}}], epoch_samples=50)
    mixture = build_mixture(config, lambda part: apply_subset(Indexed(40), part.subset))
    assert mixture.ordering == Mixed(
        (MixedPart("web", 20), MixedPart("code", 20, max_epochs=4)),
        (Weights(0, (exact(0.7), exact(0.3))), Weights(100, (exact(0.5), exact(0.5)))),
        10,
        50,
    )


def test_what_is_wrong_in_a_part_is_said_of_that_part() -> None:
    def config_error(part: Any) -> Any:
        raise ConfigError.at("source.seq_len", "must be at least 1")

    def source_error(part: Any) -> Any:
        raise ChangedError("/none: is gone")

    with pytest.raises(ConfigError, match=r"source\.parts\.web\.source\.seq_len: must be at least 1"):
        build_mixture(section(), config_error)
    with pytest.raises(ChangedError, match=r"part 'web' of the mixture \(source\.parts\.web\.source\): /none: is gone"):
        build_mixture(section(), source_error)


def test_parts_that_are_open_are_closed_when_another_fails() -> None:
    class Closing(Numbers):
        def __init__(self) -> None:
            super().__init__(9)
            self.extents = self.ordering = self.tiers_off = None
            self.held_bytes, self.closed = 0, False

        def buffers(self, num_rows: int) -> Any: ...
        def check_unchanged(self) -> None: ...
        def facts(self) -> Any: ...
        def close(self) -> None:
            self.closed = True

    first = Closing()
    answers: Any = itertools.chain([first], itertools.repeat(None))

    def build(part: Any) -> Any:
        answer = next(answers)
        if answer is None:
            raise SourceError("no")
        return answer

    with pytest.raises(SourceError, match="part 'code'"):
        build_mixture(section(), build)
    assert first.closed


def test_a_loader_serves_it_in_exact_proportions() -> None:
    spec = SampleSpec.of(id=("int64", ()))
    mixture = Mixture({"a": Indexed(70, thread_safe=True), "b": Indexed(30, thread_safe=True)}, HALF, block=10)
    assert mixture.delivered == spec
    with Loader(mixture, batch_size=10, seed=1) as loader:
        batches = [batch["id"].numpy() for batch in loader.epoch(0)]
    assert len(batches) == 10
    assert [len(ids) for ids in batches] == [10] * 10
    origin = np.bincount(np.concatenate(batches), minlength=70)
    assert origin[:30].tolist() == [2] * 30
    assert origin[30:].tolist() == [1] * 40


class Text(Indexed):
    """Ids of a vocabulary."""

    def __init__(self, vocabulary: str) -> None:
        super().__init__(50)
        self.vocabulary = vocabulary

    def artifacts(self) -> Any:
        return {"vocabulary.txt": self.vocabulary}


def test_parts_with_other_vocabularies_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"parts\.b\.source: the vocabulary\.txt of 'b' is not that of 'a'"):
        Mixture({"a": Text("abc"), "b": Text("abd")}, HALF, block=10)
    mixture = Mixture({"a": Text("abc"), "b": Subset(Text("abc"), range(9))}, HALF, block=10)
    assert mixture.artifacts() == {"vocabulary.txt": "abc"}
    assert Mixture({"a": Indexed(5), "b": Text("abc")}, HALF, block=10).artifacts() == {"vocabulary.txt": "abc"}


def test_a_run_resumed_with_other_weights_goes_on_in_every_part() -> None:
    def loader(*weights: int) -> Loader:
        parts = {"a": Indexed(1000, thread_safe=True), "b": Shifted(1000)}
        mixture = Mixture(parts, (Weights(0, tuple(map(Fraction, weights))),), block=10, num_picks=100)
        return Loader(mixture, batch_size=5, seed=1)

    with loader(7, 3) as first:
        steps = iter(first)
        seen = [next(steps)["id"].numpy().copy() for _ in range(9)]  # 45 samples: within a block
        state = first.state_dict()
    assert state["mixture"] == "0:7,3"
    with loader(1, 9) as second:
        second.load_state_dict(state)
        seen += [batch["id"].numpy().copy() for batch in second]
        assert second.state_dict()["mixture"] == "0:7,3;50:1,9"
    ids = np.concatenate(seen)
    assert len(np.unique(ids)) == len(ids) == 100
    assert int((ids >= 5000).sum()) == 15 + 45


class Shifted(Indexed):
    """Sample ``i`` holds ``5000 + i``."""

    def __init__(self, n: int) -> None:
        super().__init__(n, thread_safe=True)

    def read_into(self, indices: Any, rows: Any, out: Any) -> None:
        super().read_into(indices, rows, out)
        out["id"][rows] += 5000


def test_parts_of_different_lengths_are_refused_when_the_mixture_is_made():
    rows = RaggedRows({"ids": Ragged.of([np.arange(3), np.arange(5)])})
    with pytest.raises(ConfigError, match="samples of different lengths"):
        Mixture({"a": rows, "b": rows}, HALF, block=10)
