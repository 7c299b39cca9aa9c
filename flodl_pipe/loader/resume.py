"""What a saved cursor asks of a loader: the same stream, and which global batch it is cut by from there on."""

import logging
import re
from dataclasses import dataclass
from typing import Literal, final

from flodl_pipe.loader.identity import StreamIdentity
from flodl_pipe.sampling.bucketed import rows_in
from flodl_pipe.sampling.cursor import Cursor

__all__ = ["Continued", "continue_from"]

_log = logging.getLogger("flodl_pipe")


@final
@dataclass(frozen=True)
class Continued:
    """How a loader must be built to go on from a cursor.

    Attributes:
        order_tag: Tag of its order.
        global_batch: Rows of a step over all ranks.
        bucket_rows: Rows of a batch of the bucketed order; None for other orders.
    """

    order_tag: str
    global_batch: int
    bucket_rows: int | None


def continue_from(
    cursor: Cursor,
    stream: StreamIdentity,
    *,
    num_picks: int | None,
    rule: Literal["keep", "scale"],
    one_by_one: bool = False,
) -> Continued:
    """Compare a cursor with a loader's stream, and say how the loader goes on.

    Args:
        cursor: The saved place.
        stream: What the loader serves now.
        num_picks: Positions of an epoch; None where they are not known.
        rule: Which global batch counts where the two differ.
        one_by_one: Whether the loader delivers samples without a batch axis, which no other global batch can be.

    Raises:
        ResumeError: if the cursor belongs to another stream; both sides are named.
    """
    # Batches of like length were made for the global batch of the first start, and stay as they are.
    rows = rows_in(cursor.order)
    is_bucketed = rows is not None and rows_in(stream.order_tag) is not None
    order_tag = re.sub(r"\brows=\d+", f"rows={rows}", stream.order_tag) if is_bucketed else stream.order_tag
    cursor.check(order=order_tag, source=stream.fingerprint, num_picks=num_picks, transforms=stream.transforms)
    now, saved = stream.global_batch, cursor.global_batch
    if now == saved:
        return Continued(order_tag, saved, rows)
    if one_by_one:
        _log.info("samples are delivered one by one from here on, not in batches of %d as when this was saved", saved)
        return Continued(order_tag, now, rows)
    if rule == "keep":
        _log.warning("resuming with the saved global batch of %d; this run's config says %d", saved, now)
        return Continued(order_tag, saved, rows)
    _log.warning(
        "resuming with this run's global batch of %d instead of the saved %d (loader.global_batch_on_resume=scale): "
        "the samples stay in their order, and are cut into other steps from here on",
        *(now, saved),
    )
    return Continued(order_tag, now, rows)
