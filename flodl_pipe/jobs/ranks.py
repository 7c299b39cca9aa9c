"""The ranks of a job that torchrun started, as the job sees them: one of them speaks and writes, all of them count.

Ranks of ``job=run`` do not wait for each other in every step, as a training loop does; they meet where something has
to be known of all: at a save, and at the end. Whoever is asked to stop calls a meeting too. All meetings carry the same
record, so a rank that came for a save learns that another has to stop, and all go on to the step of the foremost.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar, final

from flodl_pipe.cluster.agree import outcome
from flodl_pipe.cluster.bulletin import open_board
from flodl_pipe.cluster.joining import Joined, join
from flodl_pipe.cluster.layout_table import layout_rows
from flodl_pipe.cluster.process_group import process_group
from flodl_pipe.config.cluster import ClusterConfig
from flodl_pipe.keyed.digest import Digest
from flodl_pipe.reports.failure import say_failure

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["Part", "Ranks", "job_ranks", "whole"]

_Record = TypeVar("_Record", bound="DataclassInstance")

_log = logging.getLogger("flodl_pipe")


@final
class Part(NamedTuple):
    """What one rank has done since this start.

    Attributes:
        num_steps: Steps of the whole run, earlier starts included.
        num_rows: Rows it has handed out.
        digest: Digest of them.
        wait_s: Seconds that its loop waited.
        took_s: Seconds that its loop took.
        stops: Whether it was asked to stop.
        skipped: Samples that it skips, met by it or by others, with the reason.
    """

    num_steps: int
    num_rows: int
    digest: str
    wait_s: float
    took_s: float
    stops: bool
    skipped: Sequence[tuple[int, str]] = ()


@final
class Ranks:
    """The ranks of a job; without torchrun, one.

    Args:
        joined: This process in its place; None: it is alone, whatever its loader is told.
    """

    def __init__(self, joined: Joined | None = None) -> None:
        self.joined = joined
        self._world = None if joined is None else joined.context.world

    @property
    def several(self) -> bool:
        """Whether there is more than one."""
        return self._world is not None

    @property
    def is_first(self) -> bool:
        """Whether this is the one that speaks and writes."""
        return self._world is None or self._world.rank == 0

    @property
    def names(self) -> tuple[str, ...]:
        """Host and local rank of each, by global rank."""
        world = self._world
        return () if world is None else tuple(world.name(rank) for rank in range(world.world_size))

    def layout(self, global_batch: int) -> tuple[tuple[str, str], ...]:
        """Return who each rank is, and how many rows of a step it takes, as pairs of name and value."""
        if self.joined is None or self._world is None:
            return ()
        ratios = self.joined.context.ratios or (1,) * self._world.world_size
        return layout_rows(self._world.members, ratios, self.joined.layout, global_batch)

    def meet(self, mine: Part) -> list[Part]:
        """Return the record of every rank, by global rank. All must come.

        Raises:
            ClusterError: if a rank does not come in time; it is named.
        """
        if self._world is None:
            return [mine]
        parts = self._world.gather(list(mine), "a save, or the end", detail=f" (at step {mine.num_steps})")
        return [Part._make(part)._replace(skipped=[(sample, why) for sample, why in part[-1]]) for part in parts]

    def first(self, make: Callable[[], _Record | None], kind: type[_Record], what: str) -> _Record | None:
        """Return what the first rank makes, on every rank. Whatever goes wrong there is raised on all.

        Args:
            make: Called on the first rank.
            kind: Its class, a dataclass of JSON-able fields.
            what: What it is about, for errors.

        Raises:
            FlodlPipeError: what ``make`` raised; a ClusterError that tells it on the other ranks.
        """
        if self._world is None:
            return make()
        made = outcome(self._world, what, lambda: make() if self.is_first else None)
        plain = self._world.gather(None if made is None else asdict(made), what)[0]
        return None if plain is None else kind(**plain)


def whole(parts: Sequence[Part]) -> Digest:
    """Return the digest, and the number of rows, of what all ranks have handed out."""
    total = Digest()
    for part in parts:
        total.merge(Digest.from_hex(part.digest, part.num_rows))
    return total


@contextmanager
def job_ranks(cluster: ClusterConfig) -> Iterator[Ranks]:
    """Join the other ranks of a job, if torchrun started this process as one of several.

    Raises:
        ClusterError: if ranks are missing, or are not those of the layout.
    """
    with process_group(cluster.timeout_s), _said_before_leaving():
        joined = join(cluster)
        ranks = Ranks(joined)
        if not ranks.several:
            yield ranks
            return
        context = joined.context
        if context.shares is not None:
            # Nothing is computed here, and a rank that has to stop early would miss an exchange.
            ranks.joined = joined._replace(context=replace(context, shares=None))
            if ranks.is_first:
                _log.info("cluster.balance=auto has no effect in job=run, which computes nothing: shares stay")
        place = f"[{context.host}/{context.local_rank}] "
        speaks = _Speaks(place, everything=ranks.is_first, of_host=context.local_rank == 0)
        _log.addFilter(speaks)
        try:
            if ranks.is_first and (restarts := os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) != "0":
                _log.info("torchrun has started the ranks anew; restart %s", restarts)
            yield ranks
        finally:
            _log.removeFilter(speaks)


@contextmanager
def _said_before_leaving() -> Iterator[None]:
    """Say what goes wrong before this rank leaves the others.

    They notice that at once and end as well, upon which torchrun ends this one, whether it has said why or not. What
    several ranks would say alike is said by the first of them.
    """
    try:
        yield
    except Exception as error:
        say_failure(error, silently=not _is_first_to_say(f"{type(error).__name__}: {error}"))
        raise


def _is_first_to_say(text: str) -> bool:
    """Return whether no other rank of this start has come with the same words; True for a process alone."""
    board = open_board(f"said/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}")
    if board is None:
        return True
    name, mine = hashlib.sha256(text.encode()).hexdigest(), os.environ.get("RANK", "0")
    try:
        return bool(board.compare_set(name, "", mine).decode() == mine)
    except RuntimeError:  # rank 0, which keeps the store, has gone: better twice than not at all
        return True


@final
class _Speaks(logging.Filter):
    """Lets the first rank say everything, the others only warnings, with their name before; one tells of the host."""

    def __init__(self, name: str, *, everything: bool, of_host: bool) -> None:
        super().__init__()
        self._name, self._everything, self._of_host = name, everything, of_host

    def filter(self, record: logging.LogRecord) -> bool:
        if self._everything:
            return True
        if record.levelno < logging.WARNING or (not self._of_host and getattr(record, "of_host", False)):
            return False
        record.msg = self._name.replace("%", "%%" if record.args else "%") + str(record.msg)
        return True
