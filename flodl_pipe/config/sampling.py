"""Section ``sampling``: the order of the samples and what happens at the end of an epoch."""

import difflib
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from flodl_pipe.config.base import Count, LocalPath, Seed, StrictModel, absolute, fault, shown
from flodl_pipe.config.callable_path import CallablePath
from flodl_pipe.config.sampler_conflicts import sampler_conflicts

__all__ = ["INVERSE_FREQUENCY", "DropLast", "OrderName", "SamplingConfig"]

OrderName = Literal["uniform", "lanes", "blocked", "bucketed", "weighted"]
"""An order that is computed."""

INVERSE_FREQUENCY = "inverse_frequency"
"""The word for weights that are made from labels, where a path of weights may stand."""


def _drop_last(value: Any) -> Any:
    if isinstance(value, bool) or value == "pad":
        return value
    raise fault(f"must be true, false or 'pad', got {shown(value)}")


def _weights(value: Any) -> str:
    if value == INVERSE_FREQUENCY:
        return INVERSE_FREQUENCY
    if isinstance(value, str) and not value.endswith(".npy"):
        close = difflib.get_close_matches(value, [INVERSE_FREQUENCY], cutoff=0.6)
        hint = f". Did you mean '{INVERSE_FREQUENCY}'?" if close else ""
        raise fault(f"must be a .npy file or '{INVERSE_FREQUENCY}', got {shown(value)}{hint}")
    return absolute(value)


DropLast = Annotated[bool | Literal["pad"], BeforeValidator(_drop_last, json_schema_input_type=bool | Literal["pad"])]
"""The last-batch rule."""


class SamplingConfig(StrictModel):
    """Which sample stands where in an epoch."""

    seed: Seed = 42
    """Seed of the order, 0 .. 2**64 - 1. Equal seeds give equal orders on every machine."""

    shuffle: bool = True
    """A new order each epoch; false: storage order."""

    drop_last: DropLast = True
    """The last, short batch: true leaves it out, false delivers it short, pad fills it from the epoch's head with
    rows that are marked."""

    order: OrderName = "uniform"
    """How a shuffled epoch is ordered: uniform; lanes brings each rank the same samples every epoch, for its caches;
    blocked reads shards one after the other and shuffles inside blocks; bucketed puts samples of like length into one
    batch; weighted draws by `weights`, with replacement."""

    augment: Count = 1
    """How often each sample comes in an epoch, each time with random numbers of its own."""

    num_lanes: Count | None = None
    """Lanes of `order: lanes`, a divisor of the global batch, at least one a rank; null: one for each of its rows."""

    block_samples: Count = 65536
    """Samples of a block of `order: blocked`."""

    pool_batches: Count = 50
    """Batches of a pool that `order: bucketed` sorts by length."""

    lengths: LocalPath | None = None
    """File (.npy, integers) with the length of each sample, for `order: bucketed`; null: the source says."""

    weights: Annotated[str, BeforeValidator(_weights, json_schema_input_type=str)] | None = None
    """File (.npy) with a weight for each sample, for `order: weighted`; or inverse_frequency: one over how often the
    sample's label comes."""

    label_field: Annotated[str, Field(min_length=1)] = "label"
    """Field that inverse_frequency counts."""

    num_draws: Count | None = None
    """Draws of an epoch of `order: weighted`; null: as many as there are samples."""

    sampler: CallablePath | None = None
    """`MODULE:CALLABLE` of your own, called with the source, that returns a sampler: an iterable of sample indices,
    one epoch at a time. Instead of `shuffle` and `order`. Its module must be allowed, as for `source.factory`."""

    batch_sampler: CallablePath | None = None
    """The same for whole batches: an iterable of lists of indices, each the batch of a step over all ranks. Instead of
    `loader.batch_size`, `shuffle`, `order`, `sampler` and `drop_last`."""

    sampler_args: dict[str, Any] = Field(default={})
    """Keyword arguments for `sampler` or `batch_sampler`."""

    @model_validator(mode="after")
    def _keys_fit_the_order(self) -> "SamplingConfig":
        if self.order != "uniform" and not self.shuffle:
            raise fault(
                f"false asks for storage order, and order={self.order} is a shuffled one; leave shuffle at true, or "
                "set order=uniform",
                at=["shuffle"],
            )
        if self.order == "weighted" and self.weights is None:
            raise fault("must be set for order=weighted: a .npy file, or inverse_frequency", at=["weights"])
        needs = {"weights": "weighted", "num_draws": "weighted", "lengths": "bucketed", "num_lanes": "lanes"}
        for key, order in needs.items():
            if getattr(self, key) is not None and self.order != order:
                raise fault(
                    f"{shown(getattr(self, key))} has no meaning with order={self.order}; set order={order}, or leave "
                    f"{key} at null",
                    at=[key],
                )
        if self.order == "weighted" and self.augment > 1:
            raise fault(
                f"{self.augment} with order=weighted: weights already say how often a sample comes; raise num_draws "
                "instead",
                at=["augment"],
            )
        return self

    @model_validator(mode="after")
    def _a_sampler_decides_alone(self) -> "SamplingConfig":
        if self.sampler is None and self.batch_sampler is None:
            if self.sampler_args:
                raise fault("have no meaning without sampler or batch_sampler", at=["sampler_args"])
            return self
        problems = sampler_conflicts(
            sampler=self.sampler,
            batch_sampler=self.batch_sampler,
            shuffle=self.shuffle,
            order=self.order,
            augment=self.augment,
            drop_last=None if self.drop_last is True else self.drop_last,
        )
        for problem in problems[:1]:  # a validator raises one
            raise fault(problem.message, at=[problem.key.removeprefix("sampling.")])
        return self

    def notes(self) -> tuple[tuple[str, str], ...]:
        """Return what was set and has no effect: keys, and what to say about them."""
        used = {
            "block_samples": self.order == "blocked",
            "pool_batches": self.order == "bucketed",
            "label_field": self.weights == INVERSE_FREQUENCY,
        }
        return tuple(
            (key, f"{getattr(self, key)}, no effect with order={self.order}")
            for key, is_used in used.items()
            if not is_used and getattr(self, key) != type(self).model_fields[key].default
        )
