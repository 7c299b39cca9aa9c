"""What a program of a test says when everything else at its exit is done: import this first.

Handlers at exit run in the reverse order of their registration, and the warm parent has imported the package, with the
handlers that it registers, before any program begins. It imports this before the package.
"""

import atexit
from collections.abc import Callable

LAST: list[Callable[[], None]] = []
"""What is called then, in order."""


def _say() -> None:
    for call in LAST:
        call()


atexit.register(_say)
