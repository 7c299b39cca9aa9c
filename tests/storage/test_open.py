"""Addresses that can be opened, and those that cannot."""

import sys
from pathlib import Path

import numpy as np
import pytest

from flodl_pipe.errors import SourceError
from flodl_pipe.storage.open import open_blobs


def test_local_paths_and_file_addresses_are_opened_in_order(tmp_path: Path) -> None:
    (tmp_path / "a b").write_bytes(b"first")
    (tmp_path / "c").write_bytes(b"other!")
    blobs = open_blobs([f"file://{tmp_path}/a%20b", str(tmp_path / "c")])
    assert list(blobs.names) == [str(tmp_path / "a b"), str(tmp_path / "c")]
    assert blobs.sizes.tolist() == [5, 6]
    out = np.empty(3, dtype=np.uint8)
    blobs.read_range(1, 2, out)
    assert out.tobytes() == b"her"


def test_local_and_remote_places_are_not_mixed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    with pytest.raises(SourceError, match="give local places only, or remote ones only"):
        open_blobs([str(tmp_path / "a"), "s3://bucket/key"])


@pytest.mark.parametrize("address", ["s3://b/k", "gs://b/k", "az://b/k", "http://h/k", "https://h/k"])
def test_remote_addresses_without_the_extra_are_an_error_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(SourceError, match=rf"{address}.*pip install 'flodl-pipe\[remote\]'"):
        open_blobs([address])
