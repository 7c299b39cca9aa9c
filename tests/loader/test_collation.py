"""Ragged samples and collation in a loader: from a list of tensors to a padded batch, resumed and shared out."""

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from flodl_pipe import Loader
from flodl_pipe.cluster.context import RunContext
from flodl_pipe.errors import ConfigError, SourceError, TransformError

LENGTHS = np.random.default_rng(1).integers(1, 30, 57)
ROWS = [torch.arange(n) + 100 * i for i, n in enumerate(LENGTHS.tolist())]


class Sentences:
    """Ids and a label a sample, like a tokenised dataset."""

    def __len__(self):
        return len(ROWS)

    def __getitem__(self, i):
        return {"input_ids": ROWS[i], "label": i % 3}


def unpadded(batch):
    mask = batch["attention_mask"].bool()
    return [ids[m].tolist() for ids, m in zip(batch["input_ids"], mask, strict=True)]


@pytest.mark.parametrize("readers", [0, 1, 3])
def test_padded_batches_hold_the_rows(readers):
    options = {"batch_size": 8, "drop_last": False, "collate": "pad", "readers": readers}
    with Loader(Sentences(), **options) as loader:
        for batch in loader.epoch(1):
            samples = batch.pick_keys.sample.tolist()
            assert unpadded(batch) == [ROWS[i].tolist() for i in samples]
            assert batch["label"].tolist() == [i % 3 for i in samples]
            longest = max(len(ROWS[i]) for i in samples)
            assert batch["input_ids"].shape == (len(samples), -(-longest // 8) * 8)


def test_fence_one_of_padding():
    seqs = [torch.randint(1, 50, (n,)) for n in (5, 2, 7, 3)]
    names, options = ["input_ids"], {"pad_multiple": 1, "labels_from": "input_ids"}
    with Loader(seqs, batch_size=4, shuffle=False, names=names, collate="pad", **options) as loader:
        (batch,) = loader
    assert batch["input_ids"].shape == (4, 7)
    assert batch["attention_mask"].sum(1).tolist() == [5, 2, 7, 3]
    assert (batch["labels"][batch["attention_mask"] == 0] == -100).all()
    assert torch.equal(batch["input_ids"][1, :2], seqs[1])
    assert batch.names == ("input_ids", "attention_mask", "labels")


def test_ragged_batches_are_nested_tensors():
    with Loader(Sentences(), batch_size=8, collate="ragged") as loader:
        for batch in loader:
            assert batch["input_ids"].is_nested
            rows = [row.tolist() for row in batch["input_ids"].unbind()]
            assert rows == [ROWS[i].tolist() for i in batch.pick_keys.sample.tolist()]
            assert batch.size == 8


def test_a_function_of_ones_own_gets_the_samples():
    def lengths(samples):
        return {
            "n": torch.tensor([len(s["input_ids"]) for s in samples]),
            "label": default_collate([s["label"] for s in samples]),
        }

    with Loader(Sentences(), batch_size=8, collate=lengths) as loader:
        for batch in loader:
            assert batch.names == ("n", "label")
            assert batch["n"].tolist() == LENGTHS[batch.pick_keys.sample].tolist()


def test_torchs_own_collate_gives_torchs_batch():
    data = [(torch.full((2,), float(i)), i) for i in range(12)]
    with Loader(data, batch_size=4, shuffle=False, collate=default_collate) as loader:
        for first, (x, y) in zip(range(0, 12, 4), loader, strict=True):
            want = default_collate(data[first : first + 4])
            assert torch.equal(x, want[0])
            assert torch.equal(y, want[1])
            assert (x.dtype, y.dtype) == (want[0].dtype, want[1].dtype)


def test_ragged_rows_under_stack_are_refused_with_the_remedy():
    with pytest.raises(SourceError, match=r"collate") as caught, Loader(Sentences(), batch_size=8) as loader:
        list(loader)
    assert "pad" in str(caught.value)
    assert "input_ids" in str(caught.value)
    with pytest.raises(ConfigError, match=r"pad"):
        Loader(Sentences(), batch_size=8, ragged=["input_ids"])


def test_samples_pass_through_at_their_own_length():
    with Loader(Sentences(), batch_size=None, shuffle=False) as loader:
        for i, batch in enumerate(loader):
            assert batch["input_ids"].tolist() == ROWS[i].tolist()
            assert batch["label"].shape == ()
    assert i == len(ROWS) - 1


def test_bucketing_and_padding_waste_little_and_resume_anywhere():
    options = {
        "batch_size": 8,
        "order": "bucketed",
        "lengths": LENGTHS,
        "pool_batches": 5,
        "collate": "pad",
        "pad_multiple": 1,
    }
    with Loader(Sentences(), **options) as loader:
        whole = [unpadded(batch) for batch in loader.epoch(0)]
        padded = [batch["attention_mask"].float().mean().item() for batch in loader.epoch(0)]
        iterator = iter(loader.epoch(0))
        next(iterator)
        state = loader.state_dict()
    assert np.mean(padded) > 0.8
    with Loader(Sentences(), readers=0, **options) as loader:
        loader.load_state_dict(state)
        assert [unpadded(batch) for batch in loader.epoch(0)] == whole[1:]
    parts = []
    for rank in range(2):
        with Loader(Sentences(), context=RunContext(rank, 2), **options | {"batch_size": 4}) as loader:
            parts.append([unpadded(batch) for batch in loader.epoch(0)])
    assert [a + b for a, b in zip(*parts, strict=True)] == whole


def test_digests_do_not_depend_on_collation_or_readers():
    found = set()
    for collate in ("pad", "ragged"):
        for readers in (0, 2):
            with Loader(Sentences(), batch_size=8, collate=collate, readers=readers, keep_digest=True) as loader:
                list(loader)
                found.add(loader.statistics().digest)
    assert len(found) == 1


def test_a_row_longer_than_the_padded_length_is_never_cut():
    with (
        Loader(Sentences(), batch_size=8, collate="pad", pad_length=16) as loader,
        pytest.raises(TransformError, match="16"),
    ):
        list(loader)


@pytest.mark.parametrize(
    ("collate", "text"),
    [
        (lambda samples: None, "None"),
        (lambda samples: {}, "without fields"),
        (lambda samples: "abc", "str"),
        (3, "function"),
    ],
)
def test_what_is_no_collation_is_refused(collate, text):
    with (
        pytest.raises((TransformError, ConfigError), match=text),
        Loader(Sentences(), batch_size=4, collate=collate) as it,
    ):
        next(iter(it))
