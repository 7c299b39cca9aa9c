"""A source and its steps in words, for ``run`` and ``plan`` alike."""

from collections.abc import Sequence

from flodl_pipe.batch.spec import Field, SampleSpec
from flodl_pipe.config.root import Config
from flodl_pipe.loader.making import Making
from flodl_pipe.loader.statistics import Traffic
from flodl_pipe.reports.figures import plural, share
from flodl_pipe.sampling.steps import DropLast, EpochSteps
from flodl_pipe.sources.protocol import BundledSource, Source
from flodl_pipe.sources.stream_protocol import Stream
from flodl_pipe.staging.protocol import TierCount
from flodl_pipe.units import format_bytes

__all__ = [
    "batch_size_of",
    "fields",
    "last_batch",
    "last_batch_of_a_stream",
    "making_rows",
    "moved",
    "tokens_per_sample",
    "told",
]


def told(source: Source | Stream) -> tuple[tuple[str, str], ...]:
    """Return what a source tells about itself, as pairs of name and value."""
    if isinstance(source, BundledSource | Stream):
        return tuple((fact.name, fact.value) for fact in source.facts())
    return (("source", f"{type(source).__name__}, {plural(len(source), 'sample')}"),)


def fields(spec: SampleSpec) -> str:
    """Return the fields of a row and its size.

    >>> fields(SampleSpec.of(label=("uint8", ()), image=("uint8", (3, 32, 32))))
    'label uint8, image uint8 3x32x32; 3.00 KiB a row'
    """
    parts = [f"{field.name} {field.dtype} {_shape(field)}".rstrip() for field in spec]
    return f"{', '.join(parts)}; {format_bytes(spec.row_bytes)} a row"


def _shape(field: Field) -> str:
    return "x".join([*(("*",) if field.is_ragged else ()), *map(str, field.shape)])


def last_batch_of_a_stream(drop_last: DropLast) -> str:
    """Return what becomes of the samples at the end of a stream."""
    if drop_last is True:
        return "samples at the end that fill no batch are left out (sampling.drop_last=true)"
    return "the last batch of each epoch may be short (sampling.drop_last=false)"


def last_batch(steps: EpochSteps) -> str:
    """Return what becomes of the samples of an epoch that do not fill a batch.

    >>> from flodl_pipe.sampling.steps import Steps
    >>> last_batch(Steps(100, 32, True))
    'the last 4 samples of each epoch fill no batch and are left out (sampling.drop_last=true)'
    """
    if not steps.is_even:
        return f"as the batch sampler makes it; batches have at most {plural(steps.global_batch, 'row')}"
    rest = steps.num_picks % steps.global_batch
    if not rest:
        return "every batch is full"
    samples = plural(rest, "sample")
    if steps.drop_last is True:
        verbs = "fills no batch and is" if rest == 1 else "fill no batch and are"
        return f"the last {samples} of each epoch {verbs} left out (sampling.drop_last=true)"
    if steps.drop_last is False:
        return f"the last batch of each epoch has {samples} (sampling.drop_last=false)"
    repeated = steps.global_batch - rest
    return (
        f"the last batch of each epoch has {samples}, and {repeated:,} from the epoch's head that batch.valid marks "
        "(sampling.drop_last=pad)"
    )


def batch_size_of(config: Config, global_batch: int) -> str:
    """Return the rows of a step over all ranks, and the key that decides them."""
    if config.sampling.batch_sampler is not None:
        return f"at most {plural(global_batch, 'row')} (sampling.batch_sampler)"
    if config.loader.global_batch_size is not None:
        return f"{plural(global_batch, 'row')} (loader.global_batch_size)"
    if config.loader.batch_size is None:
        return "samples one by one, without a batch axis (loader.batch_size=null)"
    return f"{plural(global_batch, 'row')} (loader.batch_size)"


def making_rows(making: Making) -> tuple[tuple[str, str], ...]:
    """Return what becomes of delivered rows: collation, transforms, and how that is done."""
    chain = making.parts.chain
    if chain.is_empty and not making.is_apart:
        return ()
    rows = [("collate", making.parts.collate.tag)]
    rows += [(f"transform {name}", f"{tag} ({scope})") for name, tag, scope in chain.told()]
    if making.one_pass is not None:
        how = "one pass of arithmetic from rows to batch, in the readers"
    else:
        how = "each batch by itself, in the readers"
    return (*rows, ("made", how))


def tokens_per_sample(source: Source | Stream) -> int:
    """Return the tokens of a sample: of integer inputs with targets of the same one-dimensional shape, else 0."""
    shapes = {field.name: field.shape for field in source.delivered if field.dtype == "int64"}
    shape = shapes.get("input")
    return shape[0] if shape is not None and len(shape) == 1 and shapes.get("target") == shape else 0


def moved(tiers: Sequence[TierCount], traffic: Traffic, device: str) -> tuple[tuple[str, str], ...]:
    """Return where rows came from, tier by tier, and what was copied to the device.

    Args:
        tiers: What each tier did, in the order in which they are asked.
        traffic: What was read from the source and copied.
        device: Name of the device that batches are delivered to.
    """
    total = sum(tier.num_hits for tier in tiers) + traffic.source_rows
    rows = [(tier.name, _tier(tier, total)) for tier in tiers]
    if total:  # a stream counts nothing of the kind
        part = share(traffic.source_rows, total)
        rows.append(("source", f"{plural(traffic.source_rows, 'row')} ({part}), {format_bytes(traffic.source_bytes)}"))
    if device != "cpu":
        rows.append(("copied", f"{format_bytes(traffic.uploaded_bytes)} to {device}"))
    return tuple(rows)


def _tier(tier: TierCount, total: int) -> str:
    text = f"{plural(tier.num_hits, 'row')} ({share(tier.num_hits, total)}), holds {format_bytes(tier.held_bytes)}"
    if tier.num_keepers > 1:
        text += f" with {plural(tier.num_keepers - 1, 'other rank')}"
    if tier.filled_bytes:
        text += f", {format_bytes(tier.filled_bytes)} of it read ahead"
    return f"{text}; off: {tier.off}" if tier.off else text
