"""The synthetic sets: true formats, the same bytes everywhere, and never taken for the real ones."""

import gzip
import hashlib
import json

import numpy as np
import pytest

from flodl_pipe.config.source_images import (
    Cifar10Config,
    Cifar10DiskConfig,
    Cifar100Config,
    CifarConfig,
    FashionMnistConfig,
    IdxConfig,
    MnistConfig,
)
from flodl_pipe.sources.build_images import build_cifar, build_idx
from flodl_pipe.sources.labelled_records import LabelledRecords
from flodl_pipe.sources.sample_images import SAMPLE_IMAGES, sample_images
from tests.contract.sources import read_delivered

# What the pictures look like is free to change, but not in silence: raise _VERSION in sample_images with it, so that
# folders made before are not taken for the new ones.
GOLDEN = {
    "mnist": "b85fb4ab886117dbbee2b7efa4e88d02",
    "fashion_mnist": "6b53a48a1a10c318f546f14c798ea1d9",
    "cifar10": "58168d6c0d511ba113b179954c9fc124",
    "cifar100": "c3420ab209130ccdf15a43fa27fba105",
}
CONFIGS = [MnistConfig, FashionMnistConfig, Cifar10Config, Cifar10DiskConfig, Cifar100Config]


def build(model: type[IdxConfig | CifarConfig], **options: object) -> LabelledRecords:
    config = model.model_validate({"if_missing": "sample", **options})
    return build_idx(config, "/nowhere") if isinstance(config, IdxConfig) else build_cifar(config, "/nowhere")


@pytest.mark.parametrize("kind", SAMPLE_IMAGES)
def test_the_bytes_are_the_same_on_every_machine(kind: str) -> None:
    digest = hashlib.blake2b(digest_size=16)
    files = sorted(path for path in sample_images(kind).iterdir() if path.name != "manifest.json")
    assert len(files) == {"cifar10": 6, "cifar100": 2}.get(kind, 4)
    for path in files:
        digest.update(path.name.encode() + path.read_bytes())
    assert digest.hexdigest() == GOLDEN[kind]


@pytest.mark.parametrize("kind", SAMPLE_IMAGES)
def test_folder_manifest_and_plan_say_that_it_is_synthetic(kind: str) -> None:
    folder = sample_images(kind)
    assert folder.name == f"synthetic_{kind}-1"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["synthetic"] is True
    assert "synthetic" in manifest["what"]
    model = next(model for model in CONFIGS if model.model_fields["kind"].default == kind)
    assert build(model).facts()[0].value.startswith("synthetic ")


@pytest.mark.parametrize("model", CONFIGS)
def test_a_sample_is_small_and_read_whole(model: type[IdxConfig | CifarConfig]) -> None:
    train, test = build(model), build(model, split="test")
    assert (len(train), len(test)) == ((2000, 500) if issubclass(model, CifarConfig) else (6000, 1000))
    assert train.fingerprint() != test.fingerprint()
    found = read_delivered(train, np.arange(len(train)))
    num_classes = 100 if model is Cifar100Config else 10
    assert np.unique(found["label"]).tolist() == list(range(num_classes))
    if model is Cifar100Config:
        np.testing.assert_array_equal(found["coarse_label"], found["label"] // 5)


def test_memory_and_disk_share_one_sample() -> None:
    assert build(Cifar10Config).fingerprint(full=True) == build(Cifar10DiskConfig).fingerprint(full=True)


def test_the_packed_files_are_what_any_gzip_reader_reads() -> None:
    folder = sample_images("mnist")
    content = gzip.decompress((folder / "t10k-images-idx3-ubyte.gz").read_bytes())
    images = np.frombuffer(content, np.uint8, offset=16).reshape(1000, 1, 28, 28)
    np.testing.assert_array_equal(images, read_delivered(build(MnistConfig, split="test"), np.arange(1000))["image"])


@pytest.mark.parametrize(("model", "least"), [(MnistConfig, 0.8), (FashionMnistConfig, 0.8), (Cifar10Config, 0.3)])
def test_a_class_looks_like_itself(model: type[IdxConfig | CifarConfig], least: float) -> None:
    """The nearest class mean names most test pictures: labels and pictures belong together."""
    sets = [read_delivered(source, np.arange(len(source))) for source in (build(model), build(model, split="test"))]
    train, test = (values["image"].astype(np.float32).max(axis=1).reshape(len(values["image"]), -1) for values in sets)
    means = np.stack([train[sets[0]["label"] == label].mean(axis=0) for label in range(10)])
    apart = ((test[:, np.newaxis] - means) ** 2).sum(axis=2)
    assert (apart.argmin(axis=1) == sets[1]["label"]).mean() > least


def test_no_two_pictures_are_the_same() -> None:
    images = read_delivered(build(MnistConfig), np.arange(6000))["image"].reshape(6000, -1)
    assert len(np.unique(images, axis=0)) == 6000
