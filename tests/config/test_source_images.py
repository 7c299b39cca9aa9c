"""The keys of the kinds with pictures, and what they build."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from flodl_pipe.config.source_images import (
    Cifar10Config,
    Cifar10DiskConfig,
    Cifar100Config,
    FashionMnistConfig,
    MnistConfig,
)
from flodl_pipe.errors import SourceError
from flodl_pipe.sources.build_images import build_cifar, build_idx
from tests.contract.sources import read_delivered
from tests.sources.test_cifar import HUNDRED, TEN
from tests.sources.test_idx_format import idx

IMAGES = np.arange(5 * 28 * 28, dtype=np.uint8).reshape(5, 28, 28)


def write_idx(folder: Path, images: str, labels: str, label: int = 3) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in ((images, IMAGES), (labels, np.full(5, label, np.uint8))):
        (folder / name).write_bytes(gzip.compress(idx(array)) if name.endswith(".gz") else idx(array))


def labels(source: Any) -> list[int]:
    return read_delivered(source, np.arange(len(source)))["label"].tolist()


@pytest.mark.parametrize(
    ("model", "fields", "num_classes"),
    [
        (MnistConfig, ("image", "label"), 10),
        (FashionMnistConfig, ("image", "label"), 10),
        (Cifar10Config, ("image", "label"), 10),
        (Cifar10DiskConfig, ("image", "label"), 10),
        (Cifar100Config, ("image", "label", "coarse_label"), 100),
    ],
)
def test_defaults_and_fields(model: Any, fields: tuple[str, ...], num_classes: int) -> None:
    config = model()
    assert (config.path, config.if_missing, config.split, config.files) == (None, "error", "train", None)
    assert (config.field_names(), config.num_classes) == (fields, num_classes)
    assert model.model_fields["kind"].default == config.kind


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (MnistConfig, {"split": "valid"}),
        (MnistConfig, {"files": {"images": "a"}}),
        (MnistConfig, {"files": {"images": "a", "labels": " "}}),
        (MnistConfig, {"files": ["a", "b"]}),
        (MnistConfig, {"num_classes": 0}),
        (MnistConfig, {"kind": "fashion_mnist"}),
        (Cifar10Config, {"files": []}),
        (Cifar10Config, {"files": ["a", ""]}),
        (Cifar10Config, {"files": "a.bin"}),
        (Cifar10Config, {"path": ["a", "b"]}),
    ],
)
def test_what_is_no_config_is_refused(model: Any, values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(values, strict=True)


def test_a_path_is_the_folder_of_the_published_files(tmp_path: Path) -> None:
    write_idx(tmp_path, "train-images-idx3-ubyte", "train-labels-idx1-ubyte.gz", 1)
    write_idx(tmp_path, "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte", 2)
    path = str(tmp_path)
    assert labels(build_idx(MnistConfig(path=path), "/nowhere")) == [1] * 5
    assert labels(build_idx(FashionMnistConfig(path=path, split="test"), "/nowhere")) == [2] * 5


@pytest.mark.parametrize("model", [MnistConfig, FashionMnistConfig])
def test_without_a_path_the_data_folder_is_used(tmp_path: Path, model: Any) -> None:
    write_idx(tmp_path / model().kind, "train-images-idx3-ubyte", "train-labels-idx1-ubyte", 7)
    source = build_idx(model(if_missing="sample"), str(tmp_path))
    assert labels(source) == [7] * 5
    assert source.fingerprint().summary.startswith(f"{model().kind}: 5 samples")


@pytest.mark.parametrize("model", [MnistConfig, Cifar10Config, Cifar10DiskConfig])
def test_without_data_and_sample_it_is_an_error(tmp_path: Path, model: Any) -> None:
    build = build_idx if model is MnistConfig else build_cifar
    with pytest.raises(SourceError, match=r"source\.path is not set and .* does not exist"):
        build(model(), str(tmp_path))


def test_disk_and_memory_look_in_one_folder(tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    TEN[0].tofile(tmp_path / "cifar10" / "test_batch.bin")
    sources = [build_cifar(model(split="test"), str(tmp_path)) for model in (Cifar10Config, Cifar10DiskConfig)]
    assert sources[0].fingerprint() == sources[1].fingerprint()
    assert (sources[0].held_bytes, sources[1].held_bytes) == (20 * 3073, 0)


def test_files_of_other_names_are_found_in_the_path_or_by_themselves(tmp_path: Path) -> None:
    write_idx(tmp_path / "a", "pictures", "classes", 9)
    (tmp_path / "mnist").mkdir()
    write_idx(tmp_path / "mnist" / "deep", "pictures", "classes", 8)
    in_path = {"images": "pictures", "labels": "classes"}
    by_itself = {name: f"{tmp_path}/a/{file}" for name, file in in_path.items()}
    deep = {name: f"deep/{file}" for name, file in in_path.items()}
    assert labels(build_idx(MnistConfig(path=str(tmp_path / "a"), files=in_path), "/nowhere")) == [9] * 5
    assert labels(build_idx(MnistConfig(files=by_itself), "/nowhere")) == [9] * 5
    assert labels(build_idx(MnistConfig(files=deep), str(tmp_path))) == [8] * 5


def test_batches_of_other_names_are_read_in_order(tmp_path: Path) -> None:
    for name, records in (("b.bin", TEN[0]), ("a.bin", TEN[2])):
        records.tofile(tmp_path / name)
    for model in (Cifar10Config, Cifar10DiskConfig):
        source = build_cifar(model(path=str(tmp_path), files=["b.bin", "a.bin"]), "/nowhere")
        assert labels(source) == [*TEN[0][:, 0].tolist(), *TEN[2][:, 0].tolist()]
    HUNDRED[0].tofile(tmp_path / "train.bin")
    source = build_cifar(Cifar100Config(path=str(tmp_path)), "/nowhere")
    assert labels(source) == HUNDRED[0][:, 1].tolist()


def test_a_sample_never_stands_in_for_files_that_are_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="does not exist"):
        build_cifar(Cifar10Config(files=["a.bin"], if_missing="sample"), str(tmp_path))
    (tmp_path / "cifar10").mkdir()
    with pytest.raises(SourceError, match=r"cifar10: a\.bin is missing: source\.files names them; it is empty"):
        build_cifar(Cifar10Config(files=["a.bin"], if_missing="sample"), str(tmp_path))
    with pytest.raises(SourceError, match=r"/none does not exist"):
        build_cifar(Cifar10Config(path=str(tmp_path / "none"), if_missing="sample"), str(tmp_path))


def test_the_number_of_classes_reaches_the_source(tmp_path: Path) -> None:
    write_idx(tmp_path, "train-images-idx3-ubyte", "train-labels-idx1-ubyte", 12)
    with pytest.raises(SourceError, match="label 12 of sample 0"):
        build_idx(MnistConfig(path=str(tmp_path)), "/nowhere")
    for num_classes in (13, None):
        assert labels(build_idx(MnistConfig(path=str(tmp_path), num_classes=num_classes), "/nowhere")) == [12] * 5
    records = TEN[0].copy()
    records[:, 0] = 12
    records.tofile(tmp_path / "test_batch.bin")
    with pytest.raises(SourceError, match="record 0: label 12"):
        build_cifar(Cifar10Config(path=str(tmp_path), split="test"), "/nowhere")
    with pytest.raises(SourceError, match="record 0: label 12"):
        labels(build_cifar(Cifar10DiskConfig(path=str(tmp_path), split="test"), "/nowhere"))
    assert len(build_cifar(Cifar10Config(path=str(tmp_path), split="test", num_classes=13), "/nowhere")) == 20
