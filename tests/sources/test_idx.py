"""The MNIST family: pictures and labels out of IDX files, as one sample each."""

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flodl_pipe.errors import ChangedError, SourceError
from flodl_pipe.sources.data_folder import DataFolder
from flodl_pipe.sources.idx import open_idx, published_idx
from flodl_pipe.sources.labelled_records import LabelledRecords
from flodl_pipe.sources.protocol import HasPlanes
from tests.contract.sources import SourceContract, read_delivered, read_stored
from tests.sources.test_idx_format import idx

RNG = np.random.default_rng(5)
IMAGES = RNG.integers(0, 256, (60, 28, 28), dtype=np.uint8)
LABELS = RNG.integers(0, 10, 60, dtype=np.uint8)
NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")


def write(folder: Path, images: np.ndarray = IMAGES, labels: np.ndarray = LABELS, *, packed: bool = False) -> list[str]:
    folder.mkdir(exist_ok=True, parents=True)
    paths = []
    for name, array in zip(NAMES, (images, labels), strict=True):
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(idx(array), 1) if packed else idx(array))
        paths.append(str(path))
    return paths


def opened(folder: Path, images: np.ndarray = IMAGES, labels: np.ndarray = LABELS, **options: Any) -> LabelledRecords:
    return open_idx(*write(folder, images, labels), **options)


@pytest.mark.full
class TestPlain(SourceContract):
    def make_source(self, folder: Path) -> LabelledRecords:
        return opened(folder, num_classes=10)

    def expected(self, source: LabelledRecords, index: int) -> dict[str, Any]:
        return {"image": IMAGES[index][np.newaxis], "label": np.int64(LABELS[index])}


class TestPacked(SourceContract):
    def make_source(self, folder: Path) -> LabelledRecords:
        return open_idx(*write(folder, packed=True), num_classes=10)

    def expected(self, source: LabelledRecords, index: int) -> dict[str, Any]:
        return {"image": IMAGES[index][np.newaxis], "label": np.int64(LABELS[index])}


FLOATS = RNG.standard_normal((60, 3, 5, 7))
PAIRS = RNG.integers(-70_000, 70_000, (60, 8), dtype=np.int32)


@pytest.mark.full
class TestWideTypes(SourceContract):
    def make_source(self, folder: Path) -> LabelledRecords:
        return opened(folder, FLOATS, PAIRS)

    def expected(self, source: LabelledRecords, index: int) -> dict[str, Any]:
        return {"image": FLOATS[index], "label": PAIRS[index].astype(np.int64)}


@pytest.mark.parametrize(
    ("images", "labels", "image", "label"),
    [
        ((60, 28, 28), ("uint8", (60,)), "image uint8 (1, 28, 28)", "label int64 ()"),
        ((60, 12), ("int16", (60,)), "image uint8 (12,)", "label int64 ()"),
        ((60, 3, 8, 9), ("float32", (60,)), "image uint8 (3, 8, 9)", "label float32 ()"),
        ((60, 4, 4), ("int8", (60, 4, 4)), "image uint8 (1, 4, 4)", "label int64 (4, 4)"),
    ],
)
def test_shapes_and_types_follow_the_files(tmp_path: Path, images: Any, labels: Any, image: str, label: str) -> None:
    source = opened(tmp_path, np.zeros(images, np.uint8), np.ones(labels[1], labels[0]))
    assert list(map(str, source.delivered)) == [image, label]
    assert (read_delivered(source, [3])["label"] == 1).all()


def test_plain_and_packed_files_are_the_same_data(tmp_path: Path) -> None:
    plain, packed = opened(tmp_path / "a"), open_idx(*write(tmp_path / "b", packed=True))
    assert plain.fingerprint() == packed.fingerprint()
    assert plain.fingerprint(full=True) == packed.fingerprint(full=True)
    changed = LABELS.copy()
    changed[-1] ^= 1
    assert opened(tmp_path / "c", labels=changed).fingerprint() != plain.fingerprint()


def test_the_samples_are_held_once_in_memory(tmp_path: Path) -> None:
    source = opened(tmp_path)
    assert source.held_bytes == 60 * 785
    assert source.extents is not None
    assert isinstance(source.extents, HasPlanes)
    planes = source.extents.planes
    assert planes is not None
    assert sum(plane.nbytes for plane in planes) == source.held_bytes
    np.testing.assert_array_equal(np.concatenate(planes, axis=1), read_stored(source, np.arange(60))["record"])


def test_a_change_of_either_file_is_noticed(tmp_path: Path) -> None:
    for place in (0, 1):
        paths = write(tmp_path)
        source = open_idx(*paths)
        source.check_unchanged()
        Path(paths[place]).write_bytes(b"other")
        with pytest.raises(ChangedError, match=NAMES[place]):
            source.check_unchanged()


def test_facts_name_files_shapes_and_classes(tmp_path: Path) -> None:
    facts = {fact.name: fact.value for fact in opened(tmp_path, num_classes=10).facts()}
    assert facts == {
        "images": f"60 x 28 x 28 uint8, {tmp_path}/{NAMES[0]}",
        "labels": f"60 uint8, {tmp_path}/{NAMES[1]}",
        "classes": "10",
    }


def refused(folder: Path, images: np.ndarray = IMAGES, labels: np.ndarray = LABELS, **options: Any) -> str:
    with pytest.raises(SourceError) as caught:
        opened(folder, images, labels, **options)
    return str(caught.value)


def test_another_number_of_labels_is_a_mismatch(tmp_path: Path) -> None:
    text = refused(tmp_path, labels=LABELS[:-1])
    assert f"{NAMES[0]} has 60 images" in text
    assert f"{NAMES[1]} 59 labels, a mismatch" in text


def test_exchanged_files_are_told_by_their_magic(tmp_path: Path) -> None:
    assert "its magic 2049 says 1 dimension (60 uint8)" in refused(tmp_path, LABELS, IMAGES)


@pytest.mark.parametrize(("value", "dtype"), [(10, "uint8"), (255, "uint8"), (-1, "int8"), (70_000, "int32")])
def test_a_label_outside_its_classes_is_named(tmp_path: Path, value: int, dtype: str) -> None:
    labels = LABELS.astype(dtype)
    labels[41] = value
    text = refused(tmp_path, labels=labels, num_classes=10)
    assert f"{NAMES[1]}: label {value} of sample 41 is no class, 0 .. 9; correct source.num_classes" in text
    assert read_delivered(opened(tmp_path, labels=labels), [41])["label"].tolist() == [value]


def test_more_classes_than_a_byte_holds_check_nothing_wrongly(tmp_path: Path) -> None:
    assert len(opened(tmp_path, num_classes=1000)) == 60


@pytest.mark.parametrize("labels", [np.zeros((60, 2), np.int32), np.zeros(60, np.float32)])
def test_classes_need_one_integer_each(tmp_path: Path, labels: np.ndarray) -> None:
    text = refused(tmp_path, labels=labels, num_classes=10)
    assert f"says {labels.dtype} with {labels.ndim} dimensions" in text
    assert "set source.num_classes=null" in text


def test_what_memory_cannot_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, empty = write(tmp_path), np.empty

    def refuse(shape: Any, *args: Any, **options: Any) -> Any:
        if shape == 60 * 785:
            raise MemoryError
        return empty(shape, *args, **options)

    monkeypatch.setattr(np, "empty", refuse)
    with pytest.raises(SourceError, match=r"60 x 28 x 28 uint8 and its labels take 46.0 KiB of memory"):
        open_idx(*paths)


def test_published_names_are_found_plain_or_packed(tmp_path: Path) -> None:
    write(tmp_path)
    folder = DataFolder(str(tmp_path))
    assert published_idx(folder, "train") == tuple(f"{tmp_path}/{name}" for name in NAMES)
    write(tmp_path, packed=True)
    (tmp_path / NAMES[1]).unlink()
    assert published_idx(DataFolder(str(tmp_path)), "train") == (
        f"{tmp_path}/{NAMES[0]}",
        f"{tmp_path}/{NAMES[1]}.gz",
    )


def test_a_missing_split_is_named_with_what_is_there_instead(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "raw").mkdir()
    with pytest.raises(SourceError) as caught:
        published_idx(DataFolder(str(tmp_path)), "test")
    text = str(caught.value)
    assert text.startswith(f"{tmp_path}: t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte are missing: split test")
    assert f"it holds raw/, {NAMES[0]}, {NAMES[1]}. Copy what is missing, set source.path to {tmp_path}/raw/" in text


def test_a_remote_folder_is_not_listed() -> None:
    folder = DataFolder("https://host/mnist/")
    assert published_idx(folder, "test")[0] == "https://host/mnist/t10k-images-idx3-ubyte.gz"
    assert folder.join("s3://other/x") == "s3://other/x"


def test_a_header_of_other_dimensions_does_not_shear_the_images(tmp_path: Path) -> None:
    paths = write(tmp_path)
    content = Path(paths[0]).read_bytes()
    Path(paths[0]).write_bytes(struct.pack(">HBB3I", 0, 8, 3, 60, 32, 32) + content[16:])
    with pytest.raises(SourceError, match=r"uint8 60 x 32 x 32 is expected to take 61,440 bytes, and only 47,040"):
        open_idx(*paths)
