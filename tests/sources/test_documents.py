"""Documents within windows, against a loop over tokens that anyone can check."""

from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.errors import ConfigError
from flodl_pipe.sources.documents import Documents
from flodl_pipe.sources.tokens import TokenShards
from tests.contract.sources import SourceContract, read_delivered
from tests.sources.test_tokens import facts, window, write_shards

EOS = 0
"""Also what inputs are padded with, which must not be taken for an end."""


def naive(run: list[int], seq_len: int, *, eos: int = EOS, mask: bool = True) -> dict[str, list[int]]:
    """Deliver one window of at most ``seq_len + 1`` tokens, token by token."""
    found: dict[str, list[int]] = {"input": [], "target": [], "document": [], "position": []}
    document, position = 0, 0
    for token, target in pairwise(run):
        found["input"].append(token)
        found["target"].append(-100 if mask and token == eos else target)
        found["document"].append(document)
        found["position"].append(position)
        document, position = (document + 1, 0) if token == eos else (document, position + 1)
    if position:  # padding begins another document, unless one has just begun
        document, position = document + 1, 0
    for place in range(seq_len - len(run) + 1):
        for name, value in (("input", 0), ("target", -100), ("document", document), ("position", place)):
            found[name].append(value)
    return found


def deliver(documents: Documents, rows: np.ndarray, lengths: np.ndarray | None = None) -> dict[str, np.ndarray]:
    shape = (*rows.shape[:-1], rows.shape[-1] - 1)
    out = {name: np.full(shape, 77, dtype=np.int64) for name in ("target", "document", "position")}
    out["target"][...] = rows[..., 1:]
    if lengths is not None:
        out["target"][np.arange(shape[-1]) >= lengths[..., np.newaxis] - 1] = -100
    documents.deliver(rows, lengths, out)
    return out


@settings(deadline=None)
@given(data=st.data(), seq_len=st.integers(1, 12), num_rows=st.integers(1, 6), mask=st.booleans(), keep=st.booleans())
def test_documents_equal_a_naive_loop(data: Any, seq_len: int, num_rows: int, mask: bool, keep: bool) -> None:
    tokens = st.lists(st.integers(0, 2), min_size=2 if keep else seq_len + 1, max_size=seq_len + 1)
    runs = data.draw(st.lists(tokens, min_size=num_rows, max_size=num_rows))
    eos = data.draw(st.integers(0, 2))
    rows = np.zeros((num_rows, seq_len + 1), dtype=np.uint8)
    for row, run in zip(rows, runs, strict=True):
        row[: len(run)] = run
    lengths = np.array(list(map(len, runs))) if keep else None
    found = deliver(Documents(eos, mask), rows, lengths)
    for at, run in enumerate(runs):
        wanted = naive(run, seq_len, eos=eos, mask=mask)
        for name, value in found.items():
            assert value[at].tolist() == wanted[name], name


@pytest.mark.parametrize(
    ("run", "target", "document", "position"),
    [
        ([5, 6, 0, 7, 0, 0, 8], [6, 0, -100, 0, -100, -100], [0, 0, 0, 1, 1, 2], [0, 1, 2, 0, 1, 0]),
        ([0, 5, 6], [-100, 6], [0, 1], [0, 0]),
        ([5, 6, 0], [6, 0], [0, 0], [0, 1]),
        ([5, 6, 7], [6, 7], [0, 0], [0, 1]),
        ([0, 0, 0], [-100, -100], [0, 1], [0, 0]),
    ],
    ids=["several", "first", "last", "none", "only"],
)
def test_ends_at_every_place(run: list[int], target: list[int], document: list[int], position: list[int]) -> None:
    found = deliver(Documents(EOS), np.array([run], dtype=np.uint16))
    assert {name: value[0].tolist() for name, value in found.items()} == {
        "target": target,
        "document": document,
        "position": position,
    }


def test_an_end_is_a_target_of_its_own_document_and_the_mask_can_be_left_off() -> None:
    run = np.array([5, 0, 6], dtype=np.int32)
    assert deliver(Documents(EOS), run)["target"].tolist() == [0, -100]
    assert deliver(Documents(EOS, mask_targets=False), run)["target"].tolist() == [0, 6]


class DocumentContract(SourceContract):
    options: ClassVar[dict[str, Any]] = {}
    stride = 16
    files: list[Path]

    def make_source(self, folder: Path) -> TokenShards:
        write_shards(folder / "shards", "uint8")
        self.files = sorted((folder / "shards").iterdir())
        for path in self.files:
            ids = np.fromfile(path, np.uint8)
            (ids % 9).tofile(path)
        path = str(folder / "shards")
        return TokenShards.open(path, seq_len=16, dtype="uint8", documents=Documents(EOS), **self.options)

    def expected(self, source: TokenShards, index: int) -> dict[str, Any]:
        shards = [np.fromfile(path, np.uint8) for path in self.files]
        plain = window(shards, index, 16, self.stride, self.options.get("tail") == "keep")
        count = int((plain["target"] != -100).sum())
        run = [int(plain["input"][0]), *plain["target"][:count].tolist()]
        return {name: np.array(value) for name, value in naive(run, 16).items()}


@pytest.mark.full
class TestDocuments(DocumentContract):
    pass


class TestDocumentsOfKeptTails(DocumentContract):
    options: ClassVar[dict[str, Any]] = {"tail": "keep"}


@pytest.mark.full
class TestDocumentsAtRandomStarts(DocumentContract):
    stride = 1
    options: ClassVar[dict[str, Any]] = {"starts": "random"}


def test_documents_are_told_and_are_part_of_the_identity(tmp_path: Path) -> None:
    write_shards(tmp_path, "uint16", counts=(400,))

    def opened(documents: Documents | None) -> TokenShards:
        return TokenShards.open(str(tmp_path), seq_len=16, dtype="uint16", documents=documents)

    source = opened(Documents(7))
    assert source.delivered.names == ("input", "target", "document", "position")
    assert source.spec == opened(None).spec
    assert facts(source)["documents"] == "end with token 7, targets past it masked"
    assert "documents end with token 7, targets past it masked" in source.fingerprint().summary
    sources = (source, opened(None), opened(Documents(8)), opened(Documents(7, mask_targets=False)))
    assert len({one.fingerprint().digest for one in sources}) == 4
    assert read_delivered(source, [0])["document"].dtype == np.int64


@pytest.mark.parametrize(
    ("eos", "options", "message"),
    [
        (-1, {}, r"must be an id that a uint8 token can have, 0 \.\. 255, got -1"),
        (256, {}, r"0 \.\. 255, got 256"),
        (250, {"vocab_size": 250}, r"must be in the vocabulary, 0 \.\. 249, got 250"),
    ],
)
def test_an_end_that_cannot_occur_is_refused(tmp_path: Path, eos: int, options: dict[str, Any], message: str) -> None:
    write_shards(tmp_path, "uint8")
    with pytest.raises(ConfigError, match=message) as caught:
        TokenShards.open(str(tmp_path), seq_len=16, dtype="uint8", documents=Documents(eos), **options)
    assert caught.value.problems[0].key == "source.documents.eos"
