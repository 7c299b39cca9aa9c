"""Datasets that are random on purpose: a sample is a function of its pick, and the process's generators stay alone."""

import random
import re

import numpy as np
import pytest
import torch

from flodl_pipe.batch.ragged import Ragged
from flodl_pipe.config.sections import check_section
from flodl_pipe.config.source_custom import CustomConfig
from flodl_pipe.errors import ConfigError, LoaderError, SourceError
from flodl_pipe.sources.adapters import adapt
from flodl_pipe.sources.any_source import as_source
from flodl_pipe.sources.build import build_source
from flodl_pipe.sources.impure import IMPURE_TIERS_OFF, ImpureSource
from flodl_pipe.sources.protocol import BundledSource, RaggedSource
from tests.loader.process_sources import Batches, Items, Random, RandomRagged


def read(source, indices, repeats=None, epoch=0, seed=0):
    """Return picks in the order asked for."""
    indices = np.asarray(indices, dtype=np.int64)
    repeats = np.zeros_like(indices) if repeats is None else np.asarray(repeats, dtype=np.int64)
    out = source.spec.empty(len(indices))
    source.read_picks(indices, repeats, epoch, seed, np.arange(len(indices)), out)
    return out


def rows(columns):
    """Return each row as bytes."""
    return [
        b"".join(c.row(i).tobytes() if isinstance(c, Ragged) else c[i].tobytes() for c in columns.values())
        for i in range(len(next(iter(columns.values()))))
    ]


def states():
    of_numpy = np.random.get_state()  # noqa: NPY002 - the global generator is meant
    return (
        torch.get_rng_state().tolist(),
        random.getstate(),
        [part if isinstance(part, int | str | float) else part.tolist() for part in of_numpy],
    )


@pytest.fixture
def source():
    return adapt(Random(), pure=False)


def test_it_is_an_impure_source_and_a_bundled_one(source):
    assert isinstance(source, ImpureSource)
    assert isinstance(source, BundledSource)
    assert not isinstance(adapt(Random()), ImpureSource)
    assert not source.thread_safe
    assert source.tiers_off == IMPURE_TIERS_OFF
    assert source.extents is None
    assert ("pure", "false: global generators are seeded per pick, samples are kept nowhere") in [
        (fact.name, fact.value) for fact in source.facts()
    ]
    assert as_source(source, pure=False) is source


def test_a_sample_depends_on_its_pick_and_on_nothing_else(source):
    whole = rows(read(source, range(50), seed=3))
    assert rows(read(source, range(49, -1, -1), seed=3)) == whole[::-1]
    assert [rows(read(source, [index], seed=3))[0] for index in range(50)] == whole
    torch.manual_seed(1)
    random.seed(1)
    assert rows(read(adapt(Random(), pure=False), range(50), seed=3)) == whole


@pytest.mark.parametrize("other", [{"epoch": 1}, {"seed": 4}, {"seed": 1 << 63}, {"repeats": [1] * 50}])
def test_another_epoch_seed_or_repeat_draws_other_numbers(source, other):
    first, then = read(source, range(50), seed=3), read(source, range(50), **{"seed": 3, **other})
    assert first["id"].tolist() == then["id"].tolist()
    for name in ("torch", "numpy", "python"):
        assert not (first[name] == then[name]).any()


def test_picks_have_nothing_in_common(source):
    found = read(source, list(range(1000)) * 2, repeats=[0] * 1000 + [1] * 1000)
    for name in ("torch", "numpy", "python"):
        values = found[name].reshape(2000, -1)
        assert len(np.unique(values)) > 0.9997 * values.size  # float32 has 24 bits: a few meet by chance
        assert abs(values.mean() - 0.5) < 0.03
        assert abs(np.corrcoef(values[:-1, 0], values[1:, 0])[0, 1]) < 0.1
    assert len({*found["numpy"][:, 0], *found["python"]}) == 4000  # neither has the other's


@pytest.mark.parametrize("fails", [False, True])
def test_the_generators_of_the_process_stay_as_they_are(source, fails):
    before = states()
    if fails:
        with pytest.raises(IndexError):
            read(source, [1, 5000])
    else:
        read(source, range(5))
    source.fingerprint()
    adapt(Random(), pure=False)
    adapt(RandomRagged(), ragged=["values"], pure=False)
    assert states() == before


def test_ragged_samples_depend_on_their_pick_too():
    source = adapt(RandomRagged(), ragged=["values"], pure=False)
    assert isinstance(source, ImpureSource)
    assert isinstance(source, RaggedSource)
    indices, zeros = np.arange(60), np.zeros(60, np.int64)
    found = source.read_pick_rows(indices, zeros, 1, 2)
    whole = rows(found)
    assert set(found["values"].lengths.tolist()) == {0, 1, 2, 3}
    assert rows(source.read_pick_rows(indices[::-1].copy(), zeros, 1, 2)) == whole[::-1]
    assert rows(source.read_pick_rows(indices, zeros, 2, 2)) != whole
    assert source.fingerprint() == adapt(RandomRagged(), ragged=["values"], pure=False).fingerprint()
    assert rows(source.read_rows(indices)) == rows(source.read_pick_rows(indices, zeros, 0, 0))
    assert len(source.read_pick_rows(indices[:0], zeros[:0], 0, 0)["id"]) == 0


@pytest.mark.parametrize("kind", [Items, Batches])
def test_datasets_of_many_samples_a_call_are_read_one_by_one(kind):
    found = read(adapt(kind(), pure=False), [7, 3])
    plain = adapt(kind())
    out = plain.spec.empty(2)
    plain.read_into(np.array([7, 3]), np.arange(2), out)
    assert rows(found) == rows(out)


def test_a_fingerprint_is_of_the_samples():
    source, again = adapt(Random(100), pure=False), adapt(Random(100), pure=False)
    first = source.fingerprint()
    assert first == again.fingerprint()
    assert first != adapt(Random(99), pure=False).fingerprint()
    assert first.digest != source.fingerprint(full=True).digest
    assert source.fingerprint(full=True) == again.fingerprint(full=True)


def test_what_a_read_without_a_pick_gives_is_said(source):
    out = source.spec.empty(3)
    source.read_into(np.arange(3), np.arange(3), out)
    assert rows(out) == rows(read(source, range(3)))


def test_threads_and_randomness_do_not_go_together():
    with pytest.raises(LoaderError, match=r"pure=False and thread_safe=True: .*reader_kind=process"):
        adapt(Random(), thread_safe=True, pure=False)
    with pytest.raises(ConfigError, match="thread_safe: must be false with pure=false"):
        check_section(CustomConfig, "source", factory="a:b", thread_safe=True, pure=False)


def test_a_stream_has_no_picks():
    with pytest.raises(LoaderError, match="pure=False, but list_iterator is read from the front"):
        as_source(iter([1, 2]), pure=False)


SECTION = {"factory": "tests.loader.process_sources:Random", "args": {"n": 100}, "pure": False}


def test_a_recipe_makes_one():
    made = build_source(CustomConfig(**SECTION), "data", ["tests"])
    assert rows(read(made, range(9))) == rows(read(adapt(Random(), pure=False), range(9)))


def test_picks_of_a_subset_count_its_own_samples():
    config = check_section(CustomConfig, "source", **SECTION, subset={"range": [10, 20]})
    made = build_source(config, "data", ["tests"])
    assert isinstance(made, ImpureSource)
    found, whole = read(made, range(10)), read(adapt(Random(), pure=False), range(10))
    assert found["id"].tolist() == list(range(10, 20))
    assert found["numpy"].tolist() == whole["numpy"].tolist()


def test_what_differs_all_the_same_can_be_found(source):
    class Own(Random):
        generator = np.random.default_rng(0)

        def __getitem__(self, index):
            return super().__getitem__(index) | {"own": self.generator.random()}

    from flodl_pipe.sources.purity import require_pure

    require_pure(source, np.arange(8))
    with pytest.raises(SourceError, match=re.escape("field 'own' differ")):
        require_pure(adapt(Own(), pure=False), np.arange(8))
