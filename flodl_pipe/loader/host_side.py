"""What readers make, where batches are delivered to a device: stored rows, or all of a batch but its transforms.

::

    as stored    readers fill slots with stored rows, narrow; the device slices and widens them, and transforms
    delivered    what ``deliver`` does cannot be done on the device: readers deliver, the device transforms
    made         collation is on the host (padded, ragged, a function of the user's): readers make tensors

Only stored rows can stay on the device between epochs.
"""

from dataclasses import dataclass, replace
from typing import final

from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.loader.making import Making
from flodl_pipe.loader.parts import Parts
from flodl_pipe.sources.protocol import Source
from flodl_pipe.sources.stream_protocol import Stream
from flodl_pipe.staging.device_rows import DeviceRows
from flodl_pipe.transforms.chain import Chain

__all__ = ["HostSide", "host_side"]


@final
@dataclass(frozen=True)
class HostSide:
    """The readers' part of making batches.

    Attributes:
        making: What readers make.
        rows: How the device delivers stored rows; None where readers deliver.
        why: Why they do, in words; empty where they need not.
        chain: Transforms that are left for the device.
    """

    making: Making
    rows: DeviceRows | None
    why: str
    chain: Chain


def host_side(source: Source | Stream, making: Making) -> HostSide:
    """Return the readers' part of how batches are made.

    Args:
        source: The data.
        making: How batches are made.
    """
    parts, nothing = making.parts, Chain(())
    collated = None if parts.passes_through else parts.collate.output(making.rows)
    if collated is None or collated != making.rows or making.rows.is_ragged:
        why = "samples pass one by one" if parts.passes_through else f"loader.collate={parts.collate.tag} is done there"
        own = replace(making, parts=replace(parts, chain=nothing), one_pass=None, is_apart=True)
        return HostSide(own, None, f"readers make batches: {why}", parts.chain)
    rows = DeviceRows.of(source) if isinstance(source, Source) and not source.spec.is_ragged else None
    spec: SampleSpec = making.rows if rows is None or not isinstance(source, Source) else source.spec
    plain = Making(spec, spec, Parts(max_skipped=parts.max_skipped), None, is_apart=False)
    why = "" if rows is not None else "readers deliver: the source does not say that to deliver is only to copy fields"
    return HostSide(plain, rows, why, parts.chain)
