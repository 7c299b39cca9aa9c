"""The process group of a job of our own: begun from torchrun's environment, and ended so that every rank ends well.

A training script has its own process group, and this leaves it alone. Measured with torch 2.13: a program that ends
right after ``destroy_process_group`` is aborted by a thread of gloo now and then (4 of 15 runs); after a barrier, the
destruction and 0.3 s, 0 of 25.
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

from torch import distributed

from flodl_pipe.cluster.arrivals import VARIABLES, Address, meet, open_store
from flodl_pipe.cluster.context import RunContext
from flodl_pipe.cluster.exchange import Exchange, Lost, Record
from flodl_pipe.errors import ClusterError

__all__ = ["process_group"]

_ENDS_WITHIN_S = 0.3
_GOODBYE = Record(1, b"")


@contextmanager
def process_group(timeout_s: float) -> Iterator[None]:
    """Hold a gloo group of all ranks, if torchrun started several and there is none yet.

    At the end all ranks meet once more, so that none ends while another needs it. A rank that leaves with an error does
    not wait; the others, which wait for it, are told that it has gone.

    Args:
        timeout_s: Seconds within which all ranks must come, at the start and at the end.

    Raises:
        ClusterError: if variables are missing or wrong, if ranks do not come, or have gone before the end.
    """
    if not _is_needed(os.environ):
        yield
        return
    context, address = _described(os.environ)
    _begin(context, address, timeout_s)
    try:
        yield
        _part(context, timeout_s)
    finally:
        distributed.destroy_process_group()
        time.sleep(_ENDS_WITHIN_S)


def _is_needed(environment: Mapping[str, str]) -> bool:
    if not distributed.is_available() or distributed.is_initialized():
        return False
    if "RANK" not in environment and "WORLD_SIZE" not in environment:
        return False
    return environment.get("WORLD_SIZE") != "1"


def _described(environment: Mapping[str, str]) -> tuple[RunContext, Address]:
    missing = [name for name in VARIABLES if not environment.get(name)]
    if missing:
        there = ", ".join(f"{name}={environment[name]}" for name in VARIABLES if name not in missing)
        raise ClusterError(
            f"{' and '.join(missing)} must be set for a process that is one of several ({there}); start the ranks with "
            "torchrun, which sets all of them, or unset the others to run one process alone"
        )
    context = RunContext.from_environment(environment)
    address = Address.from_environment(environment)
    if address is None:
        raise ClusterError(
            f"MASTER_PORT={environment['MASTER_PORT']!r} is not a port; it must be from 1 to 65535, as torchrun sets it"
        )
    return context, address


def _begin(context: RunContext, address: Address, timeout_s: float) -> None:
    began = time.monotonic()
    serve = context.rank == 0 and not address.is_agents
    try:
        store = open_store(address, serve=serve, timeout_s=timeout_s)
    except RuntimeError as error:
        raise ClusterError(_no_store(address, timeout_s, error, serve=serve)) from None
    try:
        place = meet(store, context.rank, context.world_size, timeout_s, began=began)
        distributed.init_process_group(
            "gloo",
            store=place,
            rank=context.rank,
            world_size=context.world_size,
            timeout=timedelta(seconds=timeout_s),
        )
    except RuntimeError as error:
        raise ClusterError(
            f"rank {context.rank} lost the others while all were about to connect: {_first_line(error)}; see what the "
            "other ranks say"
        ) from error


def _part(context: RunContext, timeout_s: float) -> None:
    """Wait until all ranks are at their end."""
    group = distributed.group.WORLD
    assert group is not None
    try:
        Exchange(group, context.rank, context.world_size).all(_GOODBYE, timeout_s, "the end of the job")
    except Lost as lost:
        who = ", ".join(map(str, lost.ranks))
        how = f"did not come to the end of the job within {timeout_s:g} s" if lost.is_late else "ended before the job"
        raise ClusterError(f"rank {who} {how}; see what it says") from None


def _no_store(address: Address, timeout_s: float, error: RuntimeError, *, serve: bool) -> str:
    if serve:
        return (
            f"rank 0 cannot listen at MASTER_ADDR:MASTER_PORT={address}: {_first_line(error)}; MASTER_ADDR must be an "
            "address of rank 0's host, and the port free there: start with torchrun, or set another MASTER_PORT"
        )
    keeper = (
        "torchrun's agent, which keeps it, has ended" if address.is_agents else "rank 0, which keeps it, did not come"
    )
    return (
        f"no answer from MASTER_ADDR:MASTER_PORT={address} within {timeout_s:g} s (cluster.timeout_s): {keeper}, or it "
        f"cannot be reached from here; {_first_line(error)}"
    )


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:300]
