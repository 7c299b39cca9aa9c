"""A source on its way to reader processes: pickled once, into memory that all of them map.

The bytes of its arrays and tensors lie beside the pickle, not in it. Each process maps them privately: they are there
once for all processes, and what a dataset changes in place, it changes for itself, as in a process of torch's.

Nothing but our own memory is unpickled, and only by the processes that we start.
"""

import io
import sys
from collections.abc import Iterator, Mapping
from multiprocessing import reduction
from types import ModuleType
from typing import Any, Final, final

import numpy as np
import torch

from flodl_pipe.errors import LoaderError
from flodl_pipe.loader.process_memory import SharedMemory
from flodl_pipe.sources.protocol import Source

__all__ = ["REMEDIES", "PickledSource", "pickle_source"]

REMEDIES: Final = (
    "define it at the top level of a module, and open files when samples are read, not before; or take "
    "loader.reader_kind=thread, or loader.reader_start=fork, which pickles nothing"
)
"""What to do about a source that does not pickle."""

_ALIGN_BYTES = 64
_PROTOCOL = 5
_MAX_DEPTH = 6
_NUMPY_TOO = frozenset(
    {
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    }
)


@final
class PickledSource:
    """A source as bytes. Pickles itself as a descriptor, for a process that is being started.

    Args:
        memory: The pickle, and buffers after it.
        ends: Where the pickle ends, and each buffer begins and ends.
    """

    def __init__(self, memory: SharedMemory, ends: tuple[int, tuple[tuple[int, int], ...]]) -> None:
        self._memory, self._ends = memory, ends

    @property
    def num_bytes(self) -> int:
        """Bytes of memory."""
        return self._memory.num_bytes

    def close(self) -> None:
        """Let go of the memory here."""
        self._memory.close()

    def load(self) -> Source:
        """Make the source in this process.

        Raises:
            Exception: what its unpickling raises.
        """
        # The map lives as long as the arrays that lie in it.
        data = memoryview(self._memory.map(is_private=True))
        end, buffers = self._ends
        loads: Any = reduction.ForkingPickler.loads
        source: Source = loads(data[:end], buffers=[data[first:last] for first, last in buffers])
        return source

    def __reduce__(self) -> tuple[Any, ...]:
        return PickledSource, (self._memory, self._ends)


@final
class _Pickler(reduction.ForkingPickler):
    """Pickles tensors by value: torch's own way for processes moves the user's tensors to other memory."""

    def reducer_override(self, thing: object) -> Any:
        if type(thing) is torch.Tensor and _is_an_array(thing):
            return torch.from_numpy, (thing.numpy(),)
        if isinstance(thing, torch.Tensor | torch.TypedStorage | torch.UntypedStorage):
            return thing.__reduce_ex__(_PROTOCOL)
        return NotImplemented


def _is_an_array(tensor: torch.Tensor) -> bool:
    """Whether a tensor is plain memory that NumPy knows. Views that repeat values are not: they would grow."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and tensor.dtype in _NUMPY_TOO
        and tensor.is_contiguous()
    )


def pickle_source(source: Source) -> PickledSource:
    """Pickle a source.

    Raises:
        LoaderError: if it does not pickle; it names the part that does not, says why it must, and what to do.
        StagingError: if there is no memory for it.
    """
    try:
        data, buffers = _dump(source)
    except Exception as error:
        found = next(_culprits(source, "the source", 0, set()), None)
        what = "" if found is None else f" ({found[0]} is {_shown(found[1])})"
        raise LoaderError(
            f"the dataset cannot be sent to reader processes{what}: {error}. Processes get a pickled copy "
            f"of the dataset: {REMEDIES}"
        ) from error
    if not _has_main_file() and b"__main__" in data:
        raise LoaderError(
            f"the dataset needs what was typed into an interpreter or a notebook, which exists in this "
            f"process alone, so reader processes cannot make it again: {REMEDIES}"
        )
    ends, end = [], len(data)
    for buffer in buffers:
        begin = -(-end // _ALIGN_BYTES) * _ALIGN_BYTES
        end = begin + buffer.nbytes
        ends.append((begin, end))
    memory = SharedMemory(end)
    with memory.map() as mapped:
        mapped[: len(data)] = data
        for buffer, (begin, end) in zip(buffers, ends, strict=True):
            mapped[begin:end] = buffer
    return PickledSource(memory, (len(data), tuple(ends)))


def _has_main_file() -> bool:
    """Whether another process can import the main module: it was no interpreter, notebook or ``python -c``."""
    main = sys.modules.get("__main__")
    return getattr(main, "__spec__", None) is not None or getattr(main, "__file__", None) is not None


def _dump(thing: object) -> tuple[bytes, list[memoryview]]:
    """Return a thing's pickle, and the memory of the arrays in it."""
    file, buffers = io.BytesIO(), list[memoryview]()
    make: Any = _Pickler  # its type hides the arguments that it passes on
    make(file, _PROTOCOL, True, lambda buffer: _keep(buffer, buffers)).dump(thing)
    return file.getvalue(), buffers


def _keep(buffer: Any, buffers: list[memoryview]) -> bool:
    buffers.append(buffer.raw())
    return False


def _culprits(thing: object, path: str, depth: int, seen: set[int]) -> Iterator[tuple[str, object]]:
    """Yield the innermost parts of a thing that do not pickle: where they are, and what."""
    if depth > _MAX_DEPTH or id(thing) in seen or _pickles(thing):
        return
    seen.add(id(thing))
    for place, part in _parts(thing, path):
        yield from _culprits(part, place, depth + 1, seen)
    yield path, thing


def _parts(thing: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(thing, Mapping):
        yield from ((f"{path}[{key!r}]", value) for key, value in list(thing.items()))
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from ((f"{path}[{place}]", value) for place, value in enumerate(thing))
    elif not isinstance(thing, type | ModuleType | np.ndarray):
        held: Mapping[str, object] = getattr(thing, "__dict__", {})
        names = {"_reader": "", "_dataset": "the dataset"}  # our own, between a source and the user's dataset
        for name, value in list(held.items()):
            inner = names.get(name)
            yield (f"{path}.{name}" if inner is None else inner or path), value


def _pickles(thing: object) -> bool:
    try:
        _dump(thing)
    except Exception:  # noqa: BLE001 - whatever it is, it does not pickle
        return False
    return True


def _shown(thing: object) -> str:
    text = repr(thing)
    return text if len(text) <= 80 else f"{text[:77]}..."
