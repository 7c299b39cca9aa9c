"""A batch belongs to the loop: kept, changed, saved, trained on or sent away, it is nobody else's."""

import io
import itertools
import os
import threading

import numpy as np
import pytest
import torch

from flodl_pipe.loader.loader import Loader
from tests.loader.inside import slots_of
from tests.loader.sources import Numbers, values
from tests.loader.waiting import joined


@pytest.fixture(params=[{"readers": 0}, {"readers": 1, "prefetch": 3}, {"readers": 2, "mode": "resident"}])
def loader(request):
    with Loader(Numbers(400), batch_size=4, **request.param) as loader:
        yield loader


def is_right(batch):
    expected = values(batch.pick_keys.sample, 3).astype(np.float32)
    return batch["id"].tolist() == batch.pick_keys.sample.tolist() and np.array_equal(batch["values"].numpy(), expected)


def test_every_batch_of_an_epoch_can_be_kept(loader):
    kept = list(loader)
    more = list(loader)
    assert len(kept) == len(more) == 100
    assert all(map(is_right, kept + more))
    pointers = [tensor.untyped_storage().data_ptr() for batch in kept + more for tensor in batch]
    assert len(set(pointers)) == len(pointers)


def test_no_two_tensors_share_a_byte(loader):
    spans = sorted(
        (tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes())
        for batch in list(loader)
        for tensor in batch
    )
    assert all(start + size <= after for (start, size), (after, _) in itertools.pairwise(spans))


def test_a_tensor_has_no_more_storage_than_its_own_rows(loader):
    for tensor in next(iter(loader)):
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        assert tensor.is_contiguous()


def test_changing_a_batch_changes_nothing_else(loader):
    kept = []
    for batch in loader:
        for tensor in batch:
            tensor.zero_()
        kept.append(batch)
    assert all(is_right(batch) for batch in loader)
    assert all(not tensor.any() for batch in kept for tensor in batch)


def test_a_view_an_iterator_or_a_capsule_keeps_the_memory(loader):
    views, arrays, capsules = [], [], []
    for batch in loader:
        views.append((batch.pick_keys.sample, batch["id"][1:]))
        arrays.append((batch.pick_keys.sample, batch["id"].numpy()))
        capsules.append((batch.pick_keys.sample, np.from_dlpack(batch["id"])))
    for _ in loader:
        pass
    assert all(view.tolist() == sample[1:].tolist() for sample, view in views)
    assert all(array.tolist() == sample.tolist() for sample, array in arrays + capsules)


def test_autograd_keeps_what_it_needs(loader):
    weight = torch.ones(3, requires_grad=True)
    expected = torch.zeros(3)
    losses = []
    for batch in loader:
        losses.append((batch["values"] * weight).sum())
        expected += batch["values"].sum(0)
    for _ in loader:
        pass
    torch.stack(losses).sum().backward()
    assert torch.equal(weight.grad, expected)


def test_batches_made_under_inference_mode_can_be_trained_on(loader):
    weight = torch.ones(3, requires_grad=True)
    iterator = iter(loader)
    with torch.inference_mode():
        batch = next(iterator)
    assert not batch["values"].is_inference()
    (batch["values"] * weight).sum().backward()


def test_in_place_changes_of_one_field_leave_the_others_graph_alone(loader):
    batch = next(iter(loader))
    weight = torch.ones(3, requires_grad=True)
    product = batch["values"] * weight
    batch["id"].add_(1)
    product.sum().backward()


def test_a_saved_tensor_is_as_large_as_itself(loader):
    file = io.BytesIO()
    torch.save(next(iter(loader))["id"], file)
    assert file.tell() < 4096


def test_memory_comes_back_when_batches_go(loader):
    pool = slots_of(loader)
    kept = []
    while len(kept) <= pool.num_slots:
        kept += list(loader)
    grown = pool.num_mapped
    assert grown > pool.num_slots
    del kept
    for _ in loader:
        pass
    pool.take(0)
    assert pool.num_mapped == pool.num_slots < grown


def test_a_batch_is_dropped_in_any_thread(loader):
    for batch in loader:
        thread = threading.Thread(target=lambda kept: kept["id"].sum(), args=(batch,))
        thread.start()
        joined(thread)
    assert all(map(is_right, loader))


def test_a_forked_child_has_its_own_copy_and_the_parent_goes_on(loader):
    iterator = iter(loader)
    batch = next(iterator)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - the child's coverage is not collected
        try:
            ok = is_right(batch)
            batch["id"].fill_(-1)
            os.write(writer, b"1" if ok else b"0")
        finally:
            os._exit(0)
    os.close(writer)
    assert os.read(reader, 1) == b"1"
    os.close(reader)
    os.waitpid(child, 0)
    assert is_right(batch)
    assert all(map(is_right, iterator))
