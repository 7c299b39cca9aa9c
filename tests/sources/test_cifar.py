"""CIFAR's binary batches, in memory and from disk: the same bytes, and the same refusals."""

import io
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flodl_pipe.errors import ChangedError, SourceError
from flodl_pipe.sources.cifar import CIFAR10, CIFAR100, CifarLayout, cifar_files, open_cifar
from flodl_pipe.sources.data_folder import DataFolder
from flodl_pipe.sources.labelled_records import LabelledRecords
from flodl_pipe.sources.protocol import HasPlanes
from tests.contract.sources import SourceContract, read_delivered, read_stored

RNG = np.random.default_rng(9)
COUNTS = (20, 1, 33)


def batch(count: int, *num_classes: int) -> np.ndarray:
    records = RNG.integers(0, 256, (count, len(num_classes) + 3072), dtype=np.uint8)
    for place, classes in enumerate(num_classes):
        records[:, place] %= classes
    return records


TEN = [batch(count, 10) for count in COUNTS]
HUNDRED = [batch(count, 20, 100) for count in COUNTS]


def write(folder: Path, batches: list[np.ndarray]) -> list[str]:
    folder.mkdir(exist_ok=True, parents=True)
    paths = [folder / f"data_batch_{number}.bin" for number in range(1, len(batches) + 1)]
    for path, records in zip(paths, batches, strict=True):
        records.tofile(path)
    return [str(path) for path in paths]


def opened(
    folder: Path, batches: list[np.ndarray] = TEN, *, in_memory: bool, layout: CifarLayout = CIFAR10
) -> LabelledRecords:
    return open_cifar(layout, write(folder, batches), in_memory=in_memory, num_classes=layout.num_classes)


def picture(record: np.ndarray) -> np.ndarray:
    red, green, blue = (record[-3072:][plane * 1024 : (plane + 1) * 1024].reshape(32, 32) for plane in range(3))
    return np.stack([red, green, blue])


def plainly(record: np.ndarray) -> dict[str, Any]:
    return {"image": picture(record), "label": np.int64(record[0])}


@pytest.mark.full
class TestInMemory(SourceContract):
    def make_source(self, folder: Path) -> LabelledRecords:
        return opened(folder, in_memory=True)

    def expected(self, source: LabelledRecords, index: int) -> dict[str, Any]:
        return plainly(np.concatenate(TEN)[index])


class TestFromDisk(SourceContract):
    def make_source(self, folder: Path) -> LabelledRecords:
        return opened(folder, in_memory=False)

    def expected(self, source: LabelledRecords, index: int) -> dict[str, Any]:
        return plainly(np.concatenate(TEN)[index])


@pytest.mark.full
class TestCifar100(SourceContract):
    def make_source(self, folder: Path) -> LabelledRecords:
        return opened(folder, HUNDRED, in_memory=True, layout=CIFAR100)

    def expected(self, source: LabelledRecords, index: int) -> dict[str, Any]:
        record = np.concatenate(HUNDRED)[index]
        return {"image": picture(record), "label": np.int64(record[1]), "coarse_label": np.int64(record[0])}


def test_memory_and_disk_give_the_same_rows_and_fingerprints(tmp_path: Path) -> None:
    memory, disk = (opened(tmp_path, in_memory=in_memory) for in_memory in (True, False))
    every = np.arange(sum(COUNTS))
    np.testing.assert_array_equal(read_stored(memory, every)["record"], read_stored(disk, every)["record"])
    for full in (False, True):
        assert memory.fingerprint(full=full) == disk.fingerprint(full=full)
    assert (memory.held_bytes, disk.held_bytes) == (sum(COUNTS) * 3073, 0)
    assert memory.extents is not None
    assert disk.extents is not None
    assert disk.extents.memory is None
    assert isinstance(memory.extents, HasPlanes)
    planes = memory.extents.planes
    assert planes is not None
    np.testing.assert_array_equal(np.concatenate(planes, axis=1), np.concatenate(TEN))


def test_from_disk_nothing_is_read_before_it_is_asked_for(tmp_path: Path) -> None:
    source = opened(tmp_path, in_memory=False)
    (tmp_path / "data_batch_3.bin").write_bytes(bytes(33 * 3073))
    os.utime(tmp_path / "data_batch_3.bin", (1, 1))  # the clock of files may tick too slowly
    assert read_delivered(source, [0])["label"].tolist() == [TEN[0][0, 0]]
    with pytest.raises(ChangedError, match=r"data_batch_3\.bin"):
        read_stored(source, [21])


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_change_of_a_file_is_noticed(tmp_path: Path, in_memory: bool) -> None:
    source = opened(tmp_path, in_memory=in_memory)
    source.check_unchanged()
    os.utime(tmp_path / "data_batch_2.bin", (1, 1))
    with pytest.raises(ChangedError, match=r"data_batch_2\.bin"):
        source.check_unchanged()


def damaged(batches: list[np.ndarray], number: int, record: int, place: int, value: int) -> list[np.ndarray]:
    copies = [records.copy() for records in batches]
    copies[number][record, place] = value
    return copies


def test_a_label_outside_is_found_at_build_in_memory_and_when_read_from_disk(tmp_path: Path) -> None:
    batches = damaged(TEN, 2, 5, 0, 10)
    says = r"data_batch_3\.bin, record 5: label 10 is no class, 0 \.\. 9; the file is shifted"
    with pytest.raises(SourceError, match=says):
        opened(tmp_path, batches, in_memory=True)
    source = opened(tmp_path, batches, in_memory=False)
    read_stored(source, [25, 27])
    for indices in ([26], [0, 26, 3], list(range(54))):
        with pytest.raises(SourceError, match=says):
            read_stored(source, indices)
    assert source.extents is not None
    label = 26 * 3073
    for start, size in ((label, 1), (label - 1, 2), (label - 5000, 9000), (0, source.extents.num_bytes)):
        with pytest.raises(SourceError, match=says):
            source.extents.read(start, np.empty(size, dtype=np.uint8))
    for start, size in ((label + 1, 3072), (label - 3072, 3072), (label + 1, 50_000)):
        source.extents.read(start, np.empty(size, dtype=np.uint8))


def test_both_labels_of_cifar100_are_checked(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"batch_1\.bin, record 7: coarse label 20 is no class, 0 \.\. 19"):
        opened(tmp_path, damaged(HUNDRED, 0, 7, 0, 20), in_memory=True, layout=CIFAR100)
    with pytest.raises(SourceError, match=r"batch_2\.bin, record 0: label 100 is no class, 0 \.\. 99"):
        opened(tmp_path, damaged(HUNDRED, 1, 0, 1, 100), in_memory=True, layout=CIFAR100)


@pytest.mark.parametrize("in_memory", [True, False])
def test_without_classes_any_label_is_taken(tmp_path: Path, in_memory: bool) -> None:
    paths = write(tmp_path, damaged(TEN, 0, 3, 0, 255))
    assert read_delivered(open_cifar(CIFAR10, paths, in_memory=in_memory), [3])["label"].tolist() == [255]


def tar(name: str, mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        info = tarfile.TarInfo(name)
        info.size = 3073
        archive.addfile(info, io.BytesIO(bytes(3073)))
    return buffer.getvalue()


PICKLED = [pickle.dumps({"data": bytes(3073), "labels": [1]}, protocol) for protocol in range(6)]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty: 0 bytes hold no record"),
        (bytes(3072), "its size of 3,072 bytes is no multiple of 3073, a record of CIFAR-10; 3072 bytes are left over"),
        (bytes(20 * 3074), "whole number of 3074: records of CIFAR-100, for source=cifar100"),
        *((content, "the Python version of CIFAR-10, a pickle, which is refused") for content in PICKLED),
        (PICKLED[2][:20], "a pickle, which is refused"),
        (tar("a"), "it is a tar archive; unpack it"),
        (tar("a", "w:gz"), "gzip-compressed, such as a .tar.gz archive is; unpack it"),
        (b"PK\3\4" + bytes(3069), "a zip archive"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_is_no_batch_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    paths = write(tmp_path, TEN[:2])
    Path(paths[1]).write_bytes(content)
    for in_memory in (True, False):
        with pytest.raises(SourceError) as caught:
            open_cifar(CIFAR10, paths, in_memory=in_memory)
        assert str(caught.value).startswith(f"{paths[1]}: ")
        assert says in str(caught.value)


def test_cifar10_records_are_told_from_cifar100s(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"whole number of 3073: records of CIFAR-10, for source=cifar10"):
        opened(tmp_path, TEN[:1], in_memory=True, layout=CIFAR100)


def folder_with(path: Path, *names: str) -> DataFolder:
    path.mkdir(exist_ok=True)
    for name in names:
        (path / name).touch()
    return DataFolder(str(path))


def test_published_names_are_those_of_the_split(tmp_path: Path) -> None:
    five = [f"data_batch_{number}.bin" for number in range(1, 6)]
    folder = folder_with(tmp_path, *five, "test_batch.bin", "train.bin", "test.bin")
    assert cifar_files(CIFAR10, folder, "train") == [f"{tmp_path}/{name}" for name in five]
    assert cifar_files(CIFAR10, folder, "test") == [f"{tmp_path}/test_batch.bin"]
    assert cifar_files(CIFAR100, folder, "train") == [f"{tmp_path}/train.bin"]
    assert cifar_files(CIFAR100, folder, "test") == [f"{tmp_path}/test.bin"]
    assert cifar_files(CIFAR100, DataFolder("s3://bucket/c"), "test") == ["s3://bucket/c/test.bin"]


def test_a_missing_batch_is_named(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, *(f"data_batch_{number}.bin" for number in (1, 2, 4, 5)))
    with pytest.raises(
        SourceError, match=r"data_batch_3\.bin is missing: split train of CIFAR-10 is data_batch_1\.bin"
    ):
        cifar_files(CIFAR10, folder, "train")


def test_an_unpacked_archive_in_the_folder_is_pointed_at(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-bin").mkdir()
    with pytest.raises(SourceError, match=f"set source.path to {tmp_path}/cifar-10-batches-bin/ if"):
        cifar_files(CIFAR10, DataFolder(str(tmp_path)), "test")


def test_the_python_version_is_told_by_its_names(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, *(f"data_batch_{number}" for number in range(1, 6)), "batches.meta")
    with pytest.raises(SourceError, match=r"data_batch_1: it is the Python version .*cifar-10-binary\.tar\.gz"):
        cifar_files(CIFAR10, folder, "train")
    with pytest.raises(SourceError, match=r"cifar-100-binary\.tar\.gz"):
        cifar_files(CIFAR100, folder_with(tmp_path / "hundred", "train", "test", "meta"), "test")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (tar("cifar-10-batches-bin/data_batch_1.bin", "w:gz"), "such as a .tar.gz archive is; unpack it"),
        (tar("cifar-10-batches-bin/data_batch_1.bin"), "it is a tar archive; unpack it"),
        (TEN[0].tobytes(), "is a file; source.path names the folder"),
        (b"", "is a file; source.path names the folder"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_instead_of_the_folder_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "cifar").write_bytes(content)
    with pytest.raises(SourceError) as caught:
        DataFolder(str(tmp_path / "cifar"))
    assert says in str(caught.value)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"{tmp_path}/none does not exist; correct source.path, or download"):
        DataFolder(str(tmp_path / "none"))
