"""What a described cluster's plan says in words: its size, its ranks, what limits it, and what to bear in mind."""

from collections.abc import Sequence

from flodl_pipe.config.job import PlanJob
from flodl_pipe.config.root import Config
from flodl_pipe.jobs.describe import batch_size_of, last_batch
from flodl_pipe.jobs.plan_cluster_data import ClusterData
from flodl_pipe.jobs.plan_cluster_hosts import Alike, Places, shown_lines
from flodl_pipe.jobs.plan_cluster_shares import EpochRows
from flodl_pipe.jobs.plan_cluster_tiers import HostFinds
from flodl_pipe.reports.figures import plural
from flodl_pipe.units import format_bytes, format_duration

__all__ = ["cluster_rows", "note_rows", "rank_rows", "reading_rows"]

Rows = tuple[tuple[str, str], ...]

# Less is no wait that anybody would see.
_NOTICEABLE = 1.02
# An epoch that finds less than this part of what tiers find in the end is told of.
_NEARLY = 0.9
_MOST_DEVICES = 4


def cluster_rows(config: Config, places: Places, data: ClusterData, shares_why: str) -> Rows:
    """Return how large a cluster is, and how its steps are."""
    steps, each = data.steps, ""
    if config.loader.global_batch_size is None and config.sampling.batch_sampler is None:
        each = f", {plural(config.loader.batch_size or 1, 'row')} x {plural(places.num_ranks, 'rank')}"
    batch = f"{batch_size_of(config, data.global_batch)}{each}, {format_bytes(data.global_batch * data.row_bytes)}"
    if steps is not None:
        count, last = f"{steps.num_steps():,}", last_batch(steps)
    else:
        known = data.num_samples is not None
        count = f"about {(data.num_samples or 0) // data.global_batch:,}" if known else "not known before the end"
        last = "as the end of the stream comes"
    return (
        ("world", f"{plural(places.num_ranks, 'rank')} on {plural(places.num_hosts, 'host')}"),
        ("data", data.told),
        ("global batch", batch),
        ("steps an epoch", count),
        ("last batch", last),
        ("shares", shares_why),
    )


def rank_rows(places: Places, groups: Sequence[Alike], rows: Sequence[int], epoch: EpochRows | None) -> Rows:
    """Return which ranks are where, and what each takes."""
    lines = [_ranks(places, group, rows, epoch) for group in groups]
    hidden = sum(group.num_hosts for group in groups[10:-1])
    return tuple(shown_lines(lines, ("...", f"{plural(hidden, 'host')} more")))


def _ranks(places: Places, group: Alike, rows: Sequence[int], epoch: EpochRows | None) -> tuple[str, str]:
    last = group.first_rank + group.num_hosts * group.num_ranks - 1
    label = f"{group.first_rank:,}" if last == group.first_rank else f"{group.first_rank:,} .. {last:,}"
    devices = [places.layout.slots[rank].device for rank in group.ranks]
    named = [device for device in devices if device is not None]
    where = f" ({', '.join(named)})" if named else ""
    if len(named) > _MOST_DEVICES:
        where = f" ({named[0]} .. {named[-1]})"
    parts: list[list[int]] = []
    for rank in group.ranks:
        if parts and parts[-1][1] == rows[rank]:
            parts[-1][0] += 1
        else:
            parts.append([1, rows[rank]])
    shares = ", ".join(
        shown_lines([f"{count} x {share:,}" if count > 1 else f"{share:,}" for count, share in parts], "...")
    )
    text = f"{group.names}{where}: {shares} rows"
    if epoch is not None:
        of_epoch = [epoch.of(rank) for rank in group.ranks]
        low, high = min(of_epoch), max(of_epoch)
        each = "" if group.num_ranks * group.num_hosts == 1 else " each"
        text += f" a step, {low:,}{'' if low == high else f' .. {high:,}'} an epoch{each}"
    return label, text


def reading_rows(
    finds: Sequence[HostFinds] | None,
    kinds: Sequence[Alike],
    rows: Sequence[int],
    row_bytes: int,
    step_s: float | None,
    can_read: Sequence[int] | None,
) -> Rows:
    """Return whether reading limits the cluster, in words; nothing where a speed is not stated.

    Args:
        finds: What the ranks of each kind of host find as the config keeps samples; None where that is not told.
        kinds: The kinds of hosts.
        rows: Rows of a full step of each rank.
        row_bytes: Bytes of a row.
        step_s: Seconds of a step.
        can_read: What each host can read, in bytes a second.
    """
    if can_read is None:
        return (("reading", "what hosts can read is not stated (job.read_bytes_per_s)"),)
    if step_s is None:
        return (("reading", "no step time is known to hold it against (job.samples_per_s, or job.step_time_s)"),)
    found = []
    for epoch, is_first in (("epoch 1", True), ("later epochs", False)):
        took = []
        for at, kind in enumerate(kinds):
            part = 1.0
            if finds is not None:
                one = finds[at]
                part = (1 - one.first / one.rows) if is_first else one.read_end / one.rows
            need = part * sum(rows[rank] for rank in kind.ranks) * row_bytes
            took.append((need / can_read[kind.first_host], need / step_s, kind))
        slowest_s, need_per_s, kind = max(took, key=lambda one: one[0])
        if slowest_s <= step_s * _NOTICEABLE:
            found.append((epoch, "reading keeps up: no rank waits for data"))
            continue
        words = (
            f"reading limits: {kind.names} would have to read {format_bytes(need_per_s)}/s and can read "
            f"{format_bytes(can_read[kind.first_host])}/s; a step takes {format_duration(slowest_s)}, "
            f"{slowest_s / step_s:.1f} x as long, and every rank waits"
        )
        found.append((epoch, words))
    return tuple(found)


def note_rows(
    config: Config, job: PlanJob, data: ClusterData, finds: Sequence[HostFinds] | None, *, is_bound: bool
) -> Rows:
    """Return what to bear in mind: what figures mean, and what is not as one might think."""
    rows = []
    if finds is not None:
        text = "first: epoch 1; then: epoch 2; end: all tiers full; of the rows that a host's ranks ask for"
        if data.ahead:
            text += ". What is read ahead in epoch 1 is in the bytes read, and not yet in what is found"
        rows.append(("columns", text))
        if job.epochs == 1 and data.repeats == 1:
            rows.append(("job.epochs", "1: no sample comes twice in such a run, and nothing is kept"))
        end, second = (sum(getattr(one, name) for one in finds) for name in ("end", "second"))
        if second < _NEARLY * end:
            words = (
                "takes many epochs: of the samples that a tier would keep, a rank, or host, asks for its share in an "
                "epoch; sampling.order=lanes fills in one"
            )
            rows.append(("filling", words))
    if is_bound:
        limit = "three times its first share" if config.cluster.max_rows is None else f"{config.cluster.max_rows}"
        rows.append(("cluster.max_rows", f"{limit}: a rank is too fast for what it may have, and waits"))
    return tuple(rows)
