"""Odd picture files, each with the outcome it must have; published data as it is known.

The files lie in ``shared/cases/odd`` beside the checkout and are listed in ``EXPECT.json``.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flodl_pipe.errors import SourceError
from flodl_pipe.sources.cifar import CIFAR10, cifar_files, open_cifar
from flodl_pipe.sources.data_folder import DataFolder
from flodl_pipe.sources.idx import open_idx, published_idx
from flodl_pipe.sources.labelled_records import LabelledRecords
from tests.contract.sources import read_delivered

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
ODD = SHARED / "cases" / "odd"
KINDS = ("idx", "cifar_bin", "cifar_py")

pytestmark = pytest.mark.skipif(not ODD.is_dir(), reason="shared/cases is not beside the checkout")


def cases() -> list[Any]:
    if not ODD.is_dir():
        return [pytest.param(None, True, id="cases")]
    rows = json.loads((ODD / "EXPECT.json").read_text(encoding="utf-8"))
    return [
        pytest.param(row, in_memory, id=f"{row['file']}{'' if in_memory else ':disk'}")
        for row in rows
        if row["kind"] in KINDS
        for in_memory in ((True,) if row["kind"] == "idx" else (True, False))
    ]


def open_case(row: dict[str, Any], *, in_memory: bool) -> LabelledRecords:
    folder, options = DataFolder(str(ODD / row["file"])), row["opts"]
    if row["kind"] == "idx":
        if row["file"] == "idx/labels_i32_2d":
            names = ("train-images-idx3-ubyte", "qmnist-train-labels-idx2-int")
            return open_idx(*map(folder.join, names), num_classes=None)
        return open_idx(*published_idx(folder, "train"), num_classes=10)
    files = options.get("files")
    paths = cifar_files(CIFAR10, folder, options["split"]) if files is None else [folder.join(name) for name in files]
    return open_cifar(CIFAR10, paths, in_memory=in_memory, num_classes=10)


def read_whole(source: LabelledRecords) -> dict[str, Any]:
    return read_delivered(source, np.arange(len(source)))


def require_values(found: np.ndarray, want: dict[str, Any]) -> None:
    assert found.size == want["n"]
    assert [int(found.flat[0]), int(found.flat[-1]), int(found.sum())] == [want["first"], want["last"], want["sum"]]
    assert hashlib.sha256(found.astype("<i8").tobytes()).hexdigest() == want["sha"]


@pytest.fixture(autouse=True)
def no_canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    yield
    assert list(tmp_path.rglob("*")) == []
    assert [*ROOT.rglob("PWNED_*"), *ODD.rglob("PWNED_*")] == []


@pytest.mark.parametrize(("row", "in_memory"), cases())
def test_an_odd_file_has_the_outcome_it_must_have(row: dict[str, Any], in_memory: bool) -> None:
    # Where two outcomes are allowed, ours: IDX files are read whatever they are called, pickles never.
    is_read = row["outcome"] == "value" or row["file"] in ("idx/gz_without_ext", "idx/labels_i32_2d")
    if is_read and row["kind"] != "cifar_py":
        found, want = read_whole(open_case(row, in_memory=in_memory)), row["want"]
        require_values(found["label"], want["labels"])
        if "images" in want:
            require_values(found["image"], want["images"])
        if "pixel_0_0_rgb" in want:
            assert found["image"][0, :, 0, 0].tolist() == want["pixel_0_0_rgb"]
        return
    with pytest.raises(SourceError) as caught:
        read_whole(open_case(row, in_memory=in_memory))
    text = str(caught.value)
    assert str(ODD / row["file"]) in text
    assert any(says in text for says in row["says"] or ["pickle"]), text
    if row["kind"] == "cifar_py":
        assert "get the binary version (cifar-10-binary.tar.gz" in text


def test_two_dimensional_labels_are_no_classes() -> None:
    folder = DataFolder(str(ODD / "idx" / "labels_i32_2d"))
    names = ("train-images-idx3-ubyte", "qmnist-train-labels-idx2-int")
    with pytest.raises(SourceError, match=r"says int32 with 2 dimensions \(20 x 2\), and source\.num_classes=10"):
        open_idx(*map(folder.join, names), num_classes=10)


def test_the_mnist_test_set_has_its_known_values() -> None:
    images, labels = (
        str(SHARED / "data" / f"mnist_t10k-{name}.gz") for name in ("images-idx3-ubyte", "labels-idx1-ubyte")
    )
    found = read_whole(open_idx(images, labels, num_classes=10))
    assert found["image"].shape == (10_000, 1, 28, 28)
    assert found["label"][:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert int(found["image"][0].sum()) == 18_454


@pytest.mark.parametrize("in_memory", [True, False])
def test_published_cifar_records_have_their_known_values(in_memory: bool) -> None:
    path = str(SHARED / "data" / "cifar10_real_first100.bin")
    found = read_whole(open_cifar(CIFAR10, [path], in_memory=in_memory, num_classes=10))
    assert found["image"].shape == (100, 3, 32, 32)
    assert found["label"][:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert found["image"][0, :, 0, 0].tolist() == [59, 62, 63]
