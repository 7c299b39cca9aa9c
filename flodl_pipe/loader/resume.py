"""What a saved cursor asks of a loader: the same stream, and which global batch it is cut by from there on."""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar, final

from flodl_pipe.cluster.agree import agree, outcome
from flodl_pipe.cluster.world import World
from flodl_pipe.loader.identity import StreamIdentity
from flodl_pipe.sampling.bucketed import rows_in
from flodl_pipe.sampling.cursor import Cursor
from flodl_pipe.sampling.lanes import constants_in

__all__ = ["Continued", "agree_on_place", "built_by_all", "continue_from"]

_Built = TypeVar("_Built")

_log = logging.getLogger("flodl_pipe")


@final
@dataclass(frozen=True)
class Continued:
    """How a loader must be built to go on from a cursor.

    Attributes:
        order_tag: Tag of its order.
        global_batch: Rows of a step over all ranks.
    """

    order_tag: str
    global_batch: int


def agree_on_place(world: World | None, cursor: Cursor) -> None:
    """Have all ranks continue at one place. What only some have met, damaged samples and lanes of a stream, may differ.

    Args:
        world: The ranks; None: they do not talk to each other.
        cursor: Where this one would continue.

    Raises:
        ClusterError: naming the ranks with another state, or those that did not come.
    """
    if world is not None:
        state = cursor.state()
        agree(world, {name: state[name] for name in state if name not in ("skipped", "streams")}, "at resume")


def built_by_all(world: World | None, build: Callable[[], _Built], close: Callable[[_Built], object]) -> _Built:
    """Return what every rank builds, if every rank can.

    Args:
        world: The ranks; None: they do not talk to each other.
        build: Builds it.
        close: Closes it, where another rank has none.

    Raises:
        Exception: what ``build`` raised, on the rank where it did.
        ClusterError: on the others, naming who has failed, and of what.
    """
    return build() if world is None else outcome(world, "building the loader", build, undo=close)


def continue_from(
    cursor: Cursor,
    stream: StreamIdentity,
    *,
    num_picks: int | None,
    rule: Literal["keep", "scale"],
    one_by_one: bool = False,
    num_lanes: int | None = None,
) -> Continued:
    """Compare a cursor with a loader's stream, and say how the loader goes on.

    Args:
        cursor: The saved place.
        stream: What the loader serves now.
        num_picks: Positions of an epoch; None where they are not known.
        rule: Which global batch counts where the two differ.
        one_by_one: Whether the loader delivers samples without a batch axis, which no other global batch can be.
        num_lanes: Lanes that the loader was asked for; None: those of the first start.

    Raises:
        ResumeError: if the cursor belongs to another stream; both sides are named.
    """
    order_tag = _with_first_constants(stream.order_tag, cursor.order, num_lanes)
    cursor.check(order=order_tag, source=stream.fingerprint, num_picks=num_picks, transforms=stream.transforms)
    now, saved = stream.global_batch, cursor.global_batch
    if now == saved:
        return Continued(order_tag, saved)
    if one_by_one:
        _log.info("samples are delivered one by one from here on, not in batches of %d as when this was saved", saved)
        return Continued(order_tag, now)
    if rule == "keep":
        _log.warning("resuming with the saved global batch of %d; this run's config says %d", saved, now)
        return Continued(order_tag, saved)
    _log.warning(
        "resuming with this run's global batch of %d instead of the saved %d (loader.global_batch_on_resume=scale): "
        "the samples stay in their order, and are cut into other steps from here on",
        *(now, saved),
    )
    return Continued(order_tag, now)


def _with_first_constants(tag: str, saved: str, num_lanes: int | None) -> str:
    """Return an order's tag with the constants that a saved one was given when its run started first."""
    rows, lanes = rows_in(saved), constants_in(saved)
    if rows is not None and rows_in(tag) is not None:
        return re.sub(r"\brows=\d+", f"rows={rows}", tag)
    # Lanes that this run was asked for by number must be the saved ones; else the check names both.
    if lanes is not None and constants_in(tag) is not None and num_lanes in (None, lanes.num_lanes):
        return re.sub(r"\blanes=\d+ rows=\d+", f"lanes={lanes.num_lanes} rows={lanes.rows}", tag)
    return tag
