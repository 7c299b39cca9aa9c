"""Section ``transforms``: the kinds that work on token ids, fields of shape (tokens,)."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from flodl_pipe.config.base import Count, NonNegative, fault, shown
from flodl_pipe.config.transforms_base import FieldName, Fraction, StepConfig

__all__ = ["MaskTokensConfig", "RandomSpanConfig", "ShiftConfig"]


class _TargetStep(StepConfig):
    """A step that makes targets of tokens."""

    field: FieldName = "input"
    """Field with the tokens."""

    target: FieldName = "target"
    """Field for the targets; one that is there is replaced."""

    @model_validator(mode="after")
    def _two_fields(self) -> "_TargetStep":
        if self.target == self.field:
            raise fault(f"must be another field than that of the tokens, got {shown(self.target)}", at=["target"])
        return self


class MaskTokensConfig(_TargetStep):
    """Hide some tokens, to be predicted (BERT)."""

    kind: Literal["mask_tokens"] = "mask_tokens"
    """Hide some tokens, to be predicted."""

    mask_id: NonNegative
    """Id that hides a token."""

    vocab_size: Annotated[Count, Field(le=2**32)]
    """Number of token ids; random ids are below it, and so is `mask_id`."""

    probability: Fraction = 0.15
    """Share of the tokens that are chosen; the target is the token there, and -100 elsewhere."""

    random: Fraction = 0.1
    """Share of the chosen that become a random id."""

    keep: Fraction = 0.1
    """Share of the chosen that stay; the rest becomes `mask_id`."""

    ignore: list[int] = Field(default=[])
    """Ids that are never chosen: padding, separators."""

    ignore_below: int = 0
    """Ids below this are never chosen."""

    @model_validator(mode="after")
    def _shares_fit(self) -> "MaskTokensConfig":
        if self.mask_id >= self.vocab_size:
            raise fault(
                f"must be below vocab_size={self.vocab_size}, got {self.mask_id}: vocab_size counts the mask too",
                at=["mask_id"],
            )
        if self.random + self.keep > 1:
            raise fault(
                f"must be at most {1 - self.random:g}, got {self.keep}: with random={self.random:g} it would be more "
                "than all of the chosen",
                at=["keep"],
            )
        return self


class RandomSpanConfig(StepConfig):
    """Keep a random stretch of each row."""

    kind: Literal["random_span"] = "random_span"
    """Keep a random stretch of each row."""

    length: Count
    """Tokens to keep."""

    fields: Annotated[list[FieldName], Field(min_length=1)] = Field(default=["input", "target"])
    """Fields to cut, all at the same place."""

    @model_validator(mode="after")
    def _fields_differ(self) -> "RandomSpanConfig":
        if len(set(self.fields)) != len(self.fields):
            raise fault(f"must name each field once, got {shown(self.fields)}", at=["fields"])
        return self


class ShiftConfig(_TargetStep):
    """Next-token targets: of T + 1 tokens, the first T are the input and the last T the target."""

    kind: Literal["shift"] = "shift"
    """Next-token targets."""
