"""Section ``source``, kind ``mixture``: several sources in exact proportions.

Weights are the numbers that were written: 0.7 is 7/10. They need not add up to 1.
"""

import re
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from flodl_pipe.config.base import Count, StrictModel, fault, shown
from flodl_pipe.config.proportions import exact, quotas, smallest_block
from flodl_pipe.config.source_base import SourceSection
from flodl_pipe.config.source_parts import PartSource

__all__ = ["MAX_BLOCK", "MixtureConfig", "MixturePart", "WeightChange"]

MAX_BLOCK = 65_536
"""Largest block."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def _weight(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e12:
        raise fault(f"must be a number from 0 to 1e12, got {shown(value)}")
    return value


Weight = Annotated[float, BeforeValidator(_weight, json_schema_input_type=Annotated[float, Field(ge=0)])]
"""Part of a whole; exact, as it is written."""


class MixturePart(StrictModel):
    """One part of a mixture."""

    source: PartSource
    """The part's data: any section `source` but a mixture or a stream, with a `subset` of its own if you like."""

    weight: Weight
    """Its proportion. 0 only where `schedule` gives it another one."""

    max_epochs: Count | None = None
    """How often its samples may be gone through in the whole run; more is an error. null: without limit."""


class WeightChange(StrictModel):
    """Weights from a place of the run on."""

    at: Count
    """Samples of the whole run before it, over all epochs; it takes effect at the next block."""

    weights: dict[str, Weight]
    """Name of each part -> its weight from there on."""


class MixtureConfig(SourceSection):
    """Several sources of one layout in exact proportions."""

    kind: Literal["mixture"] = "mixture"
    """A mixture."""

    parts: Annotated[dict[str, MixturePart], Field(min_length=1)]
    """Name -> `{source, weight, max_epochs}`. All parts hold the same fields, types and shapes."""

    block: Annotated[Count, Field(le=MAX_BLOCK)] = 1000
    """Samples within which the proportions are exact. A part's weight needs at least one sample of a block."""

    schedule: list[WeightChange] = Field(default=[])
    """Changes of the weights, in order: `{at: samples, weights: {name: weight}}`."""

    epoch_samples: Count | None = None
    """Samples of an epoch, a multiple of `block`; null: as many as all parts have, in whole blocks."""

    def changes(self) -> tuple[tuple[int, tuple[Fraction, ...]], ...]:
        """Return where weights begin to hold, and one exact weight per part; the first at 0."""
        first = tuple(exact(part.weight) for part in self.parts.values())
        later = tuple(
            (change.at, tuple(exact(change.weights[name]) for name in self.parts)) for change in self.schedule
        )
        return ((0, first), *later)

    def field_names(self) -> tuple[str, ...] | None:
        return next(iter(self.parts.values())).source.field_names()

    @model_validator(mode="after")
    def _parts_can_be_mixed(self) -> "MixtureConfig":
        if self.subset is not None:
            raise fault("a mixture has no subset of its own, got one; set subset in its parts", at=["subset"])
        for name in self.parts:
            if not _NAME.fullmatch(name):
                raise fault(f"{shown(name)} is not a name: use letters, digits, _ and -", at=["parts", name])
        for name, part in self.parts.items():
            if part.source.on_error != "raise":
                raise fault(
                    "must be raise in a part, got skip: the mixture's own source.on_error decides for all parts",
                    at=["parts", name, "source", "on_error"],
                )
            if part.source.max_skipped != type(part.source).model_fields["max_skipped"].default:
                raise fault(
                    "has no effect in a part: the mixture's own source.max_skipped counts for all parts; leave it",
                    at=["parts", name, "source", "max_skipped"],
                )
        if self.epoch_samples is not None and self.epoch_samples % self.block:
            below = self.epoch_samples // self.block * self.block
            raise fault(
                f"must be a multiple of block={self.block}, got {self.epoch_samples}; use "
                f"{below or self.block} or {below + self.block}",
                at=["epoch_samples"],
            )
        return self

    @model_validator(mode="after")
    def _weights_fit(self) -> "MixtureConfig":
        self._check_schedule()
        for place, (at, weights) in enumerate(self.changes()):
            where: list[str | int] = ["schedule", place - 1, "weights"] if place else ["parts"]
            if not any(weights):
                raise fault(f"must have a weight above 0 for at least one part from sample {at} on", at=where)
            for name, weight, count in zip(self.parts, weights, quotas(self.block, weights), strict=True):
                if weight and not count:
                    raise fault(
                        f"must be at least {smallest_block(weights)} for part '{name}', whose weight is "
                        f"{float(weight):g} of {float(sum(weights)):g} from sample {at} on, got {self.block}: it would "
                        "have no place in a block",
                        at=["block"],
                    )
        for name, number in zip(self.parts, zip(*(weights for _, weights in self.changes()), strict=True), strict=True):
            if not any(number):
                raise fault(
                    "must be above 0, got 0: the part would never be read; remove it, or give it a weight in schedule",
                    at=["parts", name, "weight"],
                )
        return self

    def _check_schedule(self) -> None:
        last_block = 0
        for place, change in enumerate(self.schedule):
            if set(change.weights) != set(self.parts):
                missing = [name for name in self.parts if name not in change.weights]
                unknown = [name for name in change.weights if name not in self.parts]
                faults = [f"without {', '.join(missing)}"] if missing else []
                faults += [f"with {', '.join(unknown)}, which is no part"] if unknown else []
                raise fault(
                    f"must have one weight for each part ({', '.join(self.parts)}), got them {' and '.join(faults)}",
                    at=["schedule", place, "weights"],
                )
            block = -(-change.at // self.block)
            if block <= last_block and place:
                raise fault(
                    f"must come at least a block of {self.block} after the one before, which takes effect at sample "
                    f"{last_block * self.block}, got {change.at}",
                    at=["schedule", place, "at"],
                )
            last_block = block
