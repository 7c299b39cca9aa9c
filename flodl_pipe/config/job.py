"""Section ``job``: what to do with the pipeline. One model per ``kind``, chosen by ``job=KIND``."""

import re
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, model_validator

from flodl_pipe.config.base import MAX_COUNT, Count, LocalPath, NonNegative, Seed, StrictModel, fault, shown
from flodl_pipe.config.cluster_host import MAX_LOCAL_RANKS
from flodl_pipe.config.per_place import PerDevice, SizePerPlace, SomeBytes

__all__ = [
    "DigestJob",
    "FetchJob",
    "JobConfig",
    "KnownSetName",
    "LaunchJob",
    "PlanJob",
    "RunJob",
    "SchemaJob",
    "VerifyJob",
]

KnownSetName = Literal["mnist", "fashion_mnist", "cifar10", "cifar100", "shakespeare"]
"""A data set that can be downloaded."""


class _Steps(StrictModel):
    """How far a run goes, and where it keeps its place."""

    epochs: Count = 1
    """Passes over the data."""

    max_steps: Count | None = None
    """Stop after this many steps, counted from the start of the first run; null: no limit."""

    save: LocalPath | None = None
    """File to write the cursor to, at the end and every `save_every_steps`."""

    save_every_steps: Count | None = None
    """Steps between two writes of the cursor; null: only at the end. Needs `save`."""

    resume: LocalPath | None = None
    """Save file to continue from; it must exist, unless it is also `save`: then the run starts anew."""

    step_time_s: Annotated[float, Field(ge=0.0)] = 0.0
    """Seconds each step pretends to compute."""

    @model_validator(mode="after")
    def _every_needs_save(self) -> "_Steps":
        if self.save_every_steps is not None and self.save is None:
            raise fault(
                f"save_every_steps={self.save_every_steps} needs save: set save to the file to write, "
                "or leave save_every_steps at null",
                at=["save_every_steps"],
            )
        return self


class RunJob(_Steps):
    """Iterate the loader, as a training loop would."""

    kind: Literal["run"] = "run"
    """Run."""


class PlanJob(_Steps):
    """Say what a run would do, and with how much memory, without doing it. Takes the keys of a run."""

    kind: Literal["plan"] = "plan"
    """Plan."""

    probe: bool = True
    """Read up to 64 MiB, for a second at most, to say how long reading takes."""

    num_samples: Count | None = None
    """Samples of data that is not there yet, for a plan of described hosts; needs `sample_bytes`."""

    sample_bytes: SomeBytes | None = None
    """Bytes of a sample as stored, of data that is not there yet."""

    host_ram: SizePerPlace = None
    """Memory that each described host has free; a number, or one for each entry of `cluster.hosts` or each host."""

    device_memory: SizePerPlace = None
    """Memory that each device has free beside the model; a number, or one for each entry, each device, each rank."""

    read_bytes_per_s: SizePerPlace = None
    """What a host can read of the data in a second, from its disk or over its network; a number or a list by host."""

    samples_per_s: PerDevice = None
    """Samples that each device trains on in a second; a number, or one for each entry, each device, each rank."""

    step_overhead_s: Annotated[float, Field(ge=0.0)] = 0.0
    """What a step takes on every rank however few rows it has."""

    @model_validator(mode="after")
    def _stand_ins_go_together(self) -> "PlanJob":
        for key, other in (("num_samples", "sample_bytes"), ("sample_bytes", "num_samples")):
            if getattr(self, key) is not None and getattr(self, other) is None:
                raise fault(
                    f"must be set too: {key} stands in for data that is not there, and says half of it; or leave {key} "
                    "at null",
                    at=[other],
                )
        return self


def _num_ranks(value: Any) -> Any:
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if number == "auto" or (type(number) is int and 1 <= number <= MAX_LOCAL_RANKS):
        return number
    raise fault(f"must be 'auto' or an integer from 1 to {MAX_LOCAL_RANKS}, got {shown(value)}")


class LaunchJob(_Steps):
    """Start the ranks of this host under torchrun, and say what to type on the others. Takes the keys of a run."""

    kind: Literal["launch"] = "launch"
    """Launch."""

    command: Literal["run"] = "run"
    """The job that the ranks do."""

    nproc: Annotated[
        Literal["auto"] | int,
        BeforeValidator(_num_ranks, json_schema_input_type=Literal["auto"] | Annotated[int, Field(ge=1)]),
    ] = "auto"
    """How many ranks to start here; auto: one for each device of this host in `cluster.hosts`, or, where no host is
    described, one for each accelerator."""

    print_only: bool = False
    """Print the command line of every host, and start nothing."""


def _set_names(value: Any) -> Any:
    names = value if isinstance(value, list) else [value]
    known = get_args(KnownSetName)
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        got = ", ".join(map(shown, wrong)) or "an empty list"
        raise fault(f"must name data sets that can be downloaded ({', '.join(known)}), got {got}")
    return list(dict.fromkeys(names)) if isinstance(value, list) else value


def _mirror(value: Any) -> str:
    rule = "must be the http or https address of a folder, as in https://host/folder"
    if not isinstance(value, str):
        raise fault(f"{rule}, got {shown(value)}")
    try:
        parts = urlsplit(value)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.query or parts.fragment)
    except ValueError:
        raise fault(f"{rule}, got {shown(value)}") from None
    if parts.username is not None or parts.password is not None:
        raise fault(f"{rule}; leave out the name and password before '@', which would be printed")
    if not fits or not value.isascii() or not value.isprintable() or " " in value:
        raise fault(f"{rule}, got {shown(value)}")
    return value


class FetchJob(StrictModel):
    """Download known data sets into `data_dir`. Needs no recipe when `datasets` is given."""

    kind: Literal["fetch"] = "fetch"
    """Fetch."""

    datasets: (
        Annotated[
            KnownSetName | list[KnownSetName],
            BeforeValidator(_set_names, json_schema_input_type=KnownSetName | list[KnownSetName]),
        ]
        | None
    ) = None
    """A name or a list: mnist, fashion_mnist, cifar10, cifar100, shakespeare; null: the set of the source's kind."""

    mirror: Annotated[str, BeforeValidator(_mirror, json_schema_input_type=str)] | None = None
    """Address to download from instead of the published ones; files lie at `<mirror>/<data set>/<file>`."""


class SchemaJob(StrictModel):
    """Print the JSON schema of a recipe. Needs no recipe."""

    kind: Literal["schema"] = "schema"
    """Schema."""


def _digest(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[0-9a-fA-F]{32}", value):
        return value.lower()
    hint = (
        "; put quotes inside the quotes, '\"0123...\"', where it reads as a number"
        if not isinstance(value, str)
        else ""
    )
    raise fault(f"must be a digest, 32 hexadecimal digits as job=digest prints them, got {shown(value)}{hint}")


DigestText = Annotated[str, BeforeValidator(_digest, json_schema_input_type=str)]
"""A digest as text."""


class DigestJob(StrictModel):
    """Go through the data and print a digest of everything that was delivered."""

    kind: Literal["digest"] = "digest"
    """Digest."""

    epochs: Count = 1
    """Passes over the data."""

    max_steps: Count | None = None
    """Stop after this many steps; null: no limit."""

    resume: LocalPath | None = None
    """Save file of a run: digest what comes after it. `epochs` and `max_steps` count from that run's start."""

    rank: NonNegative = 0
    """Which rank's part of each step to read."""

    world_size: Count = 1
    """Ranks that share each step."""

    add: list[DigestText] = Field(default=[])
    """Digests of other parts, to be added to this one."""

    expect: DigestText | None = None
    """What the digest (the sum, where `add` names others) has to be; any other ends with exit status 1."""

    @model_validator(mode="after")
    def _rank_of_the_world(self) -> "DigestJob":
        if self.rank >= self.world_size:
            raise fault(
                f"must be below world_size={self.world_size}, got {self.rank}: ranks are counted from 0", at=["rank"]
            )
        return self


def _limit(value: Any) -> Any:
    words = ("auto", None)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value in words or (number and 0 < value <= MAX_COUNT):
        return value if value in words else float(value)
    raise fault(f"must be 'auto', null or a number above 0, got {shown(value)}")


def _combinations(value: Any) -> Any:
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if number == "all" or (type(number) is int and 1 <= number <= MAX_COUNT):
        return number
    raise fault(f"must be 'all' or an integer of at least 1, got {shown(value)}")


class VerifyJob(StrictModel):
    """Prove that the stream is the same however it is read: modes, readers, world sizes, shares, interruptions."""

    kind: Literal["verify"] = "verify"
    """Verify."""

    epochs: Count = 2
    """Passes over the data, in each combination."""

    max_steps: Count | None = 64
    """Steps of a combination at most; null: no limit."""

    max_combinations: Annotated[
        Literal["all"] | int,
        BeforeValidator(_combinations, json_schema_input_type=Literal["all"] | Annotated[int, Field(ge=1)]),
    ] = 200
    """How many combinations to run, chosen by `choice`; `all`: the whole matrix."""

    max_s: Annotated[
        Literal["auto"] | float | None,
        BeforeValidator(_limit, json_schema_input_type=Literal["auto"] | Annotated[float, Field(gt=0)] | None),
    ] = "auto"
    """Seconds after which no further combination begins; null: no limit; auto: 120, no limit with `all`."""

    read_all: bool = True
    """Read every byte of the data, twice, for its fingerprint, and every sample once, to check ids and labels."""

    choice: Seed = 0
    """Another number is another choice of combinations and of steps at which they are interrupted."""


JobConfig = Annotated[
    RunJob | PlanJob | FetchJob | SchemaJob | DigestJob | VerifyJob | LaunchJob, Field(discriminator="kind")
]
"""The section, told apart by ``kind``."""
