"""Lightning's Trainer with a Loader: every epoch is whole, and a killed run goes on after its checkpoint's batch."""

import contextlib

import pytest
import torch

from flodl_pipe import Loader
from flodl_pipe.errors import ResumeError
from tests.ecosystem.data import BATCH, STEPS, dataset, new_loader, plain, run_section

pl = pytest.importorskip("pytorch_lightning", reason="pytorch_lightning is not installed: the `ecosystem` extra")

pytestmark = pytest.mark.full
pytestmark = [
    pytestmark,
    # Lightning asks torch's pytrees in a way that torch calls out of date.
    pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated"),
    # Advice about checkpoints: the tests resume without a ModelCheckpoint, or with one in the same folder.
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]


class Killed(Exception):
    pass


class Module(pl.LightningModule):
    """Writes down the ids of what it trains on; dies before the step ``die_at``, counted over the run."""

    def __init__(self, die_at=None):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.die_at = die_at
        self.seen, self.cursor = [], None

    def training_step(self, batch, batch_idx):
        if len(self.seen) == self.die_at:
            raise Killed
        self.seen.append(batch["ids"].tolist())
        self.cursor = batch.cursor
        return self.layer(batch["x"]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class KeepsCursor(Module):
    """Saves the cursor of the batch that it trained on, for loaders that Lightning reads ahead of."""

    def on_save_checkpoint(self, checkpoint):
        checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"] = [self.cursor]


def trainer(*, callbacks=(), **keywords):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return pl.Trainer(**quiet, callbacks=list(callbacks), enable_checkpointing=bool(callbacks), **keywords)


def saver(every, folder):
    return pl.callbacks.ModelCheckpoint(folder, filename="{step}", every_n_train_steps=every, save_top_k=-1)


def fit(module, loader, *, checkpoint=None, **keywords):
    """Train until the end or the module's death; return what it was trained on."""
    with contextlib.suppress(Killed):
        trainer(**keywords).fit(module, loader, ckpt_path=checkpoint)
    return module.seen


def test_every_epoch_is_whole_and_another_one(caplog):
    with new_loader() as loader:
        seen = fit(Module(), loader, max_epochs=3)
        assert seen == plain(3)
        assert loader.state_dict()["epoch"] == 2
    assert seen[:STEPS] != seen[STEPS : 2 * STEPS]
    assert "second iterator" not in caplog.text


def test_the_loader_is_taken_as_it_is():
    with new_loader() as loader:
        run = trainer(max_steps=2)
        run.fit(Module(), loader)
        assert run.train_dataloader is loader
        assert run.num_training_batches == STEPS


@pytest.mark.parametrize("step", [1, 7, STEPS - 1, STEPS, STEPS + 1, 2 * STEPS + 3])
def test_a_killed_run_goes_on_with_the_batch_after_its_checkpoint(tmp_path, step):
    with new_loader() as loader:
        died = fit(Module(die_at=step + 2), loader, max_epochs=3, callbacks=[saver(step, tmp_path)])
    assert len(died) == step + 2
    with new_loader(readers=1) as loader:
        resumed = fit(Module(), loader, max_epochs=3, checkpoint=tmp_path / f"step={step}.ckpt")
    assert died[:step] + resumed == plain(3)


def test_a_run_may_die_again_and_again(tmp_path):
    seen, checkpoint = [], None
    for stop in (3, 9, 16, 24):
        with new_loader() as loader:
            module = Module(die_at=stop + 1 - len(seen))
            part = fit(module, loader, max_epochs=3, checkpoint=checkpoint, callbacks=[saver(stop, tmp_path)])
        seen += part[: stop - len(seen)]
        checkpoint = tmp_path / f"step={stop}.ckpt"
    with new_loader() as loader:
        seen += fit(Module(), loader, max_epochs=3, checkpoint=checkpoint)
    assert seen == plain(3)


def test_the_state_in_the_checkpoint_is_the_cursor_of_the_batch_that_was_trained_on(tmp_path):
    module = Module(die_at=5)
    with new_loader() as loader:
        fit(module, loader, max_epochs=1, callbacks=[saver(5, tmp_path)])
    saved = torch.load(tmp_path / "step=5.ckpt", weights_only=True)
    (state,) = saved["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    assert state == module.cursor
    assert (state["epoch"], state["position"]) == (0, 5 * BATCH)


def test_a_stream_of_unknown_length_needs_the_cursor_of_its_batch(tmp_path):
    # Without a length Lightning takes one batch ahead, and its own checkpoint is ahead by as much.
    ids = list(map(torch.tensor, range(40)))
    samples = [({"ids": i, "x": torch.stack([i.sin(), i.cos()])}) for i in ids]

    def stream():
        return Loader(Stream(samples), batch_size=BATCH)

    with stream() as loader:
        whole = fit(Module(), loader, max_epochs=2)
    assert sorted(sum(whole[:10], [])) == sorted(sum(whole[10:], [])) == list(range(40))
    for kind, missing in ((Module, 1), (KeepsCursor, 0)):
        folder = tmp_path / kind.__name__
        with stream() as loader:
            died = fit(kind(die_at=5), loader, max_epochs=2, callbacks=[saver(4, folder)])
        with stream() as loader:
            resumed = fit(Module(), loader, max_epochs=2, checkpoint=folder / "step=4.ckpt")
        assert resumed == whole[4 + missing :]
        assert died == whole[:5]


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        return iter(self.samples)


def test_several_loaders_are_saved_and_resumed_together(tmp_path):
    def loaders():
        return {"first": new_loader(), "second": new_loader(seed=5)}

    with_both = []
    for checkpoint, die_at in ((None, None), (None, 5), (tmp_path / "step=4.ckpt", None)):
        both = loaders()
        module = Pairs(die_at)
        fit(module, both, max_epochs=2, checkpoint=checkpoint, callbacks=[saver(4, tmp_path)])
        with_both.append(module.seen)
        for loader in both.values():
            loader.close()
    whole, died, resumed = with_both
    assert whole == list(zip(plain(2), plain(2, seed=5), strict=True))
    assert died[:4] + resumed == whole


class Pairs(Module):
    def training_step(self, batch, batch_idx):
        if len(self.seen) == self.die_at:
            raise Killed
        self.seen.append(tuple(batch[name]["ids"].tolist() for name in ("first", "second")))
        return self.layer(batch["first"]["x"]).square().mean()


class Validated(Module):
    def on_fit_start(self):
        self.validated = []

    def validation_step(self, batch, batch_idx):
        self.validated += batch["ids"].tolist()


def test_validation_sees_every_sample_once_and_in_order():
    module = Validated()
    with new_loader() as train, new_loader(shuffle=False, drop_last=False) as validation:
        trainer(max_epochs=2, num_sanity_val_steps=0).fit(module, train, validation)
    assert module.validated == list(range(len(dataset()))) * 2
    assert module.seen == plain(2)


class NamesEpochs(Module):
    """For epochs that are cut short: without a name, an epoch that was broken off starts over."""

    def on_train_epoch_end(self):
        self.trainer.train_dataloader.set_epoch(self.current_epoch + 1)


def test_epochs_that_are_cut_short_are_named(tmp_path):
    with new_loader() as loader:
        whole = fit(NamesEpochs(), loader, max_epochs=3, limit_train_batches=5)
    expected = plain(3)
    assert whole == expected[:5] + expected[STEPS : STEPS + 5] + expected[2 * STEPS : 2 * STEPS + 5]
    with new_loader() as loader:
        cut = {"max_epochs": 3, "limit_train_batches": 5}
        died = fit(NamesEpochs(die_at=8), loader, **cut, callbacks=[saver(7, tmp_path)])
    with new_loader() as loader:
        resumed = fit(NamesEpochs(), loader, **cut, checkpoint=tmp_path / "step=7.ckpt")
    assert died[:7] + resumed == whole


def test_a_checkpoint_of_other_data_is_refused(tmp_path):
    with new_loader() as loader:
        fit(Module(die_at=3), loader, max_epochs=1, callbacks=[saver(2, tmp_path)])
    other = torch.utils.data.TensorDataset(torch.arange(80), torch.randn(80, 2))
    with (
        Loader(other, batch_size=BATCH, names=["ids", "x"]) as loader,
        pytest.raises(ResumeError, match="another stream of samples"),
    ):
        fit(Module(), loader, max_epochs=1, checkpoint=tmp_path / "step=2.ckpt")


def test_the_page_about_frameworks_runs(monkeypatch):
    names = run_section("Lightning")
    resumed = []
    monkeypatch.setattr(
        names["Regression"], "on_train_batch_start", lambda self, batch, index: resumed.append(batch.pick_keys)
    )
    trainer(max_epochs=2).fit(names["Regression"](), ckpt_path="checkpoints/step=40.ckpt")
    assert {keys.epoch for keys in resumed} == {1}
    assert len(resumed) == 62 - 40
