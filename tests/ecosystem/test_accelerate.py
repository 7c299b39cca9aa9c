"""Accelerate with a Loader: it is passed through, saved with the rest, and resumed at its batch.

White box: the state of a process, which is Accelerate's, is reset as its own tests do it.
"""

import json

import pytest
import torch

from tests.ecosystem.data import BATCH, STEPS, new_loader, plain, run_section

accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed: the `ecosystem` extra")


@pytest.fixture
def accelerator():
    """An accelerator of its own for each test: Accelerate keeps one state for the process."""

    def new(**keywords):
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerate.state.GradientState._reset_state()
        return accelerate.Accelerator(cpu=True, **keywords)

    yield new
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def prepared(accelerator, loader):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer, ours = accelerator.prepare(model, optimizer, loader)
    accelerator.register_for_checkpointing(ours)
    return model, optimizer, ours


def train(accelerator, model, optimizer, batches, *, stop=None):
    seen = []
    for batch in batches:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch["x"]).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        seen.append(batch["ids"].tolist())
        if len(seen) == stop:
            break
    return seen


def test_prepare_gives_the_loader_back_as_it_is(accelerator):
    with new_loader() as loader:
        accelerator = accelerator()
        model, optimizer, ours = prepared(accelerator, loader)
        assert ours is loader
        assert [train(accelerator, model, optimizer, ours) for _ in range(2)] == [plain(2)[:STEPS], plain(2)[STEPS:]]


@pytest.mark.parametrize("step", [1, 6, STEPS, STEPS + 2])
def test_the_loader_is_saved_and_loaded_with_the_rest(accelerator, tmp_path, step):
    whole = plain(3)
    with new_loader() as loader:
        first = accelerator()
        model, optimizer, ours = prepared(first, loader)
        seen = []
        while len(seen) < step:
            seen += train(first, model, optimizer, ours, stop=step - len(seen))
        first.save_state(tmp_path / "state")
        weight = model.weight.detach().clone()
    with new_loader(readers=1) as loader:
        second = accelerator()
        model, optimizer, ours = prepared(second, loader)
        second.load_state(tmp_path / "state")
        assert torch.equal(model.weight, weight)
        while len(seen) < len(whole):
            seen += train(second, model, optimizer, ours)
    assert seen == whole


def test_a_batch_is_sent_to_a_device_with_all_it_knows():
    with new_loader() as loader:
        batch = next(iter(loader))
    moved = accelerate.utils.send_to_device(batch, torch.device("cpu"), non_blocking=True)
    assert type(moved) is type(batch)
    assert moved.cursor == batch.cursor
    assert torch.equal(moved["x"], batch["x"])


def ahead(batches, num_ahead):
    """Give batches only when ``num_ahead`` more were taken, as loops that look for the end of an epoch do."""
    waiting = []
    for batch in batches:
        waiting.append(batch)
        if len(waiting) > num_ahead:
            yield waiting.pop(0)
    yield from waiting


@pytest.mark.parametrize("num_ahead", [1, 3])
def test_the_cursor_of_a_batch_is_exact_in_loops_that_look_ahead(accelerator, num_ahead):
    accelerator = accelerator()
    with new_loader() as loader:
        model, optimizer, ours = prepared(accelerator, loader)
        seen = []
        for batch in ahead(ours, num_ahead):
            seen += train(accelerator, model, optimizer, [batch])
            if len(seen) == 4:
                break
        state = json.loads(json.dumps(batch.cursor))
        assert state["position"] == 4 * BATCH
        assert loader.state_dict()["position"] == (4 + num_ahead) * BATCH
    with new_loader() as loader:
        loader.load_state_dict(state)
        resumed = [batch["ids"].tolist() for batch in ahead(loader, num_ahead)]
    assert seen + resumed == plain(1)


def test_accumulation_goes_on_over_the_end_of_an_epoch(accelerator):
    # The end of an epoch is known to Accelerate only of loaders that it has wrapped.
    accelerator = accelerator(gradient_accumulation_steps=4)
    stepped = []
    with new_loader() as loader:
        model, _, ours = prepared(accelerator, loader)
        for epoch in range(2):
            for batch in ours.epoch(epoch):
                with accelerator.accumulate(model):
                    accelerator.backward(model(batch["x"]).square().mean())
                    stepped.append(accelerator.sync_gradients)
    assert [place + 1 for place, did in enumerate(stepped) if did] == [4, 8, 12, 16, 20]


def test_skipping_by_count_is_refused_aloud(accelerator):
    # It rebuilds torch DataLoaders from their samplers; a loader of ours is moved by load_state_dict.
    with new_loader() as loader, pytest.raises(AttributeError, match="sampler"):
        accelerator().skip_first_batches(loader, 3)


def test_the_page_about_frameworks_runs(accelerator):
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    names = run_section("Accelerate")
    names["loader"].close()
