"""Hugging Face's Trainer with a Loader in place of its own: batches are keyword arguments, and runs resume exactly."""

import contextlib
import json
from pathlib import Path

import pytest
import torch

from tests.ecosystem.data import STEPS, dataset, new_loader, plain, run_section

pytestmark = pytest.mark.full

transformers = pytest.importorskip("transformers", reason="transformers is not installed: the `ecosystem` extra")
pytest.importorskip("accelerate", reason="accelerate is not installed: the `ecosystem` extra")


class Killed(Exception):
    pass


class Model(torch.nn.Module):
    """Writes down the ids of what it is called with; dies before the call ``die_at``."""

    def __init__(self, die_at=None):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.die_at = die_at
        self.seen = []

    def forward(self, ids, x, return_loss=True):  # Trainer asks by this name whether there is a loss without labels
        if len(self.seen) == self.die_at:
            raise Killed
        self.seen.append(ids.tolist())
        y = self.layer(x)
        return {"loss": y.square().mean(), "y": y}


class Trainer(transformers.Trainer):
    def __init__(self, loader, *args, evaluation=None, **keywords):
        super().__init__(*args, **keywords)
        self.loader, self.evaluation = loader, evaluation

    def get_train_dataloader(self):
        return self.loader

    def get_eval_dataloader(self, eval_dataset=None):
        return Dicts(self.evaluation)


class Dicts:
    """Batches as dicts: evaluation asks them for names that they may not have."""

    def __init__(self, loader):
        self.loader, self.dataset = loader, loader.dataset

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        return map(dict, self.loader)


class LoaderState(transformers.TrainerCallback):
    """Keeps the loader's state in each checkpoint's folder, and continues from there."""

    def file(self, args, state):
        return Path(args.output_dir) / f"checkpoint-{state.global_step}" / "loader.json"

    def on_save(self, args, state, control, train_dataloader, **keywords):
        self.file(args, state).write_text(json.dumps(train_dataloader.state_dict()))

    def on_train_begin(self, args, state, control, train_dataloader, **keywords):
        if state.global_step:
            train_dataloader.load_state_dict(json.loads(self.file(args, state).read_text()))


def arguments(folder, **keywords):
    quiet = {"report_to": [], "disable_tqdm": True, "logging_strategy": "no", "use_cpu": True}
    return transformers.TrainingArguments(
        folder, **{**quiet, "save_strategy": "no", "num_train_epochs": 1, "ignore_data_skip": True, **keywords}
    )


def fit(loader, folder, *, die_at=None, resume=None, **keywords):
    model = Model(die_at)
    saving = {} if "save_steps" not in keywords else {"save_strategy": "steps"}
    trainer = Trainer(loader, model, arguments(folder, **keywords, **saving), callbacks=[LoaderState()])
    with contextlib.suppress(Killed):
        trainer.train(resume_from_checkpoint=resume)
    return model.seen, trainer


def test_ten_steps_with_batches_as_keyword_arguments(tmp_path):
    with new_loader() as loader:
        seen, trainer = fit(loader, tmp_path, max_steps=10)
        assert trainer.callback_handler.train_dataloader is loader
    assert seen == plain(1)
    assert trainer.state.global_step == 10
    assert trainer.num_examples(loader) == len(dataset())


def test_epochs_are_whole_and_different(tmp_path):
    with new_loader() as loader:
        seen, trainer = fit(loader, tmp_path, num_train_epochs=3)
    assert seen == plain(3)
    assert trainer.state.epoch == 3.0


@pytest.mark.parametrize("step", [1, 7, STEPS, STEPS + 4])
def test_a_killed_run_goes_on_with_the_batch_after_its_checkpoint(tmp_path, step):
    with new_loader() as loader:
        died, _ = fit(loader, tmp_path, die_at=step + 2, num_train_epochs=3, save_steps=step)
    with new_loader(readers=1) as loader:
        resumed, trainer = fit(loader, tmp_path, resume=str(tmp_path / f"checkpoint-{step}"), num_train_epochs=3)
    assert died[:step] + resumed == plain(3)
    assert trainer.state.global_step == 3 * STEPS


def test_a_killed_run_that_accumulates_gradients_goes_on_at_its_step(tmp_path):
    every = {"gradient_accumulation_steps": 2, "num_train_epochs": 2}
    with new_loader() as loader:
        died, _ = fit(loader, tmp_path, die_at=9, save_steps=3, **every)
    with new_loader() as loader:
        resumed, trainer = fit(loader, tmp_path, resume=str(tmp_path / "checkpoint-3"), **every)
    assert died[:6] + resumed == plain(2)
    assert trainer.state.global_step == STEPS


def test_skipping_by_count_is_refused_aloud(tmp_path):
    with new_loader() as loader:
        fit(loader, tmp_path, max_steps=4, save_steps=4)
    with new_loader() as loader, pytest.raises(AttributeError, match="sampler"):
        fit(loader, tmp_path, resume=str(tmp_path / "checkpoint-4"), max_steps=8, ignore_data_skip=False)


def test_evaluation_sees_every_sample_once_and_gives_the_loss_of_a_torch_loader(tmp_path):
    model, batch = Model(), {"per_device_eval_batch_size": 6}
    with new_loader(batch_size=6, shuffle=False, drop_last=False) as evaluation:
        trainer = Trainer(None, model, arguments(tmp_path, **batch), evaluation=evaluation)
        ours = [trainer.evaluate()["eval_loss"] for _ in range(2)]
    assert sum(model.seen, []) == list(range(len(dataset()))) * 2
    samples = [{"ids": sample, "x": x} for sample, x in dataset()]
    theirs = transformers.Trainer(model, arguments(tmp_path, **batch), eval_dataset=samples).evaluate()["eval_loss"]
    assert ours == pytest.approx([theirs] * 2)


def test_the_page_about_frameworks_runs():
    resumed = run_section("Hugging Face Trainer")["resumed"]
    assert resumed.state.global_step == 62
    assert "eval_loss" in resumed.state.log_history[-1]
