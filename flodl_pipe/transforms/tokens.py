"""Token transforms: random masking, a random window of a row, and next-token targets.

All are integer arithmetic on keyed words, row by row: the same ids on every device, in any batch. A token's draws
belong to its place in the row, so that padding a row further leaves them as they are.

Shape letters: ``B`` rows, ``T`` tokens of a row.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import final

import torch

from flodl_pipe.batch.batch import Batch
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.errors import ConfigError, TransformError
from flodl_pipe.keyed.keys_torch import integers, words
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.transforms.arguments import (
    require_count,
    require_integer,
    require_integer_list,
    require_name,
    require_names,
)
from flodl_pipe.transforms.protocol import Scope
from flodl_pipe.transforms.token_fields import (
    find_field,
    find_tensor,
    refuse_jagged,
    refuse_ragged,
    require_ids,
    require_integers,
    spec_with,
    with_tensors,
)

__all__ = ["IGNORED_TARGET", "MaskTokens", "RandomSpan", "Shift"]

IGNORED_TARGET = -100
"""Target where there is nothing to predict: what ``torch.nn.functional.cross_entropy`` leaves out by default."""


@final
class MaskTokens:
    """Hides some tokens, to be predicted: BERT's masked language model.

    Each token is chosen with ``probability``. Of those chosen, a share ``random`` becomes a random id, a share ``keep``
    stays what it is, and the rest becomes ``mask_id``. The target is the token where it was chosen and -100 elsewhere.
    Both fields become int64. A field called ``target`` is replaced.

    Probabilities are multiples of 2**-32: one word a token decides whether and how, by where it lies below
    ``2**32 * probability``.

    Source: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers" (NAACL 2019), section 3.1.
    """

    scope: Scope = "row"

    def __init__(
        self,
        *,
        mask_id: int,
        vocab_size: int,
        probability: float = 0.15,
        random: float = 0.1,
        keep: float = 0.1,
        ignore: Sequence[int] = (),
        ignore_below: int = 0,
        field: str = "input",
        target: str = "target",
    ) -> None:
        """Take the constants.

        Args:
            mask_id: Id that hides a token, below ``vocab_size``.
            vocab_size: Ids are ``0 .. vocab_size - 1``, the mask and other special ones included: for a mask that was
                put behind a vocabulary of ``n``, ``n + 1``. Random ids are drawn from all of them.
            probability: Share of the tokens that are chosen, in 0 .. 1.
            random: Share of the chosen that become a random id.
            keep: Share of the chosen that stay.
            ignore: Ids that are never chosen: padding, separators. Only these may lie outside the vocabulary,
                beside -1 and -100.
            ignore_below: Ids below this are never chosen either.
            field: Field of the tokens.
            target: Field of the targets.

        Raises:
            ConfigError: if a constant is out of range.
        """
        vocab_size = require_count(vocab_size, "mask_tokens.vocab_size")
        mask_id = require_integer(mask_id, "mask_tokens.mask_id", "an id, an integer")
        if not 0 <= mask_id < vocab_size <= 1 << 32:
            raise ConfigError.at(
                "mask_tokens.mask_id",
                f"must be in 0 .. vocab_size - 1 with vocab_size at most 2**32, got {mask_id} with {vocab_size}; "
                "vocab_size counts the mask too",
            )
        shares = {"probability": probability, "random": random, "keep": keep}
        for name, share in shares.items():
            if isinstance(share, bool) or not isinstance(share, int | float):
                raise ConfigError.at(f"mask_tokens.{name}", f"must be a number in 0 .. 1, got {share!r}")
        if not (0 <= probability <= 1 and random >= 0 and keep >= 0 and random + keep <= 1):
            raise ConfigError.at(
                "mask_tokens.probability",
                f"probability, random, keep and random + keep must be in 0 .. 1: got {probability}, {random}, {keep}; "
                "random and keep are shares of the chosen",
            )
        _require_two("mask_tokens", field, target)
        ignore = require_integer_list(ignore, "mask_tokens.ignore")
        ignore_below = require_integer(ignore_below, "mask_tokens.ignore_below", "an id, an integer")
        self._mask_id, self._vocab_size = mask_id, vocab_size
        self._ignore, self._ignore_below = tuple(sorted(set(ignore))), ignore_below
        self._field, self._target = field, target
        self._chosen, self._altered, self._masked = (
            round(probability * part * 2**32) for part in (1.0, 1.0 - keep, max(0.0, 1.0 - keep - random))
        )
        self.tag = (
            f"mask_tokens(mask_id={mask_id}, vocab_size={vocab_size}, probability={probability!r}, random={random!r}, "
            f"keep={keep!r}, ignore={list(self._ignore)}, ignore_below={ignore_below}, field={field!r}, "
            f"target={target!r})"
        )

    def __call__(self, batch: Batch, keys: PickKeys) -> Batch:
        tokens = find_tensor(batch, self._field, "mask_tokens")
        require_integers(str(tokens.dtype).removeprefix("torch."), self._field, "mask_tokens")
        flat = (tokens.values() if tokens.layout == torch.jagged else tokens).long()
        require_ids(_like(tokens, flat), self._vocab_size, self._ignore, self._field, keys)
        masked, target = (_like(tokens, values) for values in self._mask(flat, tokens, keys))
        return with_tensors(batch, {self._field: masked, self._target: target})

    def output(self, spec: SampleSpec) -> SampleSpec:
        field = find_field(spec, self._field, "mask_tokens")
        require_integers(field.dtype, self._field, "mask_tokens")
        tokens = replace(field, dtype="int64")
        return spec_with(spec, {self._field: tokens, self._target: replace(tokens, name=self._target)})

    def _mask(self, ids: torch.Tensor, tokens: torch.Tensor, keys: PickKeys) -> tuple[torch.Tensor, torch.Tensor]:
        word = _per_token(tokens, lambda count: words(keys, count, ids.device))
        eligible = ids >= self._ignore_below
        for ignored in self._ignore:
            eligible &= ids != ignored
        target = torch.where(eligible & (word < self._chosen), ids, IGNORED_TARGET)
        altered = ids
        if self._altered > self._masked:
            drawn = _per_token(tokens, lambda count: integers(keys, self._vocab_size, count, ids.device, 1))
            altered = torch.where(eligible & (word < self._altered), drawn, ids)
        return torch.where(eligible & (word < self._masked), self._mask_id, altered), target


def _per_token(tokens: torch.Tensor, draw: Callable[[int], torch.Tensor]) -> torch.Tensor:
    """Return what ``draw`` gives for each place of a row, one number a token, in the shape of the tokens' values."""
    if tokens.layout == torch.jagged:
        lengths = _offsets(tokens).diff()
        longest = int(lengths.max())
        return draw(max(1, longest))[:, :longest][torch.arange(longest, device=lengths.device) < lengths[:, None]]
    count = math.prod(tokens.shape[1:])
    return draw(max(1, count))[:, :count].view(tokens.shape)


def _like(tokens: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return values as rows of the same lengths."""
    if tokens.layout == torch.jagged:
        return torch.nested.nested_tensor_from_jagged(values, _offsets(tokens))
    return values


def _offsets(tokens: torch.Tensor) -> torch.Tensor:
    """Return where the rows of a jagged tensor begin, and the end of the last, shape ``(B + 1,)``."""
    offsets: torch.Tensor = tokens.offsets()  # type: ignore[attr-defined] # torch does not type its jagged tensors
    return offsets


@final
class RandomSpan:
    """Takes ``length`` consecutive tokens of each row, from a place drawn for the row.

    Every field is cut at the same place: an input stays beside its target. Types stay as they are.
    """

    scope: Scope = "row"

    def __init__(self, *, length: int, fields: Sequence[str] = ("input", "target")) -> None:
        """Take the constants.

        Args:
            length: Tokens to keep, at least 1.
            fields: Fields to cut, of shape ``(T, ...)`` with one ``T >= length``.

        Raises:
            ConfigError: if there is no length, or no field.
        """
        self._length = length = require_count(length, "random_span.length")
        self._fields = require_names(fields, "random_span.fields")
        self.tag = f"random_span(length={length}, fields={list(self._fields)})"

    def __call__(self, batch: Batch, keys: PickKeys) -> Batch:
        tensors = {name: find_tensor(batch, name, "random_span") for name in self._fields}
        for name, tensor in tensors.items():
            refuse_jagged(tensor, name, "random_span")
        sizes = {name: tuple(tensor.shape[1:]) for name, tensor in tensors.items()}
        starts = keys.integers(self._num_starts(sizes), 1)
        device = tensors[self._fields[0]].device
        places = torch.from_numpy(starts).to(device) + torch.arange(self._length, device=device)
        rows = torch.arange(len(starts), device=device)[:, None]
        return with_tensors(batch, {name: tensor[rows, places] for name, tensor in tensors.items()})

    def output(self, spec: SampleSpec) -> SampleSpec:
        fields = {name: find_field(spec, name, "random_span") for name in self._fields}
        for field in fields.values():
            refuse_ragged(field, "random_span")
        self._num_starts({name: field.shape for name, field in fields.items()})
        cut = {name: replace(field, shape=(self._length, *field.shape[1:])) for name, field in fields.items()}
        return spec_with(spec, cut)

    def _num_starts(self, sizes: dict[str, tuple[int, ...]]) -> int:
        """Return in how many places a span may begin."""
        for name, size in sizes.items():
            if not size or size[0] < self._length:
                raise TransformError(
                    f"random_span keeps {self._length} tokens, and rows of field {name!r} have shape {size}; shorten "
                    "length, or name other fields"
                )
        (first, size), *others = sizes.items()
        for name, other in others:
            if other[0] != size[0]:
                raise TransformError(
                    f"random_span cuts its fields at one place, and rows have {size[0]} of field {first!r} and "
                    f"{other[0]} of {name!r}; name fields of one length"
                )
        return size[0] - self._length + 1


@final
class Shift:
    """Makes next-token targets: of ``T + 1`` tokens, the first ``T`` are the input and the last ``T`` the target.

    Both become int64. A field called ``target`` is replaced. Padding would become a target like any token, so rows are
    of one length.
    """

    scope: Scope = "row"

    def __init__(self, *, field: str = "input", target: str = "target") -> None:
        """Take the names of the field of the tokens and of that of the targets.

        Raises:
            ConfigError: if they are the same.
        """
        _require_two("shift", field, target)
        self._field, self._target = field, target
        self.tag = f"shift(field={field!r}, target={target!r})"

    def __call__(self, batch: Batch, keys: PickKeys) -> Batch:  # noqa: ARG002 - nothing is drawn
        tokens = find_tensor(batch, self._field, "shift")
        refuse_jagged(tokens, self._field, "shift")
        self._check(str(tokens.dtype).removeprefix("torch."), tuple(tokens.shape[1:]))
        pair = {self._field: tokens[:, :-1], self._target: tokens[:, 1:]}
        # copy: a slice of int64 would be a view, and the two would share memory.
        return with_tensors(
            batch,
            {
                name: part.to(torch.int64, copy=True, memory_format=torch.contiguous_format)
                for name, part in pair.items()
            },
        )

    def output(self, spec: SampleSpec) -> SampleSpec:
        field = find_field(spec, self._field, "shift")
        refuse_ragged(field, "shift")
        self._check(field.dtype, field.shape)
        tokens = replace(field, dtype="int64", shape=(field.shape[0] - 1, *field.shape[1:]))
        return spec_with(spec, {self._field: tokens, self._target: replace(tokens, name=self._target)})

    def _check(self, dtype: str, shape: tuple[int, ...]) -> None:
        require_integers(dtype, self._field, "shift")
        if not shape or shape[0] < 2:
            raise TransformError(
                f"shift needs rows of at least 2 tokens, and rows of field {self._field!r} have shape {shape}; name "
                "the field of the tokens"
            )


def _require_two(kind: str, field: object, target: object) -> None:
    if require_name(field, f"{kind}.field") == require_name(target, f"{kind}.target"):
        raise ConfigError.at(
            f"{kind}.target", f"must be another field than that of the tokens, got {target!r} for both"
        )
