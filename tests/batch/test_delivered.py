"""Batches as a loader delivers them: owned by the loop, whatever it does with them."""

import pickle

import numpy as np
import pytest
import torch
from torch.utils import _pytree

import flodl_pipe
from flodl_pipe.errors import ConfigError
from flodl_pipe.sources.records import Records

NUM_RECORDS = 10
"""Records of 3 bytes: a label and two pixels, all telling the record's number."""


@pytest.fixture
def source(tmp_path):
    rows = np.arange(NUM_RECORDS, dtype=np.uint8)
    (tmp_path / "part.bin").write_bytes(np.stack([rows, rows + 100, rows + 200], axis=1).tobytes())
    from flodl_pipe.config.source_records import RecordsConfig
    from flodl_pipe.sources.build import build_source

    fields = {"label": {"offset": 0, "dtype": "uint8"}, "image": {"offset": 1, "dtype": "uint8", "shape": [2]}}
    config = RecordsConfig(path=str(tmp_path / "part.bin"), record_bytes=3, fields=fields)
    source = build_source(config, str(tmp_path))
    assert isinstance(source, Records)
    return source


@pytest.fixture
def loader(source):
    with flodl_pipe.Loader(source, batch_size=4, shuffle=False, drop_last=False) as loader:
        yield loader


def test_fields_come_in_the_sources_order_and_types(loader):
    batch = next(iter(loader))
    assert batch.names == loader.names == ("label", "image")
    assert repr(batch) == "Batch(label: uint8 (4,), image: uint8 (4, 2))"
    assert batch["image"].tolist() == [[100, 200], [101, 201], [102, 202], [103, 203]]


def test_names_can_be_chosen(source):
    with flodl_pipe.Loader(source, batch_size=4, names=["y", "x"]) as loader:
        assert next(iter(loader)).names == ("y", "x")


def test_a_wrong_number_of_names_is_refused_when_the_loader_is_built(source):
    with pytest.raises(ConfigError, match=r"loader\.names: .*3 names, but the source delivers 2 fields"):
        flodl_pipe.Loader(source, batch_size=4, names=["x", "y", "z"])


def test_keys_tell_which_samples_a_batch_holds(loader):
    for batch in loader:
        assert batch.pick_keys.sample.tolist() == batch["label"].tolist()
        assert batch.size == len(batch["label"])


def test_kept_batches_never_change_and_share_no_memory(source):
    with flodl_pipe.Loader(source, batch_size=2, shuffle=False, prefetch=1) as loader:
        kept = [batch for epoch in range(20) for batch in loader.epoch(epoch)]
        for place, batch in enumerate(kept):
            assert batch["label"].tolist() == [2 * (place % 5), 2 * (place % 5) + 1]
        kept[0]["image"].zero_()
        assert kept[0]["label"].tolist() == [0, 1]
        assert kept[5]["image"].tolist() == [[100, 200], [101, 201]]
        storages = {tensor.data_ptr() for batch in kept for tensor in batch}
        assert len(storages) == 2 * len(kept)


def test_batches_outlive_their_loader(source):
    loader = flodl_pipe.Loader(source, batch_size=4, shuffle=False)
    batch = next(iter(loader))
    loader.close()
    assert batch["label"].tolist() == [0, 1, 2, 3]


def test_the_cursor_resumes_after_the_batch_it_came_with(loader, source):
    labels = [(batch.cursor, batch["label"].tolist()) for batch in loader]
    with flodl_pipe.Loader(source, batch_size=4, shuffle=False, drop_last=False) as again:
        again.load_state_dict(labels[0][0])
        assert [batch["label"].tolist() for batch in again] == [rows for _, rows in labels[1:]]


def test_a_delivered_batch_survives_pickling_and_keeps_its_cursor(loader):
    batch = next(iter(loader))
    again = pickle.loads(pickle.dumps(batch))
    assert again.cursor == batch.cursor
    assert torch.equal(again["image"], batch["image"])
    assert again.pick_keys.sample.tolist() == [0, 1, 2, 3]


def test_a_mapped_batch_keeps_cursor_and_keys(loader):
    batch = next(iter(loader))
    moved = _pytree.tree_map(lambda tensor: tensor.float() / 255, batch)
    assert moved["image"].dtype == torch.float32
    assert moved.cursor == batch.cursor


def test_padding_rows_are_marked_and_weigh_nothing(source):
    with flodl_pipe.Loader(source, batch_size=4, shuffle=False, drop_last="pad") as loader:
        *full, last = list(loader)
    assert [batch.valid for batch in full] == [None, None]
    assert last.valid.tolist() == [True, True, False, False]
    assert last["label"].tolist() == [8, 9, 0, 1]
