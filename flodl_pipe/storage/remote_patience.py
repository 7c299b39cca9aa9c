"""How long to go on asking: waits that grow, with jitter, until time is up rather than tries.

::

    first failure                                                       given up
    |-0.1-|--0.2--|---0.4---|-----0.8-----| ... |--4 s--|--4 s--| ... --| patience_s

What counts is how long a server may be away: one that is started again is missed for seconds, however many requests
were in flight. Only at the very first contact the patience is short, because an address that nobody answers at is most
often a wrong one. The client library makes a few quick tries of its own within each of ours.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar, final

from flodl_pipe.storage.remote_errors import StoreError

__all__ = ["Patience", "RemotePolicy"]

T = TypeVar("T")


@final
@dataclass(frozen=True)
class RemotePolicy:
    """How much is asked for at once, and how long it may take.

    Attributes:
        in_flight: Most requests at once, per call.
        flight_bytes: Most bytes that the requests of one call may have in flight.
        gap_bytes: See :mod:`flodl_pipe.storage.remote_ranges`.
        range_bytes: See :mod:`flodl_pipe.storage.remote_ranges`; longer reads are cut into parts of this size.
        whole_bytes: Largest object that is fetched whole from a server that ignores ranges.
        connect_timeout_s: Time to make a connection.
        stall_timeout_s: Time without a byte of an answer.
        request_timeout_s: Time for one try of a request, its body included.
        deadline_s: Time for a call as a whole, with all its retries.
        patience_s: Time from the first failure of a request on in which it is made again.
        opening_patience_s: The same, from the first try on, as long as the server has never given any answer.
        client_retries: Quick retries of the client library within one try. It also makes them when it asks for
            credentials, and goes on with a body where that broke off.
        first_backoff_s: Mean wait before the first retry; each further one waits about twice as long.
        longest_backoff_s: Longest mean wait.
    """

    in_flight: int = 64
    flight_bytes: int = 64 << 20
    gap_bytes: int = 64 << 10
    range_bytes: int = 1 << 20
    whole_bytes: int = 64 << 20
    connect_timeout_s: float = 5.0
    stall_timeout_s: float = 20.0
    request_timeout_s: float = 60.0
    deadline_s: float = 180.0
    patience_s: float = 40.0
    opening_patience_s: float = 3.0
    client_retries: int = 2
    first_backoff_s: float = 0.1
    longest_backoff_s: float = 4.0


@final
class Patience:
    """Makes requests again while that may help.

    Args:
        policy: Limits and time-outs.
    """

    def __init__(self, policy: RemotePolicy) -> None:
        self._policy = policy
        self._random = random.Random()  # noqa: S311 - jitter; a generator of our own, seeded by the system

    async def insist(self, attempt: Callable[[], Awaitable[T]], known: Callable[[], bool]) -> T:
        """Return what ``attempt`` does, trying again after failures that may pass.

        Args:
            attempt: Makes the request once.
            known: Whether the server has answered before.

        Raises:
            StoreError: the last failure, with the number of tries and the time they took.
        """
        tries, wait_s, began_s = 0, self._policy.first_backoff_s, time.monotonic()
        failed_s = 0.0
        while True:
            try:
                return await attempt()
            except StoreError as error:
                failure = error
            now_s, tries = time.monotonic(), tries + 1
            failed_s = failed_s or now_s
            until_s = failed_s + self._policy.patience_s if known() else began_s + self._policy.opening_patience_s
            if not failure.retryable:
                raise failure
            if now_s >= until_s:
                raise failure.given_up(tries, now_s - began_s)
            # The last try comes when the time is up, not somewhat before.
            await asyncio.sleep(min(wait_s * self._random.uniform(0.5, 1.5), until_s - now_s + 0.001))
            wait_s = min(wait_s * 2, self._policy.longest_backoff_s)
