"""The ledger of samples that could not be read and are skipped: which ones, and why.

Positions never shift: a skipped sample keeps its rows, filled with another row's values and marked invalid. So the
ledger decides nothing about the order. It says which samples not to try again, how many there may be, and what a user
should look at. It goes into the cursor as one text, ascending by sample::

    [[17,"OSError: record 17 is bad"],[512,"..."]]

Ranks of a run keep one ledger together: what one skips is on a bulletin before it counts, and each takes in what others
have posted when it skips one itself, when a pass begins, and when the ledger is asked for. So one limit holds for all,
any rank's cursor lists what all have skipped, and what one could not read is skipped by whoever gets it later.

What was kept is never changed in place, but replaced: readers look without a lock, and a forked child can take it over.
"""

import json
import logging
import threading
from collections.abc import Iterable
from typing import Any, NamedTuple, final

import numpy as np

from flodl_pipe.arrays import BoolArray, IndexArray
from flodl_pipe.cluster.bulletin import Bulletin
from flodl_pipe.errors import FlodlPipeError, ResumeError, SourceError

__all__ = ["SkipLedger", "Skipped", "from_text", "json_lines", "reason_of", "to_text"]

_log = logging.getLogger("flodl_pipe")

_REASON_CHARACTERS = 200

Skipped = tuple[int, str]
"""A sample that is skipped, and why."""


@final
class _Kept(NamedTuple):
    """Samples, ascending, and the reason of each."""

    samples: IndexArray
    reasons: tuple[str, ...]


@final
class SkipLedger:
    """Samples that are skipped, at most so many. Thread-safe.

    Args:
        max_skipped: How many samples there may be, at least 1; over all ranks that share a bulletin.
        bulletin: Where the ranks tell each other what they skip; None: this one is alone.
    """

    def __init__(self, max_skipped: int, bulletin: Bulletin | None = None) -> None:
        self._max_skipped = max_skipped
        self._bulletin = bulletin
        self._kept = _Kept(np.empty(0, dtype=np.int64), ())
        self._lock = threading.Lock()
        self._num_heard = 0
        # What ranks have posted beyond the limit, which ends the run; it is not skipped.
        self._too_much: dict[int, str] = {}
        self._has_refused = False

    def add(self, sample: int, reason: str) -> None:
        """Note a sample that cannot be read, with a warning; one that is noted already is left as it is.

        Args:
            sample: Sample index.
            reason: Why, as :func:`reason_of` says it.

        Raises:
            SourceError: if there would be more than ``max_skipped``.
        """
        with self._lock:
            self._hear()
            is_new = not self._lists(sample)
            if is_new and self._bulletin is not None:
                # One too many is posted too: all ranks have to end then.
                self._bulletin.post(to_text([(sample, reason)]))
                self._hear()
            if not self._lists(sample):  # there are no others
                if len(self) >= self._max_skipped:
                    raise self._too_many(len(self) + 1, (sample, reason))
                self._insert(sample, reason)
            self._require_few()
            count = len(self)
        if is_new:
            _log.warning(
                "sample %d cannot be read and is skipped, %d of at most %d: %s",
                *(sample, count, self._max_skipped, reason),
            )

    def look(self) -> None:
        """Take in what other ranks skip by now.

        Raises:
            SourceError: if with it there are more than ``max_skipped``.
        """
        if self._bulletin is None:
            return
        with self._lock:
            self._hear()
            self._require_few()

    def take_over(self, entries: Iterable[Skipped]) -> None:
        """Add what a saved ledger holds, without warnings.

        Raises:
            ResumeError: if there would be more than ``max_skipped``; nothing has changed then.
            SourceError: if there are without it, by what other ranks skip.
        """
        with self._lock:
            self._hear()
            self._require_few()
            new = {sample: reason for sample, reason in entries if sample not in self}
            count = len(self) + len(new)
            if count > self._max_skipped:
                raise ResumeError(
                    f"the saved state lists skipped samples, with which there would be {count:,}, and "
                    f"source.max_skipped is {self._max_skipped:,}; set it to {count:,} or more"
                )
            for sample, reason in new.items():
                self._insert(sample, reason)
            if new and self._bulletin is not None:
                self._bulletin.post(to_text(new.items()))

    def inherit(self, entries: Iterable[Skipped]) -> None:
        """Add what the ledger that this one replaces holds."""
        with self._lock:
            for sample, reason in entries:
                self._insert(sample, reason)

    def known(self, samples: IndexArray) -> BoolArray | None:
        """Return which samples are skipped, shape ``(K,)``; None when none is at all.

        Args:
            samples: Samples, int64, shape ``(K,)``.
        """
        skipped = self._kept.samples
        if not len(skipped):
            return None
        places = np.minimum(np.searchsorted(skipped, samples), len(skipped) - 1)
        found: BoolArray = skipped[places] == samples
        return found

    def entries(self) -> tuple[Skipped, ...]:
        """Return the samples, ascending, and why each is skipped; with those that other ranks skip by now."""
        if self._bulletin is not None and self._bulletin.is_open:  # a forked child may find the lock taken for ever
            with self._lock:
                self._hear()
        kept = self._kept
        return tuple(zip(kept.samples.tolist(), kept.reasons, strict=True))

    def text(self) -> str:
        """Return the ledger as a cursor holds it; empty when it is.

        Raises:
            SourceError: if with what other ranks skip there are more than ``max_skipped``; once: who has been told,
                may still save.
        """
        entries = self.entries()
        if not self._has_refused:
            self._require_few()
        return to_text(entries)

    def __len__(self) -> int:
        return len(self._kept.samples)

    def __contains__(self, sample: int) -> bool:
        return self._is_at(int(np.searchsorted(self._kept.samples, sample)), sample)

    def _hear(self) -> None:
        """Take in what ranks have posted, under the lock."""
        if self._bulletin is None:
            return
        posted = self._bulletin.read(self._num_heard)
        self._num_heard += len(posted)
        for sample, reason in (entry for text in posted for entry in _entries(json.loads(text))):
            if len(self) < self._max_skipped:
                self._insert(sample, reason)
            elif sample not in self:
                self._too_much.setdefault(sample, reason)

    def _lists(self, sample: int) -> bool:
        return sample in self or sample in self._too_much

    def _require_few(self) -> None:
        if self._too_much:
            raise self._too_many(len(self) + len(self._too_much), list(self._too_much.items())[-1])

    def _too_many(self, count: int, last: Skipped) -> SourceError:
        self._has_refused = True
        return SourceError(
            f"{count:,} samples could not be read, and source.max_skipped is {self._max_skipped:,}; the last one is "
            f"sample {last[0]:,}: {last[1]}. See to the data, or raise source.max_skipped if so many may be left out"
        )

    def _is_at(self, place: int, sample: int) -> bool:
        samples = self._kept.samples
        return place < len(samples) and int(samples[place]) == sample

    def _insert(self, sample: int, reason: str) -> bool:
        """Put a sample in its place, under the lock; return whether it was not there."""
        samples, reasons = self._kept
        place = int(np.searchsorted(samples, sample))
        if self._is_at(place, sample):
            return False
        self._kept = _Kept(np.insert(samples, place, sample), (*reasons[:place], reason, *reasons[place:]))
        return True


def reason_of(error: BaseException) -> str:
    """Return why a sample is skipped, in one line of at most 200 characters.

    >>> reason_of(OSError("record 7 is bad"))
    'OSError: record 7 is bad'
    """
    said = " ".join(str(error).split())
    # Errors of our own speak for themselves.
    text = said if isinstance(error, FlodlPipeError) and said else f"{type(error).__name__}: {said}".removesuffix(": ")
    return text if len(text) <= _REASON_CHARACTERS else text[: _REASON_CHARACTERS - 3] + "..."


def from_text(text: str, *, num_samples: int) -> tuple[Skipped, ...]:
    """Read what :meth:`SkipLedger.text` wrote.

    Args:
        text: The cursor's text.
        num_samples: Samples of the source.

    Raises:
        ResumeError: if it is not that, or names samples that the source does not have.
    """
    try:
        entries = _entries(json.loads(text)) if text else ()
    except (ValueError, TypeError, RecursionError) as error:
        raise ResumeError(
            f"loader state: skipped is not what a loader saves ({error}); the state was edited or damaged, resume from "
            "another one"
        ) from None
    last = entries[-1][0] if entries else -1
    if last >= num_samples:
        raise ResumeError(
            f"loader state: sample {last:,} is listed as skipped, and the source has {num_samples:,} samples; "
            "the state was edited or damaged, resume from another one"
        )
    return entries


def to_text(entries: Iterable[Skipped]) -> str:
    """Return ledgers, of several ranks one after the other, as a cursor holds them; empty when they are.

    >>> to_text([(20, "OSError: bad"), (17, "OSError: bad"), (20, "OSError: bad")])
    '[[17,"OSError: bad"],[20,"OSError: bad"]]'
    """
    known = sorted(dict(entries).items())
    return json.dumps(known, separators=(",", ":")) if known else ""


def json_lines(entries: Iterable[Skipped]) -> str:
    """Return a ledger as JSON lines: ``{"sample": 17, "reason": "..."}``.

    >>> print(json_lines([(17, "OSError: bad"), (20, "OSError: bad")]), end="")
    {"sample": 17, "reason": "OSError: bad"}
    {"sample": 20, "reason": "OSError: bad"}
    """
    return "".join(f"{json.dumps({'sample': sample, 'reason': reason})}\n" for sample, reason in entries)


def _entries(plain: Any) -> tuple[Skipped, ...]:
    before = -1
    for sample, reason in plain:
        if type(sample) is not int or not before < sample < 1 << 63 or not isinstance(reason, str):
            raise ValueError(f"{str([sample, reason])[:80]} is no sample with a reason, or not in ascending order")
        before = sample
    return tuple((sample, reason) for sample, reason in plain)
