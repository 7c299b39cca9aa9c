"""Addresses that can be opened, and those that cannot yet."""

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


@pytest.mark.parametrize("address", ["s3://b/k", "gs://b/k", "az://b/k", "http://h/k", "https://h/k"])
def test_remote_addresses_are_refused_with_the_remedy(address: str) -> None:
    with pytest.raises(SourceError, match=rf"{address}.*not served yet; copy the data"):
        open_blobs([address])
