"""This host's ranks, run by torch's elastic agent in this process: the same agent that torchrun is.

The agent starts the ranks, watches them, starts them anew after a failure, and hands a signal on to them. What it
changes of this process, its environment and its signal handlers, is put back.
"""

import os
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple, final

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import RendezvousError
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args

from flodl_pipe.cluster.launch import HostCommand
from flodl_pipe.errors import ClusterError

__all__ = ["RankFailure", "require_free_port", "require_outside_torchrun", "require_reachable", "run_ranks"]

# What torchrun sets for its ranks, and a shell has no reason to.
_OF_A_RANK = ("TORCHELASTIC_RUN_ID", "LOCAL_RANK", "RANK", "WORLD_SIZE")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_KILLED = 128


@final
class RankFailure(NamedTuple):
    """The rank that failed first.

    Attributes:
        rank: Its global rank.
        local_rank: Its rank on this host.
        status: Its exit status as a shell gives it: 128 + the signal, where a signal ended it.
    """

    rank: int
    local_rank: int
    status: int

    def __str__(self) -> str:
        how = f"ended with exit status {self.status}"
        if self.status > _KILLED:
            with suppress(ValueError):  # a status above 128 may be the program's own
                how = f"was ended by {signal.Signals(self.status - _KILLED).name}"
        return f"rank {self.rank} (local rank {self.local_rank}) {how}"


def require_outside_torchrun(environment: Mapping[str, str] = os.environ) -> None:
    """Refuse to launch from within a rank: each would launch all of them again.

    Raises:
        ClusterError: if torchrun has set its variables.
    """
    found = [f"{name}={environment[name]}" for name in _OF_A_RANK if name in environment]
    if found:
        raise ClusterError(
            f"job=launch starts torchrun, and is itself a rank of it ({', '.join(found)}); give torchrun the job that "
            "the ranks do, job=run, or start job=launch without torchrun; variables left over in a shell go with "
            f"'env -u {' -u '.join(word.partition('=')[0] for word in found)}'"
        )


def require_free_port(port: int) -> None:
    """Refuse a port of this host that another program listens on.

    Raises:
        ClusterError: if it is taken, or not allowed.
    """
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    try:
        with socket.create_server(
            ("", port), family=family, dualstack_ipv6=family is socket.AF_INET6, reuse_port=False
        ):
            pass
    except OSError as error:
        raise ClusterError(
            f"cluster.rendezvous.port={port} cannot be opened on this host ({os.strerror(error.errno or 0)}); another "
            "run may have it: choose another port, the same for all hosts"
        ) from None


def require_reachable(address: str, key: str) -> None:
    """Refuse a name that this host cannot resolve.

    Args:
        address: Name or IP address.
        key: Where the config says it.

    Raises:
        ClusterError: if it means nothing here.
    """
    try:
        socket.getaddrinfo(address, None)
    except OSError as error:
        raise ClusterError(
            f"{address!r} means nothing on this host ({error.strerror}); set {key} to an IP address, or to a name that "
            "every host can resolve"
        ) from None


@contextmanager
def _agent_process(environment: Mapping[str, str]) -> Iterator[None]:
    """Be torchrun for a while."""
    before = dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        for number, handler in handlers.items():
            if handler is not None:
                signal.signal(number, handler)


def run_ranks(command: HostCommand) -> RankFailure | None:
    """Run the ranks of this host to their end. Their output goes where this process's goes.

    Args:
        command: What to run; its variables win over those of this process.

    Returns:
        None when all ranks ended well, else which failed first, when the restarts are used up.

    Raises:
        ClusterError: if the hosts do not find each other.
        KeyboardInterrupt: after Ctrl-C, once all ranks have ended.
        SystemExit: after another signal, likewise, with status 128 + signal.
    """
    with _agent_process(command.environment):
        arguments = parse_args([*command.torchrun, *command.program])  # type: ignore[no-untyped-call]
        config, program, words = config_from_args(arguments)
        try:
            elastic_launch(config, program)(*words)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            code = failure.exitcode
            return RankFailure(rank, failure.local_rank, code if code >= 0 else _KILLED - code)
        except SignalException as stop:
            number = signal.Signals(stop.sigval)
        except RendezvousError as error:
            raise ClusterError(
                f"the hosts did not find each other: {error}; start all of them with the same words within "
                "cluster.rendezvous.join_timeout_s, the first one included, and see that its port is open to the others"
            ) from error
        else:
            return None
    if number is signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(_KILLED + number)
