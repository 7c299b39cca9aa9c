"""How delivered rows become what the loop gets: three ways, chosen once from the fields and the transforms.

::

    in place    rows are delivered straight into slots: no transforms, and fields of fixed shape
    one pass    rows are delivered to a reader's scratch, and one pass of arithmetic writes slots: fused transforms
    apart       each batch is made as tensors of its own: ragged rows, users' functions, any other transform

The first two cost no allocation and no torch operation in the readers.
"""

from dataclasses import dataclass, replace
from typing import final

from flodl_pipe.batch.batch import Batch
from flodl_pipe.batch.ragged import Columns
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.errors import ConfigError
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.loader.groups import Made
from flodl_pipe.loader.lookahead import Draw
from flodl_pipe.loader.parts import Parts
from flodl_pipe.loader.torch_modes import outside_of_the_loop
from flodl_pipe.sampling.collate import pass_through
from flodl_pipe.transforms.protocol import ArrayTransform

__all__ = ["Making", "making_for"]


@final
@dataclass(frozen=True)
class Making:
    """The way that was chosen.

    Attributes:
        rows: Delivered rows, under the names that the batch will have.
        spec: Fields of a batch as far as they are known beforehand; what memory is reckoned by.
        parts: Collation and transforms.
        one_pass: The fused transforms; None in the other ways.
        is_apart: Whether batches are made apart.
        is_known: Whether :attr:`spec` is what they will hold, and not a guess from what functions are given.
    """

    rows: SampleSpec
    spec: SampleSpec
    parts: Parts
    one_pass: ArrayTransform | None
    is_apart: bool
    is_known: bool = True

    @property
    def unit(self) -> int:
        """Rows of a global batch that must stay on one rank together."""
        return 2 if self.parts.chain.scope == "pair" else 1

    def pass_bytes(self, step_rows: int) -> int:
        """Return what fused transforms take in each reader: rows before them, and their own scratch."""
        return 0 if self.one_pass is None else step_rows * self.rows.row_bytes + self.one_pass.scratch_bytes

    def draw_for(self, seed: int) -> Draw | None:
        """Return what draws for the fused transforms; None without them."""
        one_pass = self.one_pass
        if one_pass is None:
            return None
        return lambda samples, repeats, epoch: one_pass.draw(PickKeys(samples, repeats, epoch, seed))

    def make(self, rows: Columns, keys: PickKeys) -> Made:
        """Make one batch of delivered rows.

        Args:
            rows: The rows, under the batch's names.
            keys: Their keys.

        Raises:
            TransformError: if a transform or the collate function breaks its contract.
        """
        with outside_of_the_loop(without_graph=True):
            alone = self.parts.passes_through
            names, tensors = pass_through(rows) if alone else self.parts.collate(rows)
            if self.parts.chain.is_empty:
                return names, tensors
            # A sample that passes through is a batch of one row to a transform.
            given = tuple(tensor[None] for tensor in tensors) if alone else tensors
            batch = self.parts.chain(Batch(names, given, pick_keys=keys), keys)
            return batch.names, tuple(tensor[0] for tensor in batch.values()) if alone else batch.values()


def making_for(rows: SampleSpec, parts: Parts, world_size: int = 1) -> Making:
    """Choose how batches are made.

    Args:
        rows: Delivered rows, under the names that the batch will have.
        parts: Collation and transforms.
        world_size: Number of ranks.

    Raises:
        ConfigError: if the collation cannot take the fields, or a transform looks at a batch that ranks share.
        TransformError: if a bundled transform cannot work on the fields.
    """
    chain = parts.chain
    if chain.scope == "batch" and world_size > 1:
        raise ConfigError.at(
            "transforms",
            f"a transform of scope 'batch' ({', '.join(chain.names)}) looks at all rows of a batch, and {world_size} "
            "ranks share each global batch; use one rank, or a transform of scope 'row' or 'pair'",
        )
    if parts.passes_through:
        if chain.scope != "row":
            raise ConfigError.at(
                "transforms",
                f"a transform of scope '{chain.scope}' looks at several rows, and loader.batch_size=null delivers one "
                "sample at a time; set a batch size, or take the transform out",
            )
        made = chain.output(rows)  # a bundled transform that cannot work on the fields says so now
        return Making(rows, _as_if_fixed(made or rows), parts, None, is_apart=True, is_known=made is not None)
    parts.collate.check(rows)
    collated = parts.collate.output(rows)
    if collated is not None and collated == rows and not rows.is_ragged:
        if chain.is_empty:
            return Making(rows, rows, parts, None, is_apart=False)
        one_pass = chain.array_pass(rows)
        if one_pass is not None:
            return Making(rows, one_pass.spec, parts, one_pass, is_apart=False)
    made = None if collated is None else chain.output(collated)
    spec = made or collated or rows
    return Making(rows, _as_if_fixed(spec), parts, None, is_apart=True, is_known=made is not None)


def _as_if_fixed(spec: SampleSpec) -> SampleSpec:
    return SampleSpec(
        tuple(
            replace(field, shape=(field.expected_length, *field.shape), is_ragged=False) if field.is_ragged else field
            for field in spec
        )
    )
