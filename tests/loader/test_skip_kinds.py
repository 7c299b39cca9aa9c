"""Which bundled sources skip a bad sample, and which have read it when they are opened: the table of docs/faults.md."""

import numpy as np
import pytest

import flodl_pipe
from flodl_pipe.errors import SourceError

WORDS = ("source.on_error=skip", "loader.batch_size=4", "sampling.shuffle=false")
BAD = 7


def skipped(*words):
    with flodl_pipe.load(*words, *WORDS) as loader:
        for _ in loader:
            pass
        return loader.skipped


@pytest.fixture
def pictures(tmp_path):
    """CIFAR-10's files, one label of which is none."""
    records = np.zeros((8, 3073), np.uint8)
    records[:, 0] = np.arange(8)
    for number in range(1, 6):
        records[BAD, 0] = 99 if number == 1 else 0
        records.tofile(tmp_path / f"data_batch_{number}.bin")
    records.tofile(tmp_path / "test_batch.bin")
    return f"source.path={tmp_path}"


def test_pictures_on_disk_are_skipped(pictures):
    ((sample, reason),) = skipped("cifar10_disk", pictures)
    assert sample == BAD
    assert "label 99 is no class" in reason


def test_pictures_in_memory_were_all_read_when_they_are_opened(pictures):
    with pytest.raises(SourceError, match="record 7: label 99 is no class"):
        skipped("cifar10", pictures)


def test_images_of_idx_files_were_all_read_when_they_are_opened(tmp_path):
    labels = np.zeros(8, np.uint8)
    labels[BAD] = 99
    for name, magic, dims, values in (
        ("train-images-idx3-ubyte", 2051, [8, 28, 28], np.zeros(8 * 784, np.uint8)),
        ("train-labels-idx1-ubyte", 2049, [8], labels),
    ):
        (tmp_path / name).write_bytes(np.array([magic, *dims], ">u4").tobytes() + values.tobytes())
    with pytest.raises(SourceError, match="label 99 of sample 7 is no class"):
        skipped("mnist", f"source.path={tmp_path}")


def test_windows_with_ids_outside_the_vocabulary_are_skipped(tmp_path):
    ids = np.arange(90, dtype=np.uint16) % 50
    ids[BAD * 8 + 4] = 60000
    ids.tofile(tmp_path / "ids.bin")
    words = ("source=token_shards", f"source.path={tmp_path}/ids.bin", "source.dtype=uint16", "source.seq_len=8")
    ((sample, reason),) = skipped(*words, "source.vocab_size=50")
    assert "token id 60000 is outside the vocabulary" in reason
    assert sample == BAD
