"""The stream as ``job=verify`` first reads it: by one rank inside the loop, streaming, without an interruption.

Of each step it keeps what its rows are and hashes of their tensors, and the loader's state, from which a step can be
read again to show where a difference begins.
"""

import json
from dataclasses import dataclass
from typing import final

from flodl_pipe.batch.batch import Batch
from flodl_pipe.errors import LoaderError
from flodl_pipe.jobs.verify_combinations import Setting
from flodl_pipe.jobs.verify_ranks import Ranks
from flodl_pipe.jobs.verify_rows import Rows, batch_sums, rows_of
from flodl_pipe.jobs.verify_ways import Subject
from flodl_pipe.keyed.digest import Digest

__all__ = ["Reference", "Step", "read_reference", "required_batch"]


@final
@dataclass(frozen=True)
class Step:
    """One step of the reference.

    Attributes:
        epoch: Epoch number.
        rows: Its rows.
        position: Positions of the epoch before it.
        next_position: Positions of the epoch after it.
        weight: Part of the mean over its rows that its good rows make up: 1, less where samples are skipped.
    """

    epoch: int
    rows: Rows
    position: int
    next_position: int
    weight: float


@final
@dataclass(frozen=True)
class Reference:
    """The stream as it is when nothing disturbs it.

    Attributes:
        setting: How it was read.
        global_batch: Rows of a step.
        steps: Its steps.
        states: The loader's state before each, and after the last, as JSON.
        is_whole: Whether the last epoch was read to its end.
        digest: Of the stored rows.
        batches: Of everything that was delivered.
    """

    setting: Setting
    global_batch: int
    steps: tuple[Step, ...]
    states: tuple[str, ...]
    is_whole: bool
    digest: Digest
    batches: Digest

    @property
    def ends(self) -> tuple[int, ...]:
        """Steps before each epoch's end that lies between two steps."""
        steps = self.steps
        return tuple(i for i in range(1, len(steps)) if steps[i].epoch != steps[i - 1].epoch)

    def begins_epoch(self, step: int) -> bool:
        """Return whether a step is the first of another epoch than the one before it."""
        return step > 0 and self.steps[step].epoch != self.steps[step - 1].epoch


def read_reference(subject: Subject, setting: Setting, epochs: int, max_steps: int | None) -> Reference:
    """Read the stream undisturbed.

    Raises:
        Refused: if the config cannot be read so.
        FlodlPipeError: what the loader raises.
    """
    steps: list[Step] = []
    states: list[str] = []
    batches = Digest()
    with Ranks(subject, setting) as ranks:
        loader = ranks.loaders[0]
        if max_steps is None:
            loader.require_epochs(epochs)
        states.append(json.dumps(loader.state_dict()))
        is_whole = False
        for epoch in range(epochs):
            position, is_whole = 0, True
            for batch in loader.epoch(epoch):
                rows = rows_of(required_batch(batch))
                state = loader.state_dict()
                weight = float(batch.weight) if subject.config.source.on_error == "skip" else 1.0
                steps.append(Step(epoch, rows, position, int(state["position"]), weight))
                batches.add_sums(batch_sums(rows, epoch=epoch, position=position), int(rows.valid.sum()))
                position = int(state["position"])
                states.append(json.dumps(state))
                if len(steps) == max_steps:
                    is_whole = False
                    break
            if len(steps) == max_steps:
                break
        digest = ranks.digest()
    return Reference(setting, subject.global_batch, tuple(steps), tuple(states), is_whole, digest, batches)


def required_batch(batch: object) -> Batch:
    """Return what a loader gave, if it is a batch.

    Raises:
        LoaderError: if it is something else.
    """
    if not isinstance(batch, Batch):
        raise LoaderError(
            f"job=verify compares batches, and this loader gives {type(batch).__name__}; set loader.batch_size, and "
            "let loader.collate keep the batch"
        )
    return batch
