"""What ``job=verify`` finds out about the data itself: is it a function of the index, whole, and within its limits?

Everything else rests on these: a source that gives other bytes the second time gives another stream, whoever reads it.
"""

from collections.abc import Callable, Iterator
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
from flodl_pipe.jobs.verify_reads import ReadsOfSamples
from flodl_pipe.jobs.verify_values import Limits, check_values
from flodl_pipe.reports.figures import plural
from flodl_pipe.sources.keyed_choice import keyed_choice
from flodl_pipe.sources.protocol import RaggedSource, Source
from flodl_pipe.sources.purity import require_pure
from flodl_pipe.sources.stream_protocol import Stream
from flodl_pipe.sources.text import Text

__all__ = ["DataCheck", "check_data", "limits_of"]

_PURE_SAMPLES = 64
_CHANGES = "the content was fingerprinted twice"


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
    yield _tried("purity", lambda: _pure(source, seed, skips=skips))
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
    yield _tried("values", lambda: check_values(source, limits, deadline_s, skips=skips))


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


def _pure(source: Source | Stream, seed: int, *, skips: bool) -> str:
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
    reads = ReadsOfSamples(source, skips=skips)
    try:
        _same_twice(source, chosen)
    except Exception:
        kept = reads.readable(chosen)
        if len(kept) == len(chosen):
            raise
        chosen = kept
        _same_twice(source, chosen)
    if not len(chosen):
        return f"not looked at{reads.told()}"
    return f"{plural(len(chosen), 'sample')} are the same when read again{reads.told()}"


def _same_twice(source: Source, chosen: IndexArray) -> None:
    if isinstance(source, RaggedSource) and source.spec.is_ragged:
        _ragged_pure(source, chosen)
    else:
        require_pure(source, chosen)


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


def _widest(limits: list[int | None]) -> int | None:
    known = [limit for limit in limits if limit is not None]
    return max(known) if len(known) == len(limits) else None
