"""From the hosts of a config to the torchrun command of each: what to type where, and what to run here.

torchrun is the launcher; this module only writes its command lines. All hosts get the same words, and arguments that
make them meet: each its own address and network interface, the first host the store, and a name of the run that every
host works out alike from the words.

Overrides are ``key=value``. torchrun, which takes any beginning of its own options for the option, leaves them alone.
"""

import hashlib
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from flodl_pipe.config.cluster import ClusterConfig, RendezvousConfig
from flodl_pipe.config.cluster_host import ANY_HOST, HostConfig
from flodl_pipe.errors import ClusterError

__all__ = ["PROGRAM", "HostCommand", "command_of", "host_commands", "local_command", "rank_words", "torchrun_words"]

PROGRAM = ("-m", "flodl_pipe")
"""What the ranks run, as torchrun's arguments."""

_HERE = "127.0.0.1"  # by name it might be found under an address that other hosts know it by
# A host that comes before the first one waits this long for the store there; so does a host whose store has gone.
_MOST_READ_TIMEOUT_S = 300
# Of one launcher: ranks started by it do not know them.
_LAUNCH_KEYS = ("job", "job.kind", "job.command", "job.nproc", "job.print_only")
# What the person who launches has set for the program, and each host needs.
_HANDED_ON = ("FLODL_PIPE_CONFIG_PATH", "FLODL_PIPE_ALLOW_IMPORT")
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@final
@dataclass(frozen=True)
class HostCommand:
    """What starts the ranks of one host.

    Attributes:
        host: Its name; "" where no host is described, or the only one by no name of its own.
        num_ranks: How many ranks it starts.
        environment: Variables of torchrun itself, which its ranks inherit.
        torchrun: torchrun's arguments.
        program: What the ranks run, and with which words.
        address: Where the other hosts reach it.
        devices: Names of the devices that the config gives it, by local rank; empty: it says only how many.
        port: Port that this host opens for the others; None: a free one, or none.
    """

    host: str
    num_ranks: int
    environment: Mapping[str, str]
    torchrun: tuple[str, ...]
    program: tuple[str, ...]
    address: str = _HERE
    devices: tuple[str, ...] = ()
    port: int | None = None

    def line(self, torchrun: Sequence[str] = ("torchrun",)) -> str:
        """Return the command for a POSIX shell, quoted."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join([*torchrun, *self.torchrun, *self.program])])

    def on_interface(self, interface: str | None) -> "HostCommand":
        """Return the same with a network interface that the host itself has named; None changes nothing."""
        if interface is None:
            return self
        return replace(self, environment={**self.environment, **dict.fromkeys(_INTERFACES, interface)})


@final
@dataclass(frozen=True)
class _Host:
    name: str
    address: str
    config: HostConfig


def rank_words(words: Sequence[str], job: str) -> tuple[str, ...]:
    """Return the words of a ``job=launch`` as its ranks get them: with their own job, without keys of the launcher.

    >>> rank_words(["+recipe=mnist", "job=launch", "job.nproc=2", "job.epochs=3"], "run")
    ('+recipe=mnist', 'job.epochs=3', 'job=run')
    """
    kept = [word for word in words if word.partition("=")[0].lstrip("+~") not in _LAUNCH_KEYS]
    return (*kept, f"job={job}")


def torchrun_words() -> tuple[str, ...]:
    """Return how to call torchrun: by its name, if that is the one of the Python that runs this."""
    found = shutil.which("torchrun")
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return ("torchrun",)
    return (sys.executable, "-m", "torch.distributed.run")


def host_commands(
    cluster: ClusterConfig,
    words: Sequence[str],
    *,
    program: Sequence[str] = PROGRAM,
    environment: Mapping[str, str] = os.environ,
) -> Iterator[HostCommand]:
    """Yield the command of each described host, in their order.

    Args:
        cluster: The hosts, at least one.
        words: Overrides, and flags before them; the same on all hosts.
        program: What the ranks run with them.
        environment: Variables of the launcher; those of ours that matter on every host are handed on.
    """
    hosts = list(_hosts(cluster))
    if len(hosts) == 1:
        host = hosts[0]
        num_ranks = host.config.num_devices
        name = "" if host.name == ANY_HOST else host.name
        alone = local_command(num_ranks, cluster, words, host=name, program=program, environment=environment)
        yield replace(alone, devices=_devices(host.config)).on_interface(host.config.interface)
        return
    name_of_run = cluster.rendezvous.id or _run_id(words, [host.name for host in hosts])
    for place, host in enumerate(hosts):
        variables = {"FLODL_PIPE_HOST": host.name, **_variables(environment)}
        if host.config.interface is not None:
            variables |= dict.fromkeys(_INTERFACES, host.config.interface)
        arguments = [
            *_sizes(cluster.rendezvous, len(hosts), host.config.num_devices),
            f"--local-addr={host.address}",
            *_meeting(cluster.rendezvous, hosts[0], place, name_of_run),
        ]
        port = cluster.rendezvous.port if not place else None
        yield HostCommand(
            host.name,
            host.config.num_devices,
            variables,
            tuple(arguments),
            (*program, *words),
            host.address,
            _devices(host.config),
            port,
        )


def local_command(
    num_ranks: int,
    cluster: ClusterConfig,
    words: Sequence[str],
    *,
    host: str = "",
    program: Sequence[str] = PROGRAM,
    environment: Mapping[str, str] = os.environ,
) -> HostCommand:
    """Return the command for ranks of this host alone. They meet on a free port, so several runs do not collide.

    Args:
        num_ranks: How many.
        cluster: How often ranks that failed are started again, and the name of the run.
        words: As for :func:`host_commands`.
        host: Name of this host, where the config describes it.
        program: As for :func:`host_commands`.
        environment: As for :func:`host_commands`.
    """
    variables = {**({"FLODL_PIPE_HOST": host} if host else {}), **_variables(environment)}
    rendezvous = cluster.rendezvous
    arguments = (
        *_sizes(RendezvousConfig(max_restarts=rendezvous.max_restarts), 1, num_ranks),
        f"--local-addr={_HERE}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={_HERE}:0",
        f"--rdzv-id={rendezvous.id or _run_id(words, [host])}",
        "--rdzv-conf=is_host=1",
    )
    return HostCommand(host, num_ranks, variables, arguments, (*program, *words))


def command_of(commands: Sequence[HostCommand], host: str) -> HostCommand:
    """Return the command of one host.

    Raises:
        ClusterError: if it is not among them.
    """
    for command in commands:
        if command.host in (host, ""):
            return command
    names = [command.host for command in commands[:10]] + ["..."] * (len(commands) > 10)
    raise ClusterError(
        f"this host is {host!r}, and cluster.hosts describes {', '.join(names)}; start this on one of them, set "
        "FLODL_PIPE_HOST to the name that this one has there, or print the command lines with job.print_only=true"
    )


def _hosts(cluster: ClusterConfig) -> Iterator[_Host]:
    for config in cluster.hosts:
        yield from (_Host(name, config.address or name, config) for name in config.names())


def _devices(config: HostConfig) -> tuple[str, ...]:
    return tuple(name for name in config.device_names if name is not None)


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what torchrun needs to see on any host."""
    return {
        # Without it the ranks of a restart read addresses of the start before, and most restarts fail.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        # torchrun takes 1 too, with a warning. More makes sense where ranks have cores to spare.
        "OMP_NUM_THREADS": environment.get("OMP_NUM_THREADS") or "1",
        **{name: environment[name] for name in _HANDED_ON if environment.get(name)},
    }


def _sizes(rendezvous: RendezvousConfig, num_hosts: int, num_ranks: int) -> Iterator[str]:
    least = rendezvous.min_hosts
    yield f"--nnodes={num_hosts}" if least in (None, num_hosts) else f"--nnodes={least}:{num_hosts}"
    yield f"--nproc-per-node={num_ranks}"
    yield f"--max-restarts={rendezvous.max_restarts}"


def _meeting(rendezvous: RendezvousConfig, first: _Host, place: int, name_of_run: str) -> Iterator[str]:
    if rendezvous.backend == "static":
        yield f"--node-rank={place}"
        yield f"--master-addr={first.address}"
        yield f"--master-port={rendezvous.port}"
        yield f"--rdzv-conf=timeout={rendezvous.join_timeout_s}"
        return
    address = f"[{first.address}]" if ":" in first.address else first.address
    join_s = rendezvous.join_timeout_s
    conf = {"is_host": int(place == 0), "join_timeout": join_s, "read_timeout": min(join_s, _MOST_READ_TIMEOUT_S)}
    yield "--rdzv-backend=c10d"
    yield f"--rdzv-endpoint={address}:{rendezvous.port}"
    yield f"--rdzv-id={name_of_run}"
    yield f"--rdzv-conf={','.join(f'{name}={value}' for name, value in conf.items())}"


def _run_id(words: Sequence[str], hosts: Sequence[str]) -> str:
    """Return a name that all hosts find alike.

    It does not hang on what else the config says: hosts whose files differ must meet, to be told what differs.
    """
    text = "\0".join([*hosts, "", *words])
    return f"flodl-pipe-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
