"""The values of every sample, as ``job=verify`` looks at them: read once, and held to the limits of a config."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.batch.ragged import Ragged
from flodl_pipe.errors import SourceError
from flodl_pipe.jobs.verify_reads import ReadsOfSamples, Values
from flodl_pipe.reports.figures import plural
from flodl_pipe.sources.protocol import Source
from flodl_pipe.sources.stream_protocol import RaggedStream, Stream
from flodl_pipe.units import format_bytes

__all__ = ["Limits", "check_values"]

_BLOCK_BYTES = 8 << 20
_MAX_BLOCK = 4096
_IDS = ("input", "input_ids", "target")
_IGNORED = -100  # a target that does not count


@final
@dataclass(frozen=True)
class Limits:
    """What a config says about values.

    Attributes:
        num_ids: Token ids are below this; None: nothing is said.
        num_classes: Labels are below this, likewise.
    """

    num_ids: int | None = None
    num_classes: int | None = None


def check_values(source: Source | Stream, limits: Limits, deadline_s: float | None, *, skips: bool) -> str:
    """Read every sample and check its values; return what was read and what was checked.

    Args:
        source: The data.
        limits: What its values must keep to.
        deadline_s: ``time.monotonic()`` after which no further block is read; None: no limit.
        skips: Whether samples that cannot be read are left out, and counted.

    Raises:
        SourceError: naming the first sample with a value outside.
        Exception: what reading raises, where it is not skipped.
    """
    block = max(1, min(_MAX_BLOCK, _BLOCK_BYTES // max(1, source.delivered.row_bytes)))
    if isinstance(source, Stream):
        done, checked = _checked(_stream_blocks(source, block), limits, deadline_s)
        of = told = ""
    else:
        reads = ReadsOfSamples(source, skips=skips)
        done, checked = _checked(_blocks(len(source), reads, block), limits, deadline_s)
        is_whole = done + reads.num_skipped == len(source)
        of = "" if is_whole else f" of {len(source):,}, no time for more (job.max_s)"
        told = reads.told()
    read = f"{plural(done, 'sample')}{of} read, {format_bytes(done * source.spec.row_bytes)}"
    if not done:
        return f"{read}{told}"
    if not checked:
        return f"{read}; no limits are stated for them (source.vocab_size, source.num_classes){told}"
    rules = []
    if limits.num_ids is not None and checked & set(_IDS):
        rules.append(f"ids are within 0 .. {limits.num_ids - 1}")
    if limits.num_classes is not None and "label" in checked:
        rules.append(f"labels are within 0 .. {limits.num_classes - 1}")
    return f"{read}; {', '.join(rules)}{told}"


def _checked(
    blocks: Iterator[tuple[IndexArray, Values]], limits: Limits, deadline_s: float | None
) -> tuple[int, set[str]]:
    """Check blocks of samples; return how many were read, and the fields that have a limit."""
    done = 0
    checked: set[str] = set()
    for samples, delivered in blocks:
        checked |= {name for name, column in delivered.items() if _check(name, column, limits, samples)}
        done += len(samples)
        if deadline_s is not None and time.monotonic() > deadline_s:
            break
    return done, checked


def _blocks(num_samples: int, reads: ReadsOfSamples, block: int) -> Iterator[tuple[IndexArray, Values]]:
    for first in range(0, num_samples, block):
        yield from reads.delivered(np.arange(first, min(first + block, num_samples), dtype=np.int64))


def _stream_blocks(stream: Stream, block: int) -> Iterator[tuple[IndexArray, Values]]:
    done = 0
    for lane in range(stream.num_lanes):
        reader = stream.open_lane(lane, seed=0, epoch=0, shuffle=False)
        try:
            got = block
            while got == block:
                stored = stream.spec.empty(block)
                got = reader.read_into(stored, 0, block)
                if got:
                    kept = {name: rows[:got] for name, rows in stored.items()}
                    yield np.arange(done, done + got), _delivered(stream, kept)
                done += got
        finally:
            reader.close()


def _delivered(stream: Stream, stored: Mapping[str, Array]) -> Values:
    if isinstance(stream, RaggedStream) and stream.delivered.is_ragged:
        return stream.deliver_rows(stored)
    out = stream.delivered.empty(len(next(iter(stored.values()))))
    stream.deliver(stored, out)
    return out


def _check(name: str, column: Array | Ragged, limits: Limits, samples: IndexArray) -> bool:
    """Check one delivered field against its limit; return whether there is one.

    Raises:
        SourceError: naming the first sample with a value outside.
    """
    limit = limits.num_classes if name == "label" else limits.num_ids if name in _IDS else None
    values = column.values if isinstance(column, Ragged) else column
    if limit is None or values.dtype.kind not in "iu":
        return False
    outside = (values < 0) | (values >= limit)
    if name == "target":
        outside &= values != _IGNORED
    if outside.any():
        place = int(np.argmax(outside.reshape(len(values), -1).any(axis=1)))
        value = values[place][outside[place]].reshape(-1)[0] if values.ndim > 1 else values[place]
        row = int(np.searchsorted(column.offsets, place, side="right")) - 1 if isinstance(column, Ragged) else place
        raise SourceError(
            f"sample {samples[row]}: field {name!r} holds {value}, and it must be within 0 .. {limit - 1}"
        )
    return True
