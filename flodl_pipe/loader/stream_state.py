"""Where a stream stands: how many rows each lane has given, and whose turn it is.

What decides is the count of rows; a lane's mark only spares reading them again. In a cursor it is one text::

    {"at":[lane, rows of its turn already given],"lanes":[[rows,ended,mark,rows at the mark],...],"sum":"..."}

The sum is a digest of the rest and of what else the cursor says about the place (epoch, position, global batch), so
that an edited state is refused: a wrong count would not fail, it would deliver other rows.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Self, final

from flodl_pipe.errors import ResumeError

__all__ = ["LaneState", "StreamState"]


@final
@dataclass(frozen=True, slots=True)
class LaneState:
    """One lane.

    Attributes:
        rows: Rows that it has given.
        ended: Whether it has no more.
        mark: Where the stream can open it, as the stream says it; empty: at its begin.
        mark_rows: Rows before that place.
    """

    rows: int = 0
    ended: bool = False
    mark: str = ""
    mark_rows: int = 0


@final
@dataclass(frozen=True, slots=True)
class StreamState:
    """All lanes of an epoch.

    Attributes:
        lanes: One state per lane.
        lane: The lane whose turn it is.
        in_turn: Rows of its turn that it has given.
    """

    lanes: tuple[LaneState, ...]
    lane: int = 0
    in_turn: int = 0

    @classmethod
    def begin(cls, num_lanes: int) -> Self:
        """Return the begin of an epoch."""
        return cls((LaneState(),) * num_lanes)

    @property
    def is_end(self) -> bool:
        """Whether every lane has ended."""
        return all(lane.ended for lane in self.lanes)

    def text(self, place: tuple[int, ...]) -> str:
        """Return the state as a cursor at a place (epoch, position, global batch) holds it."""
        lanes = [[lane.rows, int(lane.ended), lane.mark, lane.mark_rows] for lane in self.lanes]
        plain = {"at": [self.lane, self.in_turn], "lanes": lanes}
        return _json({**plain, "sum": _sum(plain, place)})

    @classmethod
    def from_text(cls, text: str, num_lanes: int, place: tuple[int, ...]) -> Self:
        """Read what :meth:`text` wrote.

        Raises:
            ResumeError: if it is not that, of another place, or of another number of lanes.
        """
        try:
            plain = _checked(json.loads(text), place)
            lane, in_turn = map(_count, plain["at"])
            lanes = tuple(
                LaneState(_count(rows), bool(_count(ended)), str(mark), _count(mark_rows))
                for rows, ended, mark, mark_rows in plain["lanes"]
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ResumeError(
                f"loader state: streams is not what a loader of a stream saves ({error}); the state was edited or "
                "damaged, resume from another one"
            ) from None
        if len(lanes) != num_lanes or lane >= num_lanes:
            raise ResumeError(
                f"the state was saved with {len(lanes)} lanes, and this stream has {num_lanes}; resume with the same "
                "source.lanes, or start anew without it"
            )
        return cls(lanes, lane, in_turn)


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _json(plain: dict[str, Any]) -> str:
    return json.dumps(plain, separators=(",", ":"))


def _sum(plain: dict[str, Any], place: tuple[int, ...]) -> str:
    return hashlib.blake2b(f"{place}|{_json(plain)}".encode(), digest_size=8).hexdigest()


def _checked(plain: dict[str, Any], place: tuple[int, ...]) -> dict[str, Any]:
    """Return the state without its sum, which was right."""
    if plain.pop("sum") != _sum(plain, place):
        raise ValueError("its sum is wrong")
    return plain
