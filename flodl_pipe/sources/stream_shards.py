"""One iterable of the user's: begun anew for every pass, or, where it is an iterator, once.

Its state, where it keeps one, is kept by the iterator (``iter(shard).state_dict()``) or by the iterable itself, as
Hugging Face's iterable datasets do. In the second case a state says where the *last* iteration stands, so of two
readers of one shard only the younger asks for it, and an iterable that once was sent to a state is sent back to its
begin for the next pass.
"""

import itertools
import json
import logging
from collections.abc import Iterable, Iterator, Sized
from typing import Protocol, final, runtime_checkable

from flodl_pipe.errors import ResumeError, SourceError
from flodl_pipe.sources.stream_iterate import StateOf
from flodl_pipe.sources.user_access import type_name

__all__ = ["Shard", "Stateful"]

_logger = logging.getLogger("flodl_pipe")


@runtime_checkable
class Stateful(Protocol):
    """What can say where it is, and go there."""

    def state_dict(self) -> object: ...
    def load_state_dict(self, state: object, /) -> object: ...


@runtime_checkable
class _KnowsEpochs(Protocol):
    """What wants to be told the epoch before it is iterated, as Hugging Face's datasets do for their own shuffling."""

    def set_epoch(self, epoch: int, /) -> object: ...


@final
class Shard:
    """One of the iterables of a stream.

    Args:
        iterable: The user's.
        number: Its lane.

    Raises:
        SourceError: if it cannot be iterated.
    """

    def __init__(self, iterable: Iterable[object], number: int) -> None:
        if not isinstance(iterable, Iterable):
            raise SourceError(
                f"shard {number} is {type_name(iterable)}, which cannot be iterated; give a list of iterables, one for "
                "each shard of the data"
            )
        self._iterable = iterable
        self.name = type_name(iterable)
        self.what = f"lane {number} ({self.name})"
        self.once = isinstance(iterable, Iterator) and iter(iterable) is iterable
        self._seen: list[object] = []  # of an iterator: taken from it and not handed out
        self._spent = self._sent = False
        self._begin_state = ""
        self._passes = 0
        self._said = False
        if isinstance(iterable, Stateful) and not self.once:
            self._begin_state = json.dumps(iterable.state_dict(), default=repr)

    def num_samples(self) -> int | None:
        """Return the length that the iterable states, if any."""
        if not isinstance(self._iterable, Sized):
            return None
        try:
            return len(self._iterable)
        except (TypeError, NotImplementedError):  # what torch's own wrappers raise where they cannot tell
            return None

    def head(self, count: int) -> list[object]:
        """Return the first samples, at most ``count``; of an iterator as many as were not handed out."""
        if not self.once:
            return list(itertools.islice(self.begin("", epoch=0)[0], count))
        if not self._spent:
            missing = count - len(self._seen)
            self._seen += itertools.islice(iter(self._iterable), max(missing, 0))
        return self._seen[:count]

    def begin(self, state: str, *, epoch: int) -> tuple[Iterator[object], StateOf | None]:
        """Start a pass; return its samples, and what says where it stands.

        Args:
            state: Where to begin; empty: at the begin.
            epoch: Number of the pass, for iterables that want to know it.

        Raises:
            SourceError: if it is an iterator that was begun before.
            ResumeError: if there is a state, and nothing that could load it.
        """
        self._passes += 1
        if self.once:
            return self._begin_once(state)
        iterable = self._iterable
        if isinstance(iterable, _KnowsEpochs):
            iterable.set_epoch(epoch)
        iterator = iter(iterable)
        if isinstance(iterator, Stateful):
            if state:
                iterator.load_state_dict(json.loads(state))
            return iterator, iterator.state_dict
        if not isinstance(iterable, Stateful):
            self._require_none(state)
            return iterator, None
        if state or self._sent:
            iterable.load_state_dict(json.loads(state or self._begin_state))
            self._sent = True
            iterator = iter(iterable)  # what was begun before the state was loaded does not know it
        return iterator, self._own_state(iterable)

    def _begin_once(self, state: str) -> tuple[Iterator[object], StateOf | None]:
        if self._spent:
            raise SourceError(
                f"{self.what} is an iterator, which gives its samples once, and this is a second pass; give an "
                "iterable that can begin anew: a list, or an object whose __iter__ makes a new iterator"
            )
        self._spent = True
        iterator, seen = iter(self._iterable), self._seen
        stateful = iterator if isinstance(iterator, Stateful) else None
        if stateful is None:
            self._require_none(state)
        elif state:
            stateful.load_state_dict(json.loads(state))
            seen = []
        return itertools.chain(seen, iterator), stateful.state_dict if stateful is not None else None

    def _require_none(self, state: str) -> None:
        if state:
            raise ResumeError(
                f"{self.what} has no load_state_dict(), and the saved place holds a state of its own; it is not what "
                "it was, resume with the data the state was saved with"
            )

    def say_no_state(self, why: str) -> None:
        """Say once that a state cannot be kept, and why."""
        if not self._said:
            self._said = True
            _logger.warning(
                "%s: its state_dict() %s; resuming reads the samples before the place again and skips them",
                *(self.what, why),
            )

    def _own_state(self, own: Stateful) -> StateOf:
        """Return what says the state of the pass that begins now, as long as it is the youngest."""
        number = self._passes
        return lambda: own.state_dict() if number == self._passes else None
