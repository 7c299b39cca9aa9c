"""Resident samples field by field give what stored rows and ``deliver`` give, bit for bit.

White box: the planes of a store and of the blobs that it was made of are looked at, to be the same.
"""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.loader.loader import Loader
from flodl_pipe.loader.planes import PlaneStore, plane_store
from flodl_pipe.sources.labelled_records import LabelledRecords
from flodl_pipe.sources.mixture import Mixture
from flodl_pipe.sources.ordering import Weights
from flodl_pipe.sources.protocol import CopiedFields
from flodl_pipe.sources.records import RecordPart, Records
from flodl_pipe.sources.subset import Subset
from flodl_pipe.sources.tokens import TokenShards
from flodl_pipe.storage.open import open_blobs
from flodl_pipe.storage.planar import PlanarBlobs, cut_planes
from tests.loader.inside import start_filling, wait_until_filled

DTYPES = ["uint8", "int16", "int64", "float32", "bool"]
SHAPES = [(), (1,), (3,), (2, 5)]


@st.composite
def layouts(draw):
    """Draw (record_bytes, parts): fields in any order, tiling the record or with a gap or an overlap."""
    fields = draw(st.lists(st.tuples(st.sampled_from(DTYPES), st.sampled_from(SHAPES)), min_size=1, max_size=4))
    shift = draw(st.sampled_from([0, 0, 0, 1, -1]))
    parts, end = [], 0
    for number, (dtype, shape) in enumerate(fields):
        begin = max(0, end + shift) if number == 1 else end
        parts.append((f"f{number}", RecordPart(begin, dtype, shape)))
        end = max(end, begin + parts[-1][1].num_bytes)
    return end, dict(draw(st.permutations(parts)))


def planar(records, parts, counts, **labelled):
    """Return the same records held field by field, for a layout that tiles."""
    ordered = sorted(parts.values(), key=lambda part: part.offset)
    planes = cut_planes(np.empty(records.size, np.uint8), len(records), [part.num_bytes for part in ordered])
    for plane, part in zip(planes, ordered, strict=True):
        plane[...] = records[:, part.offset : part.offset + part.num_bytes]
    blobs = PlanarBlobs(planes, counts, [f"{number}" for number in range(len(counts))])
    return LabelledRecords(blobs, kind="test", record_bytes=records.shape[1], parts=parts, **labelled)


def tiles(record_bytes, parts):
    used = np.zeros(record_bytes, dtype=np.int64)
    for part in parts.values():
        used[part.offset : part.offset + part.num_bytes] += 1
    return bool((used == 1).all())


def batches(source, **options):
    """Return the fields of all batches of two epochs, and the digest if one is kept."""
    with Loader(source, **options) as loader:
        if loader.plan.mode == "resident":
            start_filling(loader)
            wait_until_filled(loader)
        found = [
            {name: t.numpy().copy() for name, t in batch.items()} for epoch in (0, 1) for batch in loader.epoch(epoch)
        ]
        return found, loader.statistics().digest


def require_same(ours, theirs):
    assert ours[1] == theirs[1]
    assert len(ours[0]) == len(theirs[0])
    for mine, other in zip(ours[0], theirs[0], strict=True):
        assert list(mine) == list(other)
        for name, value in other.items():
            assert mine[name].dtype == value.dtype
            assert mine[name].tobytes() == value.tobytes(), name


@settings(max_examples=25, deadline=None)
@given(
    layout=layouts(),
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    batch_size=st.integers(1, 9),
    readers=st.sampled_from([0, 1, 2]),
    shape=st.sampled_from(["whole", "range", "some", "mixed"]),
    keep_digest=st.booleans(),
    drop_last=st.sampled_from([False, "pad"]),
    seed=st.integers(0, 99),
)
def test_every_way_of_keeping_records_gives_the_same_batches(
    layout, counts, batch_size, readers, shape, keep_digest, drop_last, seed
):
    record_bytes, parts = layout
    rng = np.random.default_rng(seed)
    records = rng.integers(0, 256, (sum(counts), record_bytes), dtype=np.uint8)
    labels = ["f0"]

    def shaped(source):
        chosen = np.sort(rng_of_choice.choice(len(source), -(-len(source) // 2), replace=False))
        if shape == "range":
            return Subset(source, range(len(source) // 3, len(source)))
        if shape == "some":
            return Subset(source, chosen)
        if shape == "mixed":
            two = {"a": source, "b": Subset(source, chosen)}
            return Mixture(two, [Weights(0, (2, 1))], block=6)
        return source

    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, part in enumerate(np.split(records, np.cumsum(counts)[:-1])):
            paths.append(str(Path(folder) / f"{number}.bin"))
            part.tofile(paths[-1])
        options = {"batch_size": batch_size, "keep_digest": keep_digest, "drop_last": drop_last, "readers": readers}
        in_files = LabelledRecords(
            open_blobs(paths), kind="test", record_bytes=record_bytes, parts=parts, labels=labels
        )
        rng_of_choice = np.random.default_rng(seed)
        streamed = batches(shaped(in_files), mode="streaming", **options)
        rng_of_choice = np.random.default_rng(seed)
        require_same(batches(shaped(in_files), mode="resident", **options), streamed)
        if tiles(record_bytes, parts):
            held = planar(records, parts, counts, labels=labels)
            for full in (False, True):
                assert held.fingerprint(full=full) == in_files.fingerprint(full=full)
            for mode in ("streaming", "resident"):
                rng_of_choice = np.random.default_rng(seed)
                require_same(batches(shaped(held), mode=mode, **options), streamed)


@settings(max_examples=50, deadline=None)
@given(layout=layouts(), count=st.integers(1, 30), seed=st.integers(0, 99))
def test_records_are_kept_field_by_field_only_where_their_fields_are_all_of_them(layout, count, seed):
    record_bytes, parts = layout
    records = np.random.default_rng(seed).integers(0, 256, (count, record_bytes), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.bin"
        records.tofile(path)
        source = Records.open(str(path), record_bytes=record_bytes, parts=parts)
        assert source.extents is not None
        store = plane_store(source, source.extents)
        has_bool = any(part.dtype == "bool" for part in parts.values())
        assert (store is not None) == (tiles(record_bytes, parts) and not has_bool)
        if store is None:
            return
        assert store.chunks() == 1
        store.load(0)
        wanted = np.random.default_rng(seed).integers(0, count, 12)
        np.testing.assert_array_equal(store.gather(wanted)["record"], records[wanted])


def store_of(parts, labels, num_samples=10):
    records = np.arange(num_samples * 12, dtype=np.uint8).reshape(num_samples, 12)
    source = planar(records, parts, [num_samples], labels=labels)
    assert source.extents is not None
    store = plane_store(source, source.extents)
    assert isinstance(store, PlaneStore)
    return source, store


def test_planes_of_a_source_are_used_where_they_lie():
    parts = {"x": RecordPart(4, "uint8", (2, 4)), "y": RecordPart(0, "int32")}
    source, store = store_of(parts, ["y"])
    assert store.chunks() == 0
    assert store.delivers
    assert store.opaque == [True, False], "int32 is widened to int64"
    assert all(a is b for a, b in zip(store._planes, source._blobs.planes, strict=True))


@pytest.mark.parametrize("bad", [[10], [-1], [0, 1 << 40]])
def test_a_sample_that_is_not_there_is_an_error_not_the_last_one(bad):
    _, store = store_of({"x": RecordPart(0, "uint8", (12,))}, [])
    with pytest.raises(IndexError, match=r"are not all in 0 \.\. 9"):
        store.rows(np.array(bad))


def test_large_steps_are_shared_among_readers_from_planes_too(tmp_path):
    records = np.random.default_rng(1).integers(0, 256, (12, 1 << 20), dtype=np.uint8)
    records.tofile(tmp_path / "a.bin")
    parts = {"x": RecordPart(1, "uint8", ((1 << 20) - 1,)), "y": RecordPart(0, "uint8")}
    source = LabelledRecords(
        open_blobs([str(tmp_path / "a.bin")]), kind="test", record_bytes=1 << 20, parts=parts, labels=["y"]
    )
    options = {"batch_size": 5, "readers": 2, "drop_last": False}
    with Loader(source, mode="resident", **options) as loader:
        assert loader.plan.step_parts == 2
    require_same(batches(source, mode="resident", **options), batches(source, mode="streaming", **options))


@pytest.mark.parametrize("stride", [None, 1, 9, 20])
def test_windows_are_kept_as_they_lie_though_their_fields_are_only_copied(tmp_path, stride):
    np.arange(300, dtype="<u2").tofile(tmp_path / "t.bin")
    source = TokenShards.open(str(tmp_path / "t.bin"), dtype="uint16", seq_len=8, stride=stride)
    assert isinstance(source.delivery, CopiedFields)
    assert plane_store(source, source.extents) is None
