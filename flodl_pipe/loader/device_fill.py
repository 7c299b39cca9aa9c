"""Samples that are uploaded before they are asked for: where the whole set is to be on the device, front to back."""

import logging
from collections.abc import Callable
from typing import final

import numpy as np

from flodl_pipe.arrays import ByteArray, IndexArray
from flodl_pipe.batch.ragged import Columns
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.devices.protocol import Event
from flodl_pipe.errors import DeviceMemoryError
from flodl_pipe.loader.upload import Upload
from flodl_pipe.staging.sample_pool import SamplePool

__all__ = ["CHUNK_BYTES", "DeviceFill", "chunk_bytes", "chunk_rows"]

_log = logging.getLogger("flodl_pipe")

CHUNK_BYTES = 4 << 20
"""Large enough for the bus, small enough that a step that waits goes soon; less on a small device."""

_CHUNK_OF_DEVICE = 64
# Where a row goes.
_NUMBER_BYTES = 16


def chunk_rows(row_bytes: int, device_bytes: int) -> int:
    """Return the rows of a chunk on a device of so much memory."""
    return max(1, min(CHUNK_BYTES, device_bytes // _CHUNK_OF_DEVICE) // max(1, row_bytes + _NUMBER_BYTES))


@final
class DeviceFill:
    """Fills a pool chunk by chunk; used by the thread that uploads.

    Args:
        pool: The pool.
        upload: Moves bytes.
        spec: A row as it is uploaded.
        read: Returns the stored rows of some samples, valid until its next call.
        chunk_rows: Rows of a chunk.
    """

    def __init__(
        self,
        pool: SamplePool,
        upload: Upload,
        spec: SampleSpec,
        read: Callable[[IndexArray], Columns],
        *,
        chunk_rows: int,
    ) -> None:
        self._pool = pool
        self._upload = upload
        self._spec = spec
        self._read = read
        self._rank = 0
        self._chunk_rows = chunk_rows
        self._memory: ByteArray | None = None
        self._copied: Event | None = None

    def read(self) -> tuple[IndexArray, Columns] | None:
        """Return the next samples that are missing, and their stored rows; None where there are no more.

        A fault of the source ends the filling only: the reader that meets it raises it at its step.
        """
        samples, self._rank = self._pool.missing(self._rank, self._chunk_rows)
        if not len(samples):
            return None
        try:
            return samples, self._read(samples)
        except Exception as error:  # noqa: BLE001 - the reader that meets it again raises it in the loop
            _log.info("the set is not read ahead any more: %s", error)
            return None

    def upload(self, chunk: tuple[IndexArray, Columns]) -> None:
        """Upload what was read.

        Raises:
            DeviceMemoryError: if the device has no memory left.
        """
        samples, stored = chunk
        upload, device = self._upload, self._upload.device
        if self._copied is not None:
            device.synchronize(self._copied)
        if self._memory is None:
            self._memory = device.host_slab(chunk_bytes(self._spec, self._chunk_rows))
        admission = self._pool.admission(samples)
        fields, begin = {}, 0
        try:
            for field in self._spec:
                size = len(samples) * field.row_bytes
                part = self._memory[begin : begin + size]
                column = stored[field.name]
                device.host_writes(part)
                part[:] = np.ascontiguousarray(column).reshape(-1).view(np.uint8)
                fields[field.name] = upload.copy_in(part).view(len(samples), field.row_bytes)
                begin += size
            begin = -(-begin // 8) * 8
            (index,) = upload.numbers([admission.index], self._memory[begin:])
        finally:
            self._copied = device.record(upload.stream)
        self._pool.admit(admission, index, fields, ahead=True)
        if self._pool.refusal is not None:
            raise DeviceMemoryError(str(self._pool.refusal))


def chunk_bytes(spec: SampleSpec, num_rows: int) -> int:
    """Return what a chunk of rows takes, with the numbers that go along: on the host, and on the device meanwhile."""
    return num_rows * (spec.row_bytes + _NUMBER_BYTES) + 8
