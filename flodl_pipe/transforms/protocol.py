"""The transform contract: a batch and the keys of its rows in, a batch out.

A transform is a pure function of the batch and the keys. All its randomness comes from ``keys`` (:class:`PickKeys`), so
a row is changed in the same way on any rank, in any batch, by any reader, and after a restart. ``scope`` says how far
rows look at each other::

    row     each row by itself: a batch may be split or joined anywhere
    pair    rows 2j and 2j + 1 of the global batch look at each other; ranks keep such pairs together
    batch   rows look at the whole batch, so it must not be split: one rank only

On a CPU, readers may call a transform from several threads at once: it keeps no state that changes.

Shape letter: ``B`` rows.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

from flodl_pipe.arrays import Array
from flodl_pipe.batch.batch import Batch
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.keyed.pick_keys import PickKeys

__all__ = ["ArrayTransform", "BundledTransform", "Scope", "Transform"]

Scope = Literal["row", "pair", "batch"]


@runtime_checkable
class Transform(Protocol):
    """Changes a batch; see the module for what it promises."""

    scope: Scope

    def __call__(self, batch: Batch, keys: PickKeys) -> Batch:
        """Return the changed batch: as many rows, on the same device. The tensors of ``batch`` may be changed in place.

        Args:
            batch: Fields of ``B`` rows each.
            keys: Keys of the rows. Draw from them only.
        """
        ...


@runtime_checkable
class BundledTransform(Transform, Protocol):
    """A transform that says beforehand what it does."""

    tag: str
    """Kind and every constant that changes its results, for example ``random_crop(size=(32, 32), padding=4)``: part of
    every cursor."""

    def output(self, spec: SampleSpec) -> SampleSpec:
        """Return the fields that it makes of these.

        Raises:
            TransformError: if it cannot work on these fields; the message names field, rule and remedy.
        """
        ...


class ArrayTransform(Protocol):
    """One or several row-scoped transforms in a single pass over arrays in host memory, written where they go."""

    spec: SampleSpec
    """The fields it makes."""

    scratch_bytes: int
    """Most memory that :meth:`apply` takes beside its arguments, in each thread that calls it."""

    def draw(self, keys: PickKeys) -> tuple[Array, ...]:
        """Return all random numbers that rows need: for thousands of rows at once, since most of it is calls.

        Args:
            keys: Keys of the rows, before any stream was chosen.

        Returns:
            Arrays whose first axis is that of the rows, to be cut and given to :meth:`apply`.
        """
        ...

    def apply(self, rows: Mapping[str, Array], draws: Sequence[Array], out: Mapping[str, Array]) -> None:
        """Write ``B`` transformed rows.

        Args:
            rows: One C-contiguous array per field of the spec that it was made for, shape ``(B, *field.shape)``. Not
                changed.
            draws: What :meth:`draw` returned for these rows.
            out: One C-contiguous array per field of :attr:`spec`, shape ``(B, *field.shape)``.
        """
        ...
