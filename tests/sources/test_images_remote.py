"""Pictures over HTTP: the same samples as from local files, in few requests."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flodl_pipe.config.source_images import Cifar10Config, Cifar10DiskConfig, MnistConfig
from flodl_pipe.errors import SourceError
from flodl_pipe.sources.build_images import build_cifar, build_idx
from flodl_pipe.sources.labelled_records import LabelledRecords
from flodl_pipe.sources.sample_images import sample_images
from tests.contract.sources import read_delivered, require_equal
from tests.storage.servers import nginx, requests_of


@pytest.fixture
def site(tmp_path: Path, monkeypatch: Any) -> Iterator[tuple[str, Path]]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with nginx(sample_images("mnist").parent, tmp_path / "server") as address:
        yield address, tmp_path / "server"


def build(model: Any, path: str) -> LabelledRecords:
    config = model(path=path, split="test")
    return build_idx(config, "/nowhere") if model is MnistConfig else build_cifar(config, "/nowhere")


@pytest.mark.parametrize("model", [MnistConfig, Cifar10Config, Cifar10DiskConfig])
def test_remote_pictures_are_the_local_ones(site: tuple[str, Path], model: Any) -> None:
    kind = "mnist" if model is MnistConfig else "cifar10"
    folder, address = sample_images(kind), site[0]
    near, far = build(model, str(folder)), build(model, f"{address}/{folder.name}/")
    assert far.fingerprint() == near.fingerprint()
    picks = np.random.default_rng(0).permutation(len(near))[:200]
    require_equal(read_delivered(far, picks), read_delivered(near, picks))
    far.check_unchanged()
    require_equal(read_delivered(pickle.loads(pickle.dumps(far)), picks), read_delivered(near, picks))
    assert len(requests_of(site[1])) < 60


@pytest.mark.parametrize("model", [MnistConfig, Cifar10Config])
def test_a_file_that_is_not_there_is_named_by_its_address(site: tuple[str, Path], model: Any) -> None:
    name = "t10k-images-idx3-ubyte.gz" if model is MnistConfig else "test_batch.bin"
    with pytest.raises(SourceError, match=f"{site[0]}/none/{name}"):
        build(model, f"{site[0]}/none")
