"""What ``job=verify`` finds out about the data itself: is it a function of the index, whole, and within its limits?

Everything else rests on these: a source that gives other bytes the second time gives another stream, whoever reads it.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.batch.ragged import Ragged
from flodl_pipe.config.source import SourceConfig
from flodl_pipe.config.source_images import CifarConfig, IdxConfig
from flodl_pipe.config.source_mixture import MixtureConfig
from flodl_pipe.config.source_stream import StreamConfig
from flodl_pipe.config.source_tokens import TokenShardsConfig
from flodl_pipe.errors import SourceError
from flodl_pipe.reports.figures import plural
from flodl_pipe.sources.keyed_choice import keyed_choice
from flodl_pipe.sources.protocol import RaggedSource, Source
from flodl_pipe.sources.purity import require_pure
from flodl_pipe.sources.stream_protocol import RaggedStream, Stream
from flodl_pipe.sources.text import Text
from flodl_pipe.units import format_bytes

__all__ = ["DataCheck", "Limits", "check_data", "limits_of"]

Values = Mapping[str, Array | Ragged]

_PURE_SAMPLES = 64
_BLOCK_BYTES = 8 << 20
_MAX_BLOCK = 4096
_IDS = ("input", "input_ids", "target")
_CHANGES = "the content was fingerprinted twice"
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


@final
@dataclass(frozen=True)
class DataCheck:
    """One check: its name, what was found, and whether it failed."""

    name: str
    found: str
    failed: bool = False


def limits_of(config: SourceConfig) -> Limits:
    """Return the limits that a section ``source`` states; of a mixture, what holds for all parts.

    The parts' own limits, which are tighter, each part checks itself on every read.
    """
    if isinstance(config, TokenShardsConfig | StreamConfig):
        return Limits(num_ids=config.vocab_size)
    if isinstance(config, IdxConfig | CifarConfig):
        return Limits(num_classes=config.num_classes)
    if isinstance(config, MixtureConfig):
        parts = [limits_of(part.source) for part in config.parts.values()]
        return Limits(_widest([part.num_ids for part in parts]), _widest([part.num_classes for part in parts]))
    return Limits()


def check_data(
    source: Source | Stream,
    limits: Limits,
    *,
    read_all: bool,
    deadline_s: float | None,
    seed: int,
    skips: bool = False,
) -> Iterator[DataCheck]:
    """Yield one check after the other.

    Args:
        source: The data.
        limits: What its values must keep to.
        read_all: Whether every byte and every sample is to be read.
        deadline_s: ``time.monotonic()`` after which no further sample is read; None: no limit.
        seed: Of the choice of samples that are read twice.
        skips: Whether samples that cannot be read are skipped, and so no fault.
    """
    pure = _tried("purity", lambda: _pure(source, seed))
    if skips and pure.failed and _unreadable(source, seed):
        pure = DataCheck("purity", "not looked at: among the samples to read twice is one that is skipped")
    yield pure
    if read_all:
        full = _tried("fingerprint", lambda: _fingerprint(source))
        if skips and full.failed and not full.found.startswith(_CHANGES):
            full = DataCheck("fingerprint", f"{source.fingerprint()}; over every byte there is none: {full.found}")
        yield full
    else:
        yield DataCheck("fingerprint", f"{source.fingerprint()}; not every byte was read (job.read_all=false)")
    if isinstance(source, Text):
        limits = Limits(num_ids=len(source.vocab))
    if not read_all:
        yield DataCheck("values", "not looked at (job.read_all=false)")
        return
    values = _tried("values", lambda: _values(source, limits, deadline_s))
    if skips and values.failed and not values.found.startswith("sample "):
        values = DataCheck("values", f"read up to a sample that is skipped (source.on_error=skip): {values.found}")
    yield values


def _tried(name: str, check: Callable[[], str]) -> DataCheck:
    try:
        return DataCheck(name, check())
    except Exception as error:  # noqa: BLE001 - a dataset of the user's may raise anything
        text = str(error) if isinstance(error, SourceError) else f"{type(error).__name__}: {error}"
        return DataCheck(name, text, failed=True)


def _fingerprint(source: Source | Stream) -> str:
    first, second = source.fingerprint(full=True), source.fingerprint(full=True)
    if first != second:
        raise SourceError(
            f"{_CHANGES}, as {first} and as {second}: the data changes while it is read, or "
            "the source is no function of the index"
        )
    covers = "every byte" if first.full else first.covers
    return f"{first}, twice the same, over {covers}"


def _pure(source: Source | Stream, seed: int) -> str:
    if isinstance(source, Stream):
        rows = 0
        for lane in range(source.num_lanes):
            once, again = (_lane_head(source, lane) for _ in range(2))
            if once[0] != again[0] or any(not np.array_equal(once[1][name], again[1][name]) for name in once[1]):
                raise SourceError(
                    f"lane {lane} is not the same when it is read again: two passes over its first "
                    f"{_PURE_SAMPLES} rows differ; whatever is random must follow from the shard and the epoch"
                )
            rows += once[0]
        return f"the first {plural(rows, 'row')} of {plural(source.num_lanes, 'lane')} are the same when read again"
    chosen = keyed_choice(len(source), _PURE_SAMPLES, seed)
    if isinstance(source, RaggedSource) and source.spec.is_ragged:
        _ragged_pure(source, chosen)
    else:
        require_pure(source, chosen)
    return f"{plural(len(chosen), 'sample')} are the same when read again"


def _unreadable(source: Source | Stream, seed: int) -> bool:
    """Return whether the samples that are to be read twice cannot even be read once."""
    if isinstance(source, Stream):
        return False
    chosen = keyed_choice(len(source), _PURE_SAMPLES, seed)
    try:
        if isinstance(source, RaggedSource) and source.spec.is_ragged:
            source.read_rows(chosen)
        else:
            source.read_into(chosen, np.arange(len(chosen), dtype=np.int64), source.spec.empty(len(chosen)))
    except Exception:  # noqa: BLE001 - a dataset of the user's may raise anything
        return True
    return False


def _ragged_pure(source: RaggedSource, chosen: IndexArray) -> None:
    first, second = source.read_rows(chosen), source.read_rows(chosen[::-1].copy())
    back = np.arange(len(chosen), dtype=np.int64)[::-1].copy()
    for name, column in first.items():
        again = second[name]
        other = again.take(back) if isinstance(again, Ragged) else again[back]
        for row, sample in enumerate(chosen.tolist()):
            one, two = (c.row(row) if isinstance(c, Ragged) else c[row] for c in (column, other))
            if one.shape != two.shape or one.tobytes() != two.tobytes():
                raise SourceError(
                    f"sample {sample} is not the same when it is read again: field {name!r} differs; a source must "
                    "give the same bytes for the same index"
                )


def _lane_head(stream: Stream, lane: int) -> tuple[int, dict[str, Array]]:
    out = {field.name: np.zeros((_PURE_SAMPLES, *field.shape), field.dtype) for field in stream.spec}
    reader = stream.open_lane(lane, seed=0, epoch=0, shuffle=False)
    try:
        return reader.read_into(out, 0, _PURE_SAMPLES), out
    finally:
        reader.close()


def _values(source: Source | Stream, limits: Limits, deadline_s: float | None) -> str:
    """Read every sample and check its values; return what was read and what was checked."""
    done, num_bytes = 0, 0
    checked: set[str] = set()
    for first, rows, delivered in _blocks(source):
        for name, column in delivered.items():
            if _check(name, column, limits, first):
                checked.add(name)
        done, num_bytes = done + rows, num_bytes + rows * source.spec.row_bytes
        if deadline_s is not None and time.monotonic() > deadline_s:
            break
    of = (
        ""
        if isinstance(source, Stream) or done == len(source)
        else f" of {len(source):,}, no time for more (job.max_s)"
    )
    read = f"{plural(done, 'sample')}{of} read, {format_bytes(num_bytes)}"
    if not checked:
        return f"{read}; no limits are stated for them (source.vocab_size, source.num_classes)"
    rules = []
    if limits.num_ids is not None and checked & set(_IDS):
        rules.append(f"ids are within 0 .. {limits.num_ids - 1}")
    if limits.num_classes is not None and "label" in checked:
        rules.append(f"labels are within 0 .. {limits.num_classes - 1}")
    return f"{read}; {', '.join(rules)}"


def _blocks(source: Source | Stream) -> Iterator[tuple[int, int, Values]]:
    """Yield every sample as delivered, in blocks, each with the number of its first and how many there are."""
    block = max(1, min(_MAX_BLOCK, _BLOCK_BYTES // max(1, source.delivered.row_bytes)))
    if isinstance(source, Stream):
        yield from _stream_blocks(source, block)
        return
    ragged = isinstance(source, RaggedSource) and source.spec.is_ragged
    for first in range(0, len(source), block):
        indices = np.arange(first, min(first + block, len(source)), dtype=np.int64)
        if ragged and isinstance(source, RaggedSource):
            yield first, len(indices), source.deliver_rows(source.read_rows(indices))
            continue
        stored, out = source.spec.empty(len(indices)), source.delivered.empty(len(indices))
        source.read_into(indices, indices - first, stored)
        source.deliver(stored, out)
        yield first, len(indices), out


def _stream_blocks(stream: Stream, block: int) -> Iterator[tuple[int, int, Values]]:
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
                    yield done, got, _delivered(stream, kept)
                done += got
        finally:
            reader.close()


def _delivered(stream: Stream, stored: Mapping[str, Array]) -> Values:
    if isinstance(stream, RaggedStream) and stream.delivered.is_ragged:
        return stream.deliver_rows(stored)
    out = stream.delivered.empty(len(next(iter(stored.values()))))
    stream.deliver(stored, out)
    return out


def _check(name: str, column: Array | Ragged, limits: Limits, first: int) -> bool:
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
        raise SourceError(f"sample {first + row}: field {name!r} holds {value}, and it must be within 0 .. {limit - 1}")
    return True


def _widest(limits: list[int | None]) -> int | None:
    known = [limit for limit in limits if limit is not None]
    return max(known) if len(known) == len(limits) else None
