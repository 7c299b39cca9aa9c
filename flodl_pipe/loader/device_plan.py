"""What a loader may hold of a device, and whether its samples stay there: decided from probes, nothing taken yet."""

import os
from dataclasses import dataclass
from typing import Literal, final

from flodl_pipe.config.loader import LoaderConfig
from flodl_pipe.errors import ConfigError, StagingError
from flodl_pipe.loader.device_fill import chunk_bytes, chunk_rows
from flodl_pipe.loader.host_side import HostSide
from flodl_pipe.loader.targets import SharedDevice
from flodl_pipe.loader.tiers import once_only
from flodl_pipe.loader.upload import number_bytes
from flodl_pipe.memory.depth_policy import Allowance, DepthPolicy, StepSizes
from flodl_pipe.memory.device_budget import DeviceFigures, device_budget, resident_decision
from flodl_pipe.memory.ledger import process_ledger
from flodl_pipe.sampling.orders import Order
from flodl_pipe.sources.protocol import BundledSource, Source
from flodl_pipe.units import format_bytes

__all__ = ["DevicePlan", "device_figures", "model_bytes_on", "plan_device", "pool_switch"]

# Blocks of device memory are multiples of 512 bytes; this is for the last one of each field.
_ROUNDING_BYTES = 4096

POOL_VARIABLE = "FLODL_VRAM_POOL"
"""Environment variable that switches the sample pool off."""


@final
@dataclass(frozen=True)
class DevicePlan:
    """A loader's part of a device.

    Attributes:
        shared: The device.
        host: The readers' part of making batches.
        policy: Adapts depth and pool from here on.
        allowance: What may be held at first.
        decision: ``resident``: every sample is kept there; ``promote``: decided after the second batch; ``stream``.
        why: Reason of the decision.
        pool_off: Why no sample stays there; None where some may.
        step_bytes: What a step takes that is ready for the loop.
        work_bytes: What work on a step takes beside that, or on a chunk of samples that are uploaded ahead: once, for
            one of them is under way at a time.
        chunk_rows: Samples of such a chunk.
        num_samples: Samples that may be kept there, all in all; 0 where none may.
        set_bytes: What all samples take.
    """

    shared: SharedDevice
    host: HostSide
    policy: DepthPolicy
    allowance: Allowance
    decision: Literal["resident", "promote", "stream"]
    why: str
    pool_off: str | None
    step_bytes: int
    work_bytes: int
    chunk_rows: int
    num_samples: int
    set_bytes: int


# Less than this part of a device (1/100) is not taken for a model.
_LEAST_MODEL = 100


def device_figures(
    shared: SharedDevice, own_bytes: int, owner: int | None = None, *, work_bytes: int = 0
) -> DeviceFigures:
    """Probe a device for one of the loaders that deliver to it.

    Args:
        shared: The device.
        own_bytes: What this loader holds of it now.
        owner: Whom the ledger grants to for this loader; None: it has no grants yet.
        work_bytes: What has to stay free for work on a step, or a chunk of samples, that is under way.
    """
    memory, account = shared.observe(), shared.account
    ledger = process_ledger()
    own_grants = 0 if owner is None else sum(ledger.grants(owner, account).values())
    others_bytes = shared.held_bytes() - own_bytes
    # What others were granted and did not take yet is not free for us.
    promised = max(0, ledger.held(account) - own_grants - others_bytes)
    kept_free = promised + work_bytes
    peak_bytes = shared.others_peak_bytes
    return DeviceFigures(
        memory.total_bytes,
        max(0, memory.free_bytes - kept_free),
        own_bytes,
        peak_others_bytes=peak_bytes + others_bytes + kept_free if peak_bytes else 0,
    )


def model_bytes_on(shared: SharedDevice) -> int:
    """Return what this process has on a device for its model, as far as that is told."""
    memory = shared.device.memory()
    num_bytes = max(0, memory.process_bytes - shared.held_bytes())
    # A batch that somebody still holds is no model.
    return num_bytes if num_bytes * _LEAST_MODEL > memory.total_bytes else 0


def pool_switch(value: str | None) -> bool:
    """Return what the environment says of the sample pool: on, unless it says ``off``.

    Raises:
        ConfigError: if it says neither.
    """
    if value is None or value.strip().lower() in ("", "on", "1", "true", "yes"):
        return True
    if value.strip().lower() in ("off", "0", "false", "no"):
        return False
    raise ConfigError.at(
        "loader.vram_pool", f"{POOL_VARIABLE}={value!r} in the environment must be on or off; change it, or unset it"
    )


def plan_device(
    shared: SharedDevice,
    host: HostSide,
    source: Source | None,
    order: Order | None,
    config: LoaderConfig,
    *,
    step_rows: int,
    num_steps: int,
    row_bytes: int,
    delivered_row_bytes: int,
    num_epochs: int | None,
    num_samples: int | None = None,
) -> DevicePlan:
    """Decide what may be held of a device, before the model is known to be there.

    Args:
        shared: The device.
        host: The readers' part of making batches.
        source: The samples; None for a stream.
        order: Their order; None for a stream.
        config: Section ``loader``.
        step_rows: Most rows of a step.
        num_steps: Steps of an epoch.
        row_bytes: Bytes of a row as it is uploaded.
        delivered_row_bytes: Bytes of a row of a batch.
        num_epochs: Epochs of the run, where they are known.
        num_samples: Samples that this rank asks for; None: all of the source.

    Raises:
        StagingError: if a forced mode or depth does not fit.
    """
    pool_off = _pool_off(host, source, order, config, num_epochs)
    if num_samples is None:
        num_samples = 0 if source is None else len(source)
    set_bytes = num_samples * row_bytes
    step_bytes = step_rows * delivered_row_bytes + _ROUNDING_BYTES
    rows = chunk_rows(row_bytes, shared.device.memory().total_bytes)
    work_bytes = _work_bytes(host, step_rows, row_bytes, has_pool=pool_off is None)
    if pool_off is None and config.mode != "streaming":
        work_bytes = max(work_bytes, 2 * chunk_bytes(host.making.spec, rows))
    policy = DepthPolicy(
        StepSizes(step_bytes, num_steps, row_bytes, 0 if pool_off else num_samples),
        vram_max_usage=config.vram_max_usage,
        forced=None if config.prefetch == "auto" else config.prefetch,
        activation_reserve_bytes=config.activation_reserve,
    )
    figures, model_bytes = device_figures(shared, 0, work_bytes=work_bytes), model_bytes_on(shared)
    most_bytes = int(config.vram_max_usage * figures.total_bytes)
    if step_bytes + work_bytes > most_bytes:
        raise StagingError(
            f"one step of {step_rows:,} rows takes {format_bytes(step_bytes + work_bytes)} of device memory, and "
            f"vram_max_usage {config.vram_max_usage:g} of {format_bytes(figures.total_bytes)} is "
            f"{format_bytes(most_bytes)}; lower loader.batch_size, or take a larger device"
        )
    allowance = policy.at_build(figures, model_bytes=model_bytes)
    decision: Literal["resident", "promote", "stream"]
    if pool_off is not None:
        if config.mode == "resident":
            raise StagingError(f"loader.mode=resident, but {pool_off}; use loader.mode=auto or streaming")
        decision, why = "stream", pool_off
    elif config.mode == "streaming":
        decision, why = "stream", "loader.mode=streaming"
    else:
        full = device_budget(
            figures,
            vram_max_usage=config.vram_max_usage,
            knowledge="honest",
            activation_reserve_bytes=config.activation_reserve or 0,
        )
        decision, why = resident_decision(
            set_bytes,
            figures,
            budget=full,
            forced=config.mode == "resident",
            activation_reserve_bytes=config.activation_reserve,
            model_bytes_on_device=model_bytes,
        )
    return DevicePlan(
        shared=shared,
        host=host,
        policy=policy,
        allowance=allowance,
        decision=decision,
        why=why,
        pool_off=pool_off,
        step_bytes=step_bytes,
        work_bytes=work_bytes,
        chunk_rows=rows,
        num_samples=0 if pool_off else num_samples,
        set_bytes=set_bytes,
    )


def _work_bytes(host: HostSide, step_rows: int, row_bytes: int, *, has_pool: bool) -> int:
    """Return what work on a step takes beside the batch: rows as uploaded, put together, and before transforms."""
    num_bytes = step_rows * row_bytes + number_bytes(step_rows) + _ROUNDING_BYTES
    if has_pool:
        # Rows that are admitted are picked out first; those of a batch are put in order once they are together.
        num_bytes += 2 * step_rows * row_bytes
    if not host.chain.is_empty:
        num_bytes += step_rows * host.making.rows.row_bytes
    return num_bytes


def _pool_off(
    host: HostSide, source: Source | None, order: Order | None, config: LoaderConfig, num_epochs: int | None
) -> str | None:
    """Return why no sample may stay on the device, or None."""
    if source is None or order is None:
        return "a stream's samples have no numbers to be kept under"
    tiers_off = source.tiers_off if isinstance(source, BundledSource) else None
    if tiers_off is not None:
        return tiers_off
    if host.rows is None:
        return host.why
    if not pool_switch(os.environ.get(POOL_VARIABLE)):
        return f"{POOL_VARIABLE}=off in the environment"
    if not config.vram_pool:
        return "loader.vram_pool=false"
    return once_only(order, num_epochs) if config.mode != "resident" else None
