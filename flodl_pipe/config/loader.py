"""Section ``loader``: batches, where they are delivered, and how much memory may be used to have them ready."""

import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from flodl_pipe.config.base import AutoOr, ByteSize, Count, LocalPath, StrictModel, auto_or_integer, fault, shown
from flodl_pipe.config.callable_path import CALLABLE_PATH, callable_path

__all__ = ["COLLATIONS", "LoaderConfig", "SimulatedConfig"]

COLLATIONS = ("stack", "pad", "ragged")
"""Ways to make a batch that need no code of the user's."""

_DEVICE_KINDS = ("auto", "cpu", "cuda", "xpu", "mps", "simulated")
_DEVICE = r"auto|cpu|mps|simulated|(cuda|xpu)(:(0|[1-9][0-9]{0,2}))?"

_COLLATE_SCHEMA = {"anyOf": [{"enum": list(COLLATIONS)}, {"type": "string", "pattern": f"^{CALLABLE_PATH}$"}]}


def _share_from(minimum: float, maximum: float) -> Callable[[Any], Any]:
    """Return the check of a share of memory, which people like to give in percent."""

    def check(value: Any) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool) and not minimum <= value <= maximum:
            hint = f" (did you mean {value / 100:g}?)" if minimum <= value / 100 <= maximum and value > 1 else ""
            raise fault(f"must be from {minimum:g} to {maximum:g}, got {value:g}{hint}")
        return value

    return check


def _device(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(_DEVICE, value):
        return value
    hint = ""
    if isinstance(value, str):
        close = get_close_matches(value.partition(":")[0].lower().replace("gpu", "cuda"), _DEVICE_KINDS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
    raise fault(f"must be one of {', '.join(_DEVICE_KINDS)}, or one by number like cuda:1, got {shown(value)}{hint}")


def _stage_bytes(value: Any) -> Any:
    if value is True or value is False or value is None:
        raise fault(f"must be a size such as 200GiB, or 0 for no disk stage, got {shown(value)}")
    return value


def _names(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not value or not all(isinstance(name, str) and name for name in value):
        hint = f"; one name is [{shown(value)}]" if isinstance(value, str) and value else ""
        raise fault(f"must be a list of at least one non-empty name, or null, got {shown(value)}{hint}")
    twice = [name for place, name in enumerate(value) if name in value[:place]]
    if twice:
        raise fault(f"must be unique, got {shown(twice[0])} more than once")
    return list(value)


def _collate(value: Any) -> str:
    if isinstance(value, str) and (value in COLLATIONS or ":" in value):
        return value if value in COLLATIONS else callable_path(value)
    raise fault(f"must be {', '.join(COLLATIONS)}, or MODULE:CALLABLE of your own, got {shown(value)}")


class SimulatedConfig(StrictModel):
    """The device that `device: simulated` stands for."""

    memory_bytes: Annotated[ByteSize, Field(ge=1 << 20)] = 16 << 30
    """Its memory."""

    copy_bytes_per_s: Annotated[ByteSize, Field(ge=1)] = 12_000_000_000
    """Bytes a second from host to device."""

    latency_s: Annotated[float, Field(ge=0.0, le=10.0)] = 1e-5
    """What each copy takes beside that."""


class LoaderConfig(StrictModel):
    """How samples become batches."""

    batch_size: Count | None
    """Rows a rank gets per step, on average over the ranks. null: no batches, each sample passes as it is, without a
    batch axis; also where `sampling.batch_sampler` makes the batches."""

    global_batch_size: Count | None = None
    """Rows of a step over all ranks; null: `batch_size` times the number of ranks. Decides when set."""

    names: Annotated[list[str], BeforeValidator(_names)] | None = None
    """New names for the batch's fields, in field order; null keeps the source's."""

    collate: Annotated[str, BeforeValidator(_collate), WithJsonSchema(_COLLATE_SCHEMA)] = "stack"
    """How samples become a batch: stack them, pad ragged fields, keep them ragged (nested tensors), or
    `MODULE:CALLABLE` of your own, called with the list of samples."""

    pad_id: int = 0
    """Id that `collate: pad` fills integer fields up with; labels are filled with -100."""

    pad_multiple: Count = 8
    """Padded lengths are multiples of this."""

    pad_length: Count | None = None
    """The padded length; null: the longest row of the batch, rounded up to `pad_multiple`."""

    labels_from: str | None = None
    """With `collate: pad`, add `labels`: the ids of this field, and -100 where it was filled up; null: add none."""

    global_batch_on_resume: Literal["keep", "scale"] = "keep"
    """What a resumed run does where its own global batch is another than the saved one: keep the saved one, or scale
    to its own."""

    device: Annotated[
        str, BeforeValidator(_device), WithJsonSchema({"type": "string", "pattern": f"^({_DEVICE})$"})
    ] = "auto"
    """Where batches are delivered: `cuda`, `xpu` (or one of several, `cuda:1`), `mps`, `cpu`; `auto`: the accelerator
    of this machine, else the CPU; `simulated`: a device as `simulated` describes it."""

    mode: Literal["auto", "resident", "streaming"] = "auto"
    """Hold the whole data set in memory, stream it, or decide from its size and the memory there is."""

    prefetch: Annotated[AutoOr, auto_or_integer(1)] = "auto"
    """Batches kept ready ahead of the training loop."""

    readers: Annotated[AutoOr, auto_or_integer(0, 256)] = "auto"
    """Threads that read samples, or processes; 0 reads in the training loop."""

    reader_kind: Literal["thread", "process"] = "thread"
    """Whether readers are threads, or processes: for datasets whose samples are made by slow Python code."""

    reader_start: Literal["forkserver", "spawn", "fork"] = "forkserver"
    """How reader processes are started; `fork` is for datasets that cannot be pickled."""

    vram_max_usage: Annotated[float, Field(ge=0.50, le=0.99), BeforeValidator(_share_from(0.50, 0.99))] = 0.90
    """Share of the device's memory that may be in use, ours and everybody's. No effect on a CPU."""

    vram_pool: bool = True
    """Whether samples that were uploaded stay on the device, as far as its budget goes. No effect on a CPU;
    `FLODL_VRAM_POOL=off` in the environment switches it off too."""

    activation_reserve: ByteSize | None = None
    """Device memory that a training step needs beside the model; null: seen after the first steps."""

    gpu_ram_share: Annotated[float, Field(gt=0.0, le=4.0)] | None = None
    """Share of the host memory that an integrated GPU may take; null: what it reports. Discrete GPUs ignore it."""

    ram_max_usage: Annotated[float, Field(ge=0.0, le=0.90), BeforeValidator(_share_from(0.0, 0.90))] = 0.50
    """Share of the host memory available at start that the loaders of this host may hold."""

    sample_cache: bool = True
    """Whether samples stay in host memory between epochs, as far as `ram_max_usage` goes, when streaming."""

    disk_stage: Annotated[ByteSize, BeforeValidator(_stage_bytes)] = 0
    """Size of a file that samples are kept in between epochs which memory has no room for; 0: none."""

    disk_stage_dir: LocalPath | None = None
    """Folder of that file, on a local disk; null: the system's folder for temporary files."""

    check_purity: bool = True
    """Read eight samples of the first batch a second time, and refuse a source that gives other bytes then."""

    simulated: SimulatedConfig = SimulatedConfig()
    """Memory and speed of a simulated device."""
