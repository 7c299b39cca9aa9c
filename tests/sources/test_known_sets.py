"""The registry of downloads against itself, the config, and the real files where they are at hand."""

import gzip
import hashlib
import re
from pathlib import Path
from typing import get_args

import pytest

from flodl_pipe.config.job import KnownSetName
from flodl_pipe.sources.fetched_files import check_file
from flodl_pipe.sources.known_sets import KNOWN_SETS, known_set_of

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
FILES = [file for known in KNOWN_SETS.values() for file in known.files]
IDX = [f"{split}-{part}-ubyte.gz" for split in ("train", "t10k") for part in ("images-idx3", "labels-idx1")]


def shared(name):
    if not (SHARED / name).exists():
        pytest.skip(f"{SHARED / name} is not there")
    return (SHARED / name).read_bytes()


def test_the_config_and_the_registry_name_the_same_sets():
    assert get_args(KnownSetName) == tuple(KNOWN_SETS)


def test_the_files_are_those_the_sources_look_for():
    assert {name: list(known.names()) for name, known in KNOWN_SETS.items()} == {
        "mnist": IDX,
        "fashion_mnist": IDX,
        "cifar10": [*(f"data_batch_{part}.bin" for part in range(1, 6)), "test_batch.bin", "batches.meta.txt"],
        "cifar100": ["train.bin", "test.bin", "fine_label_names.txt", "coarse_label_names.txt"],
        "shakespeare": ["input.txt"],
    }


@pytest.mark.parametrize(
    ("kind", "name"),
    [("mnist", "mnist"), ("cifar10", "cifar10"), ("cifar10_disk", "cifar10"), ("cifar100", "cifar100")],
)
def test_a_kind_leads_to_its_set(kind, name):
    assert known_set_of(kind).name == name
    assert known_set_of("records") is None


def test_every_figure_is_whole_and_says_where_it_is_from():
    digests = [file.sha256 for file in FILES] + [file.content.sha256 for file in FILES if file.content]
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests)
    assert len(set(digests)) == len(digests)
    assert all(file.published.startswith("github.com/") and file.num_bytes > 0 for file in FILES)


def test_every_address_is_a_folder_on_the_web():
    for known in KNOWN_SETS.values():
        assert all(re.fullmatch(r"https?://[\w.-]+(/[\w.~-]+)*/", address) for address in known.addresses)
        assert len(known.files) == 1 or not known.members


def test_tinyshakespeare_has_the_published_size_and_digest():
    content = shared("tinyshakespeare_input.txt")
    (file,) = KNOWN_SETS["shakespeare"].files
    assert (len(content), hashlib.sha256(content).hexdigest()) == (file.num_bytes, file.sha256)


@pytest.mark.parametrize("name", IDX[2:])
def test_the_mnist_test_set_has_the_published_size_and_content(name, tmp_path):
    packed = shared(f"mnist_{name}")
    (file,) = (file for file in KNOWN_SETS["mnist"].files if file.name == name)
    content = gzip.decompress(packed)
    assert len(packed) == file.num_bytes
    assert (len(content), hashlib.sha256(content).hexdigest()) == (file.content.num_bytes, file.content.sha256)
    # This copy was packed on another day than the published one, whose digest therefore is another.
    (tmp_path / name).write_bytes(packed)
    assert check_file(file, tmp_path).how.startswith("kept")


@pytest.mark.parametrize("name", IDX)
def test_the_content_of_mnist_has_the_size_of_its_format(name):
    (file,) = (file for file in KNOWN_SETS["mnist"].files if file.name == name)
    samples = 60_000 if name.startswith("train") else 10_000
    assert file.content.num_bytes == (16 + 784 * samples if "images" in name else 8 + samples)


def test_the_sizes_of_cifar_are_whole_records():
    sizes = {member.name: member.num_bytes for name in ("cifar10", "cifar100") for member in KNOWN_SETS[name].members}
    assert [sizes[f"data_batch_{part}.bin"] for part in range(1, 6)] == [30_730_000] * 5
    assert (sizes["test_batch.bin"], sizes["train.bin"], sizes["test.bin"]) == (30_730_000, 153_700_000, 30_740_000)
