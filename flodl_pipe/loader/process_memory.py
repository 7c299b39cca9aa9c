"""Memory that reader processes share with us: one nameless file, mapped by all, gone with the last of them.

Rows go through it, so that only messages of a few bytes cross a pipe. It is divided into *lanes*. A lane holds what one
task needs: the samples that are asked for, and their rows, field by field. A memory file is used where the system has
them, because ``/dev/shm``, where other shared memory lies, holds 64 MiB in many containers.

::

    lane 0: samples | repeats | field 0 | field 1 ...      lane 1: ...

Shape letters: ``R`` rows of a lane.
"""

import mmap
import os
import sys
import tempfile
import weakref
from multiprocessing import reduction
from typing import Any, final

import numpy as np

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.errors import StagingError
from flodl_pipe.units import format_bytes

__all__ = ["Lane", "LaneLayout", "SharedMemory"]

_ALIGN_BYTES = 64
_PAGE_BYTES = mmap.PAGESIZE


@final
class SharedMemory:
    """A nameless file of memory. Pickled for a process that is being started, it is the same memory there.

    Args:
        num_bytes: How much; nothing is taken before it is written to.
        descriptor: An open file to use; None: a new one.

    Attributes:
        descriptor: The file. It is closed with this object.

    Raises:
        StagingError: if the system gives none.
    """

    def __init__(self, num_bytes: int, descriptor: int | None = None) -> None:
        self.num_bytes = max(num_bytes, 1)
        try:
            self.descriptor = _new_file(self.num_bytes) if descriptor is None else descriptor
        except OSError as error:
            raise StagingError(
                f"no memory of {format_bytes(num_bytes)} to share with reader processes ({error}); lower "
                "loader.batch_size or loader.readers, or raise the limit on open files (ulimit -n)"
            ) from error
        self.close = weakref.finalize(self, os.close, self.descriptor)
        self.close.atexit = False

    def map(self, *, is_private: bool = False) -> mmap.mmap:
        """Map all of it; with ``is_private``, what is written stays in this process. The map outlives this object."""
        access = mmap.ACCESS_COPY if is_private else mmap.ACCESS_WRITE
        return mmap.mmap(self.descriptor, self.num_bytes, access=access)

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self.num_bytes, reduction.DupFd(self.descriptor))


def _received(num_bytes: int, passed: Any) -> SharedMemory:
    return SharedMemory(num_bytes, passed.detach())


def _new_file(num_bytes: int) -> int:
    if sys.platform == "linux":
        descriptor = os.memfd_create("flodl_pipe_processes", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, num_bytes)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@final
class Lane:
    """One lane as arrays.

    Attributes:
        samples: int64, shape ``(R,)``.
        repeats: int64, shape ``(R,)``.
        fields: By name, shape ``(R, *field.shape)``; none for a ragged spec, whose rows are sent instead.
    """

    __slots__ = ("fields", "repeats", "samples")

    def __init__(self, samples: IndexArray, repeats: IndexArray, fields: dict[str, Array]) -> None:
        self.samples, self.repeats, self.fields = samples, repeats, fields


@final
class LaneLayout:
    """Where things lie in lanes.

    Args:
        spec: Stored row.
        num_rows: Rows of a lane, ``R``.
    """

    def __init__(self, spec: SampleSpec, num_rows: int) -> None:
        self.num_rows = num_rows
        self._fields = () if spec.is_ragged else spec.fields
        self._offsets, end = [], _aligned(2 * 8 * num_rows, _ALIGN_BYTES)
        for field in self._fields:
            self._offsets.append(end)
            end = _aligned(end + field.row_bytes * num_rows, _ALIGN_BYTES)
        self.lane_bytes = _aligned(end, _PAGE_BYTES)

    def lane(self, memory: mmap.mmap, number: int) -> Lane:
        """Return a lane of mapped memory."""
        begin, shape = number * self.lane_bytes, (self.num_rows,)
        samples: IndexArray = np.ndarray(shape, np.int64, memory, begin)
        repeats: IndexArray = np.ndarray(shape, np.int64, memory, begin + 8 * self.num_rows)
        fields: dict[str, Array] = {
            field.name: np.ndarray((self.num_rows, *field.shape), field.dtype, memory, begin + offset)
            for field, offset in zip(self._fields, self._offsets, strict=True)
        }
        return Lane(samples, repeats, fields)


def _aligned(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
