"""What a user has -> a source or a stream."""

from collections.abc import Iterable, Sequence, Sized
from typing import TypeGuard

import torch.utils.data

from flodl_pipe.errors import LoaderError
from flodl_pipe.sources.adapters import adapt
from flodl_pipe.sources.iterable_stream import IterableStream
from flodl_pipe.sources.protocol import Source
from flodl_pipe.sources.stream_protocol import Stream
from flodl_pipe.sources.user_access import type_name

__all__ = ["as_source"]


def as_source(
    thing: object, *, thread_safe: bool | None = None, ragged: bool | Sequence[str] | None = None, pure: bool = True
) -> Source | Stream:
    """Return a stream or a source as it is, a dataset adapted, and an iterable as a stream of one lane.

    Args:
        thing: What the user has.
        thread_safe: Whether several threads may read a dataset at once; None: as far as that is known.
        ragged: Whether fields of a dataset may be ragged; see :func:`~.adapters.adapt`.
        pure: Whether a sample is the same every time it is read; see :func:`~.adapters.adapt`.

    Raises:
        LoaderError: if it is nothing that can be read.
        SourceError: if it is empty, or its first sample is none.
        Exception: what it raises for its first sample, itself.
    """
    if not pure and (isinstance(thing, Stream) or _is_iterated(thing)):
        raise LoaderError(
            f"pure=False, but {type_name(thing)} is read from the front: it has no samples by number, whose randomness "
            "could be keyed; leave pure, a stream is read once an epoch anyhow and kept nowhere"
        )
    if isinstance(thing, Stream):
        return thing
    if _is_iterated(thing):
        return IterableStream([thing])
    return adapt(thing, thread_safe=thread_safe, ragged=ragged, pure=pure)


def _is_iterated(thing: object) -> TypeGuard[Iterable[object]]:
    """Whether a thing can only be read from the front. Torch's iterable datasets may have a length, and no items."""
    if isinstance(thing, torch.utils.data.IterableDataset):
        return True
    plain = isinstance(thing, Iterable) and not isinstance(thing, Sized | torch.utils.data.DataLoader | type)
    return plain and not isinstance(thing, Source)
