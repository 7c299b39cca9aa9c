"""``job=launch``: start this host's ranks under torchrun, and print the command line of every other host.

::

    flodl-pipe +recipe=mnist job=launch job.nproc=2                        # this host alone
    flodl-pipe +recipe=mnist cluster=two_hosts job=launch                  # this host's part of two
    flodl-pipe +recipe=mnist cluster=two_hosts job=launch job.print_only=true

The same command can be given on every host: each finds its own part by its name. The ranks do ``job=run`` with the
words of this command line, so what is asked of a run goes behind it. The exit status is that of the rank that failed.
"""

import logging
import os
import sys
from collections.abc import Sequence

from flodl_pipe.cluster.host_facts import host_facts
from flodl_pipe.cluster.launch import (
    HostCommand,
    command_of,
    host_commands,
    local_command,
    rank_words,
    torchrun_words,
)
from flodl_pipe.cluster.local_ranks import (
    require_free_port,
    require_outside_torchrun,
    require_reachable,
    run_ranks,
)
from flodl_pipe.config.compose import check_command, typed_command
from flodl_pipe.config.job import LaunchJob
from flodl_pipe.config.root import Config
from flodl_pipe.devices.choose import KINDS, known_devices
from flodl_pipe.errors import ClusterError, ConfigError
from flodl_pipe.reports.figures import plural

__all__ = ["main"]

_log = logging.getLogger("flodl_pipe")


def main(config: Config) -> None:
    """Launch what a command line asks for.

    Args:
        config: The config; its ``job`` is a :class:`LaunchJob`.

    Raises:
        ConfigError: if the ranks could not read their config, or nobody typed a command line.
        ClusterError: if this host is not described, has too few devices, or cannot meet the others.
        KeyboardInterrupt: after Ctrl-C, once all ranks have ended.
        SystemExit: with the status of a rank that failed; with 128 + signal after a signal.
    """
    job = config.job
    assert isinstance(job, LaunchJob)
    require_outside_torchrun(os.environ)
    typed = typed_command()
    if typed is None:
        raise ConfigError.at("job", "launch hands its command line on, and there is none; start it as flodl-pipe ...")
    words = rank_words(typed, job.command)
    check_command(words)
    commands = _commands(config, job, words)
    if job.print_only:
        sys.stdout.write(_page(commands))
        return
    mine = commands[0]
    if config.cluster.hosts:
        facts = host_facts()
        mine = command_of(commands, facts.name).on_interface(facts.interface)
    _require_devices(config, mine)
    others = [command for command in commands if command.host != mine.host]
    if others:
        require_reachable(commands[0].address, "cluster.hosts[0].address")
        require_reachable(mine.address, f"the address of {mine.host}")
        sys.stdout.write(_page(others))
    if mine.port is not None:
        require_free_port(mine.port)
    _log.info("starting %s here%s", plural(mine.num_ranks, "rank"), _waiting(config, len(others)))
    sys.stdout.flush()
    failure = run_ranks(mine)
    if failure is not None:
        sys.stderr.write(f"flodl_pipe: {failure}; restarts are used up (cluster.rendezvous.max_restarts)\n")
        raise SystemExit(failure.status)


def _waiting(config: Config, num_others: int) -> str:
    if not num_others:
        return ""
    rendezvous = config.cluster.rendezvous
    least = num_others if rendezvous.min_hosts is None else rendezvous.min_hosts - 1
    return f"; they wait up to {rendezvous.join_timeout_s} s for {plural(least, 'other host')}"


def _commands(config: Config, job: LaunchJob, words: Sequence[str]) -> list[HostCommand]:
    if config.cluster.hosts:
        if job.nproc != "auto":
            raise ConfigError.at(
                "job.nproc",
                f"{job.nproc} is for runs without cluster.hosts, which says for each host how many devices it has; "
                "change it there, or leave job.nproc at auto",
            )
        return list(host_commands(config.cluster, words))
    num_ranks = _num_accelerators() if job.nproc == "auto" else job.nproc
    if not num_ranks:
        raise ConfigError.at(
            "job.nproc",
            f"auto means one rank for each accelerator, and this machine has none (here are "
            f"{', '.join(known_devices())}); say how many ranks to start, as in job.nproc=2",
        )
    ratios = config.cluster.partition_ratios
    if ratios is not None and len(ratios) != num_ranks:
        raise ConfigError.at(
            "cluster.partition_ratios",
            f"must have one number for each of the {num_ranks} ranks that job.nproc={job.nproc} starts, got "
            f"{len(ratios)}",
        )
    return [local_command(num_ranks, config.cluster, words)]


def _num_accelerators() -> int:
    """Return how many devices there are of the kind that ``loader.device=auto`` takes."""
    return next((count for kind in KINDS if (count := kind.count())), 0)


def _require_devices(config: Config, mine: HostCommand) -> None:
    """Refuse more ranks than there are accelerators. Without any, ranks run on the CPU, as many as are wanted.

    Devices that the layout names are not asked for where ``loader.device`` stands over them.
    """
    here = known_devices()
    for device in mine.devices if config.loader.device == "auto" else ():
        if device not in here and device.partition(":")[0] not in here and f"{device}:0" not in here:
            raise ClusterError(
                f"cluster.hosts gives {mine.host or 'this host'} the device {device}, and this machine has "
                f"{', '.join(here)}; take it out of the host's devices, see why torch does not find it, or set "
                "loader.device"
            )
    on_accelerators = not mine.devices and config.loader.device not in ("cpu", "simulated")
    there_are = _num_accelerators() if on_accelerators else 0
    if there_are and mine.num_ranks > there_are:
        raise ClusterError(
            f"{mine.num_ranks} ranks need a device each, and this machine has {there_are}: {', '.join(here[1:-1])}; "
            f"start {there_are} ranks ({'cluster.hosts[].devices' if mine.host else 'job.nproc'}), or use "
            "loader.device=cpu"
        )


def _page(commands: Sequence[HostCommand]) -> str:
    """Return the command lines, to be copied as they are: what is said about them is a comment of the shell."""
    lines = []
    for command in commands:
        where = f"host {command.host}" if command.host else "this host"
        lines += [f"# {where}, {plural(command.num_ranks, 'rank')}:", command.line(torchrun_words())]
    return "\n".join(lines) + "\n"
