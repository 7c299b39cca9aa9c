"""Watching what torch work really touches: a declaration that is wrong would make every check of it worthless.

While work runs, a dispatch mode sees each of torch's calls with its operands, and the operator's schema says which of
them it writes. What is not device memory is nobody's concern: it is the work's own.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flodl_pipe.devices.simulated_memory import Block
from flodl_pipe.errors import LoaderError

__all__ = ["WorkWatch"]


@final
class WorkWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own __init_subclass__
    """Holds work to what was declared.

    Args:
        block_of: Returns the device memory that a tensor lies in; None for any other.
        reads: Blocks that the work reads.
        writes: Blocks that it writes, and may read too; None: it may write what it reads, and that is collected.

    Attributes:
        written: Device tensors that were written.
    """

    def __init__(
        self, block_of: Callable[[torch.Tensor], Block | None], reads: Sequence[Block], writes: Sequence[Block] | None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.written: list[torch.Tensor] = []
        self._block_of = block_of
        self._writes = frozenset(reads if writes is None else writes)
        self._reads = self._writes.union(reads)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else torch (2.13) would import its compiler at the first call, only to keep it out of here: 800 modules.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Check a call and make it."""
        named = kwargs or {}
        for position, argument in enumerate(func._schema.arguments):  # noqa: SLF001  # the only way to it
            value = args[position] if position < len(args) else named.get(argument.name)
            is_write = argument.alias_info is not None and argument.alias_info.is_write
            for tensor in _tensors(value):
                self._check(tensor, str(func), is_write=is_write)
        return func(*args, **named)

    def _check(self, tensor: torch.Tensor, call: str, *, is_write: bool) -> None:
        block = self._block_of(tensor) if tensor.numel() else None
        if block is None:
            return
        if block not in (self._writes if is_write else self._reads):
            verb = "writes" if is_write else "reads"
            raise LoaderError(
                f"work {verb} {tuple(tensor.shape)} of {block} by {call}, which was not declared; name the tensor in "
                f"{verb}=, for its order to be checked"
            )
        if is_write:
            self.written.append(tensor)


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
