"""Ragged batches: nested tensors of torch's jagged layout, which hold the rows one after the other and nothing else.

Fields whose rows have the same lengths in a batch share one tensor of offsets: torch takes nested tensors for equally
shaped only then, and adds ``ids_embedded + kinds_embedded``. Values are never shared.

Shape letters: ``B`` rows, ``T`` their lengths added up.
"""

from typing import final

import numpy as np
import torch

from flodl_pipe.batch.ragged import Columns, Ragged
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.sampling.collate_stack import fresh

__all__ = ["RaggedCollate"]


@final
class RaggedCollate:
    """Keeps ragged fields ragged and stacks the others; a :class:`flodl_pipe.sampling.collate.Collate`."""

    tag = "ragged"

    def __init__(self) -> None:
        # Torch imports what it needs for the first nested tensor, for a second or so: here, not in a reader.
        torch.nested.nested_tensor_from_jagged(torch.zeros(1), torch.tensor([0, 1]))

    def check(self, spec: SampleSpec) -> None:
        """Accept any fields."""

    def output(self, spec: SampleSpec) -> SampleSpec:
        """Return the same fields."""
        return spec

    def __call__(self, rows: Columns) -> tuple[tuple[str, ...], tuple[torch.Tensor, ...]]:
        """Make tensors; see :meth:`flodl_pipe.sampling.collate.Collate.__call__`."""
        offsets: list[torch.Tensor] = []
        tensors = [
            _nested(values, offsets) if isinstance(values, Ragged) else fresh(values) for values in rows.values()
        ]
        return tuple(rows), tuple(tensors)


def _nested(rows: Ragged, known: list[torch.Tensor]) -> torch.Tensor:
    """Return a nested tensor of shape ``(B, *, ...)``.

    Args:
        rows: The rows.
        known: Offsets of the batch's other fields: taken from there where they are equal, else added.
    """
    offsets = next((other for other in known if np.array_equal(other.numpy(), rows.offsets)), None)
    if offsets is None:
        offsets = fresh(rows.offsets)
        known.append(offsets)
    lengths = rows.lengths
    shortest, longest = (int(lengths.min()), int(lengths.max())) if len(lengths) else (0, 0)
    # With the lengths' bounds at hand, attention on a device need not fetch them.
    nested: torch.Tensor = torch.nested.nested_tensor_from_jagged(
        fresh(rows.values), offsets, min_seqlen=shortest, max_seqlen=longest
    )
    return nested
