"""Which stream of samples a loader gives, and places in it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, final

from flodl_pipe.loader.ledger import SkipLedger
from flodl_pipe.loader.stream_state import StreamState
from flodl_pipe.sampling.cursor import Cursor
from flodl_pipe.sources.protocol import Fingerprint

__all__ = ["Place", "Spot", "StreamIdentity"]


class Spot(NamedTuple):
    """A place in an epoch.

    Attributes:
        epoch: Epoch number, counted from 0.
        position: Positions of it that were handed out, over all ranks.
        lanes: Where the lanes of a stream stand there; None for a source with an index, and at an epoch's begin.
    """

    epoch: int
    position: int
    lanes: StreamState | None = None


class _Identified(Protocol):
    def fingerprint(self, *, full: bool = False) -> Fingerprint: ...


class Mixing(Protocol):
    """An order that remembers how its weights changed."""

    num_picks: int

    def history(self, global_position: int) -> str: ...


@final
class StreamIdentity:
    """Order and data of a stream. The data's fingerprint reads blocks of the files, so it is made when first asked for.

    Args:
        source: The data.
        order_tag: Tag of the order.
        global_batch: Rows of a step over all ranks.
        mixing: The order of a mixture, whose history belongs to a cursor; None for others.
        transforms: Tag of the transforms.
        skipped: Ledger of the samples that are skipped; None where a sample that cannot be read is an error.
        shares: Shares of the ranks, where they follow speeds.
    """

    def __init__(
        self,
        source: _Identified,
        order_tag: str,
        global_batch: int,
        mixing: Mixing | None = None,
        transforms: str = "",
        skipped: SkipLedger | None = None,
        shares: str = "",
    ) -> None:
        self._source = source
        self.order_tag = order_tag
        self.global_batch = global_batch
        self.mixing = mixing
        self.transforms = transforms
        self.skipped = skipped
        self.shares = shares

    @cached_property
    def fingerprint(self) -> str:
        """The data's fingerprint, as cursors hold it."""
        return str(self._source.fingerprint())

    def with_mixing(self, mixing: Mixing) -> "StreamIdentity":
        """Return the same stream under a mixture's order that remembers another history.

        A new object: batches that were handed out keep the identity they came with, and with it their cursors.
        """
        return self._with(mixing, self.skipped, self.shares)

    def with_ledger(self, skipped: SkipLedger | None) -> "StreamIdentity":
        """Return the same stream with a ledger of skipped samples, which its cursors will hold."""
        return self._with(self.mixing, skipped, self.shares)

    def with_shares(self, shares: str) -> "StreamIdentity":
        """Return the same stream under other shares of the ranks."""
        return self if shares == self.shares else self._with(self.mixing, self.skipped, shares)

    def _with(self, mixing: Mixing | None, skipped: SkipLedger | None, shares: str) -> "StreamIdentity":
        other = StreamIdentity(
            self._source, self.order_tag, self.global_batch, mixing, self.transforms, skipped, shares
        )
        if "fingerprint" in self.__dict__:
            other.__dict__["fingerprint"] = self.fingerprint
        return other

    def cursor(self, spot: Spot) -> Cursor:
        """Return the cursor at a place. It lists the samples that are skipped by now, also those met ahead of it."""
        mixing = self.mixing
        return Cursor(
            spot.epoch,
            spot.position,
            self.global_batch,
            self.order_tag,
            self.fingerprint,
            transforms=self.transforms,
            shares=self.shares,
            mixture="" if mixing is None else mixing.history(spot.epoch * mixing.num_picks + spot.position),
            skipped="" if self.skipped is None else self.skipped.text(),
            streams="" if spot.lanes is None else spot.lanes.text((spot.epoch, spot.position, self.global_batch)),
        )


@final
@dataclass(slots=True, eq=False)
class Place:
    """A place in a stream, turned into a cursor when somebody wants one.

    Attributes:
        stream: The stream.
        spot: The place.
        begin: Position at which the step before it begins.
    """

    stream: StreamIdentity
    spot: Spot
    begin: int

    def state(self) -> dict[str, int | str]:
        """Return the loader state at this place."""
        return self.stream.cursor(self.spot).state()

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickled batch takes the cursor along, not the source.
        return Cursor.from_state, (self.state(),)
