"""Whether sources deliver alike: known where they say so, never guessed.

Two sources of equal specs may still mean different bytes by them: records whose fields lie at other offsets, tokens
with another end of document. What ``deliver`` does cannot be read off a spec, and trying it on some rows proves
nothing about the others.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from flodl_pipe.sources.protocol import Source

__all__ = ["Alike", "deliver_alike", "delivery_of"]


@runtime_checkable
class Alike(Protocol):
    """A source that says how it delivers."""

    delivery: object
    """For two sources of equal specs: equal values other than None mean that their ``deliver`` is one function."""


def delivery_of(source: Source) -> object:
    """Return what a source says about how it delivers; None if it says nothing."""
    return source.delivery if isinstance(source, Alike) else None


def deliver_alike(sources: Sequence[Source]) -> bool:
    """Return whether sources of equal specs are known to deliver by the same function."""
    ways = [delivery_of(source) for source in sources]
    return len(ways) == 1 or (ways[0] is not None and all(way == ways[0] for way in ways))
