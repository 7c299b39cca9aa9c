"""What the training loop receives: named tensors, owned by the loop, and what they are.

A batch unpacks like a tuple (``x, y = batch``), is indexed by place or name, and passes as keyword arguments
(``model(**batch)``). It is no ``Mapping`` subclass, because iterating it gives tensors. It is a pytree, so that torch's
tree functions map over its tensors.

Shape letter: ``B`` rows of the batch.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, Self, final

import torch
from torch.utils import _pytree

from flodl_pipe.keyed.pick_keys import PickKeys

__all__ = ["Batch", "Origin"]


class Origin(Protocol):
    """Where several batches come from: it makes what few loops ask of a batch, when they ask."""

    def pick_keys(self, place: int) -> PickKeys:
        """Return the keys of one of the batches."""
        ...

    def cursor(self, place: int) -> Any:
        """Return what :class:`Batch` takes as ``cursor``, for one of the batches."""
        ...


@final
class _Reads:
    number = 0


def num_weight_reads() -> int:
    """Return how often a batch was asked for its weight in this process: whether anybody may weigh a loss by it."""
    return _Reads.number


@final
class Batch:
    """Tensors of one step, in field order.

    The tensors are the loop's own: keep them, change them in place, save them, send them to another process. No two
    batches and no two fields share storage.

    Attributes:
        valid: None when every row counts; else bool tensor of shape ``(B,)``, False where a row only fills a place.
    """

    # Keys and cursor are made when first asked for; until then a place in an origin stands for them.
    __slots__ = ("_cursor", "_keys", "_names", "_tensors", "_weight", "valid")
    _keys: PickKeys | tuple[Origin, int]
    _cursor: Any

    def __init__(
        self,
        names: tuple[str, ...],
        tensors: tuple[torch.Tensor, ...],
        *,
        pick_keys: PickKeys,
        weight: float = 1.0,
        valid: torch.Tensor | None = None,
        cursor: Any = None,
    ) -> None:
        self._names = names
        self._tensors = tensors
        self._keys = pick_keys
        self._weight = weight
        self.valid = valid
        self._cursor = cursor

    @classmethod
    def of_origin(
        cls, names: tuple[str, ...], tensors: Iterable[tuple[torch.Tensor, ...]], origin: Origin, weight: float
    ) -> "list[Batch]":
        """Return batches of one origin, in order, all rows of which count.

        Args:
            names: Field names, the same for all.
            tensors: The tensors of each batch.
            origin: Makes keys and cursor of each.
            weight: Weight of each.
        """
        batches: list[Batch] = []
        new = object.__new__  # without the call of a constructor
        for place, own in enumerate(tensors):
            batch = new(cls)
            batch._names, batch._tensors = names, own  # noqa: SLF001
            batch._weight, batch.valid = weight, None  # noqa: SLF001
            batch._keys = batch._cursor = (origin, place)  # noqa: SLF001
            batches.append(batch)
        return batches

    @property
    def weight(self) -> float:
        """Factor for the mean loss of this batch, so that an average over ranks is the mean over the global batch; 1.0
        on one process.
        """
        _Reads.number += 1
        return self._weight

    @weight.setter
    def weight(self, weight: float) -> None:
        self._weight = weight

    def peek_weight(self) -> float:
        """Return the weight, for who does not weigh anything by it; see :func:`num_weight_reads`."""
        return self._weight

    @property
    def pick_keys(self) -> PickKeys:
        """Key of each row (sample, repeat, epoch, seed), ``B`` rows."""
        keys = self._keys
        if isinstance(keys, tuple):
            origin, place = keys
            keys = self._keys = origin.pick_keys(place)
        return keys

    @pick_keys.setter
    def pick_keys(self, keys: PickKeys) -> None:
        self._keys = keys

    @property
    def cursor(self) -> dict[str, int | str] | None:
        """Loader state after this batch, as ``Loader.state_dict()`` gave it: resume from it to continue with the batch
        after this one. None on a batch that no loader delivered.
        """
        stands = self.stands()
        return None if stands is None else stands.state()

    def stands(self) -> Any:
        """Return what knows the cursor; not public."""
        if isinstance(self._cursor, tuple):
            origin, place = self._cursor
            self._cursor = origin.cursor(place)
        return self._cursor

    @property
    def names(self) -> tuple[str, ...]:
        """Field names, in order."""
        return self._names

    @property
    def size(self) -> int:
        """Rows of the batch, ``B``."""
        return len(self.pick_keys)

    def with_fields(self, names: tuple[str, ...], tensors: tuple[torch.Tensor, ...]) -> Self:
        """Return the batch with other fields: the same rows, keys, weight and cursor, other tensors.

        Args:
            names: Their names, in order, each once.
            tensors: As many tensors of ``B`` rows.

        Raises:
            ValueError: if the numbers differ, or a name comes twice.
        """
        if len(names) != len(tensors) or len(set(names)) != len(names):
            raise ValueError(f"each tensor needs a name of its own, got names {names} for {len(tensors)} tensors")
        return type(self)(
            names, tensors, pick_keys=self.pick_keys, weight=self._weight, valid=self.valid, cursor=self.stands()
        )

    def has(self, name: str) -> bool:
        """Return whether the batch has a field of this name."""
        return name in self._names

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field's tensor, or ``default`` where the batch has no such field."""
        return self[name] if name in self._names else default

    def keys(self) -> tuple[str, ...]:
        """Return the field names, in order."""
        return self._names

    def values(self) -> tuple[torch.Tensor, ...]:
        """Return the tensors, in field order."""
        return self._tensors

    def items(self) -> tuple[tuple[str, torch.Tensor], ...]:
        """Return ``(name, tensor)`` pairs, in field order."""
        return tuple(zip(self._names, self._tensors, strict=True))

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """Return the batch with every tensor on ``device``."""
        tensors = tuple(tensor.to(device, non_blocking=non_blocking) for tensor in self._tensors)
        valid = None if self.valid is None else self.valid.to(device, non_blocking=non_blocking)
        return type(self)(
            self._names, tensors, pick_keys=self.pick_keys, weight=self._weight, valid=valid, cursor=self.stands()
        )

    def pin_memory(self) -> Self:
        """Return the batch with every tensor in page-locked memory; needs an accelerator, as ``torch`` says."""
        tensors = tuple(tensor.pin_memory() for tensor in self._tensors)
        return type(self)(
            self._names, tensors, pick_keys=self.pick_keys, weight=self._weight, valid=self.valid, cursor=self.stands()
        )

    def __getitem__(self, key: int | str) -> torch.Tensor:
        if isinstance(key, str):
            if key not in self._names:
                raise KeyError(f"no field {key!r}; this batch has {', '.join(self._names)}")
            return self._tensors[self._names.index(key)]
        return self._tensors[key]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __repr__(self) -> str:
        fields = ", ".join(
            f"{name}: {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
            for name, tensor in zip(self._names, self._tensors, strict=True)
        )
        return f"Batch({fields})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _unflatten, (self._tensors, (self._names, self.pick_keys, self._weight, self.valid, self.stands()))


def _flatten(batch: Batch) -> tuple[list[torch.Tensor], Any]:
    return list(batch.values()), (batch.names, batch.pick_keys, batch.peek_weight(), batch.valid, batch.stands())


def _unflatten(tensors: Any, context: Any) -> Batch:
    names, pick_keys, weight, valid, cursor = context
    return Batch(names, tuple(tensors), pick_keys=pick_keys, weight=weight, valid=valid, cursor=cursor)


_pytree.register_pytree_node(Batch, _flatten, _unflatten, serialized_type_name="flodl_pipe.Batch")
