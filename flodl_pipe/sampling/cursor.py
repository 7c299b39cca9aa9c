"""The cursor: all there is to resume, as one small JSON-able dict with fixed keys.

It counts what was handed to the training loop, not what was read ahead. It holds no world size, reader, tier or device:
a run may resume on another machine, with other shares. Keys of parts that a pipeline does not have hold empty strings.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any, Self, final

from flodl_pipe.errors import ResumeError

__all__ = ["VERSION", "Cursor"]

VERSION = 1
_NUMBERS = frozenset({"epoch", "position", "global_batch", "version"})


@final
@dataclass(frozen=True)
class Cursor:
    """A place in the stream, and the identity of the stream it is a place in.

    Attributes:
        epoch: Epoch number, counted from 0.
        position: Positions of that epoch that were handed out, over all ranks.
        global_batch: Rows of a step over all ranks.
        order: Tag and constants of the order.
        source: Fingerprint of the data.
        transforms: Fingerprint of the transforms.
        shares: History of share changes.
        mixture: History of mixture weights.
        streams: Offsets of streams.
        skipped: Samples that could not be read and are skipped, and why.
        version: Layout of this record.
    """

    epoch: int
    position: int
    global_batch: int
    order: str
    source: str
    transforms: str = ""
    shares: str = ""
    mixture: str = ""
    streams: str = ""
    skipped: str = ""
    version: int = VERSION

    def state(self) -> dict[str, int | str]:
        """Return the cursor as a plain dict, ready for ``json.dumps`` or a checkpoint."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Any) -> Self:
        """Read a dict that :meth:`state` made, however it was stored.

        Raises:
            ResumeError: if it is not such a dict: keys, types or version differ.
        """
        if not isinstance(state, dict):
            raise ResumeError(f"a loader state is a dict, got {type(state).__name__}; pass what state_dict() returned")
        wanted = {field.name for field in fields(cls)}
        if state.get("version") != VERSION:
            raise ResumeError(
                f"this state has version {state.get('version')!r}, and this flodl_pipe reads version {VERSION}; "
                "resume with the flodl_pipe that wrote it"
            )
        if set(state) != wanted:
            missing, extra = sorted(wanted - set(state)), sorted(set(state) - wanted)
            raise ResumeError(f"this is no loader state: keys missing {missing}, unknown {extra}")
        for name, value in state.items():
            kind = int if name in _NUMBERS else str
            if not isinstance(value, kind) or isinstance(value, bool):
                raise ResumeError(f"loader state: {name} must be {kind.__name__}, got {value!r}")
        counts = state["epoch"] < 1 << 64 and max(state["position"], state["global_batch"]) <= 1 << 62
        if not counts or min(state["epoch"], state["position"], state["global_batch"] - 1) < 0:
            raise ResumeError(
                f"loader state: epoch {state['epoch']}, position {state['position']} and global batch "
                f"{state['global_batch']} must be at least 0, 0 and 1, the epoch below 2**64 and the others at most "
                "2**62; the state was edited or damaged, resume from another one"
            )
        return cls(**state)

    def check(self, *, order: str, source: str, num_picks: int | None, transforms: str = "") -> None:
        """Refuse to continue in another stream, or beyond the end of an epoch.

        Raises:
            ResumeError: naming each part that differs, with both sides.
        """
        pairs = [
            ("data", self.source, source),
            ("order", self.order, order),
            ("transforms", self.transforms, transforms),
        ]
        different = [
            f"  {what} saved: {saved or 'none'}\n  {what} now:   {now or 'none'}"
            for what, saved, now in pairs
            if saved != now
        ]
        if different:
            raise ResumeError(
                "this state belongs to another stream of samples; resume with the data, order and transforms it was "
                "saved with, or start anew without it\n" + "\n".join(different)
            )
        if num_picks is not None and self.position > num_picks:
            raise ResumeError(
                f"the saved position {self.position} lies beyond the epoch of {num_picks} samples; "
                "the state was edited or damaged, resume from another one"
            )
