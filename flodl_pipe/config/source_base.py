"""What the section ``source`` has in common whatever its ``kind``: which of the samples are used, and which failures
stop a run.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from flodl_pipe.config.base import Count, LocalPath, NonNegative, Seed, StrictModel, fault, shown

__all__ = ["SourceSection", "SubsetConfig"]

Share = Annotated[float, Field(gt=0.0, le=1.0)]


class SubsetConfig(StrictModel):
    """Which samples of a source are used. The rules apply in the order of the keys; each narrows what is left."""

    range: Annotated[list[NonNegative], Field(min_length=2, max_length=2)] | None = None
    """First sample, and one past the last."""

    indices: LocalPath | None = None
    """File of sample indices: a one-dimensional integer .npy, or text with one index a line."""

    fraction: Share | None = None
    """Share of the samples, chosen by `seed`."""

    split: Annotated[dict[str, Share], Field(min_length=2)] | None = None
    """Name -> share of the samples; the parts are disjoint, cover everything and are chosen by `seed`."""

    take: str | None = None
    """Part of `split` to use."""

    seed: Seed = 0
    """Seed of the choice; apart from `sampling.seed`, so that another order keeps the validation set."""

    @model_validator(mode="after")
    def _rules_go_together(self) -> "SubsetConfig":
        if self.range is not None and self.range[0] >= self.range[1]:
            raise fault(f"must be [first, one past the last], got {self.range}", at=["range"])
        if self.range is not None and self.indices is not None:
            raise fault("cannot be set together with indices: each says exactly which samples; keep one", at=["range"])
        if (self.split is None) != (self.take is None):
            missing, there = ("take", "split") if self.take is None else ("split", "take")
            raise fault(f"must be set together with {there}: split names the parts, take the one to use", at=[missing])
        if self.split is not None and self.take not in self.split:
            raise fault(f"must name a part of split ({', '.join(self.split)}), got {shown(self.take)}", at=["take"])
        if self.split is not None and abs(sum(self.split.values()) - 1.0) > 1e-9:
            raise fault(f"must add up to 1, got {sum(self.split.values()):g}; give the rest a name too", at=["split"])
        if not any((self.range, self.indices, self.fraction, self.split)):
            raise fault("must say which samples: set range, indices, fraction, or split and take")
        return self


class SourceSection(StrictModel):
    """Base of every kind of source."""

    subset: SubsetConfig | None = None
    """Which samples are used; null: all. `{range, indices, fraction, split, take, seed}`."""

    on_error: Literal["raise", "skip"] = "raise"
    """What a sample that cannot be read does: end the run with an error that names it, or be skipped: its row is marked
    in `batch.valid`, and nothing else changes."""

    max_skipped: Count = 100
    """With `on_error: skip`: one more sample than this ends the run."""

    def field_names(self) -> tuple[str, ...] | None:
        """Return the names of the fields that are delivered, in order; None where only the data can tell."""
        return None

    def notes(self) -> tuple[tuple[str, str], ...]:
        """Return what was set and has no effect, or another one than asked: keys, and what to say about them."""
        values, notes = dict(self), []
        if values.get("path") is not None and values.get("if_missing") not in (None, "error"):
            notes.append(("if_missing", f"{values['if_missing']}, no effect: source.path is set"))
        if self.on_error == "raise" and self.max_skipped != type(self).model_fields["max_skipped"].default:
            notes.append(("max_skipped", f"{self.max_skipped}, no effect: source.on_error is raise"))
        return tuple(notes)
