"""Transforms one after the other: named steps, each with random numbers of its own, each held to the contract.

A step draws from a stream that is the hash of its name. Steps may be added, removed or moved, and what the others draw
stays as it was; two steps of one kind draw different numbers, because their names differ.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, final, get_args

from flodl_pipe.batch.batch import Batch
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.errors import LoaderError, TransformError
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.transforms.image_fused import fuse
from flodl_pipe.transforms.protocol import ArrayTransform, BundledTransform, Scope, Transform
from flodl_pipe.transforms.step_result import checked, spans_of
from flodl_pipe.transforms.user_transform import CALLED, UserTransform, name_of

__all__ = ["Chain", "as_chain", "stream_of"]

_WIDTH: tuple[Scope, ...] = get_args(Scope)
_TAKEN = f"give a callable, a sequence of them, or a dict of name -> callable; {CALLED}"


def stream_of(name: str) -> int:
    """Return the stream of a step's random numbers: a 64-bit hash of its name.

    >>> stream_of("crop"), stream_of("flip")
    (16654413820857875841, 4494089339056010658)
    """
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


@final
class Chain:
    """Named transforms in order.

    Attributes:
        names: Names of the steps.
        scope: The widest scope of its steps; ``row`` when it is empty.
        tag: Name and tag of every step and a digest of them, part of every cursor; empty when the chain is.
    """

    def __init__(self, steps: Sequence[tuple[str, Transform]]) -> None:
        """Take the steps.

        Raises:
            LoaderError: if two names are equal, or a step has no valid scope.
        """
        self._steps = tuple((name, stream_of(name), transform) for name, transform in steps)
        self.names = tuple(name for name, _ in steps)
        for place, (name, stream, transform) in enumerate(self._steps):
            twin = next((other for other, taken, _ in self._steps[:place] if taken == stream), None)
            if twin is not None:
                raise LoaderError(
                    f"the transforms {twin!r} and {name!r} would draw the same random numbers; give each step a name "
                    "of its own"
                )
            if not isinstance(transform, Transform):
                raise LoaderError(f"transform {name!r} has no scope; as_chain takes functions of one's own")
            if transform.scope not in _WIDTH:
                raise LoaderError(
                    f"the scope of transform {name!r} must be one of {', '.join(_WIDTH)}, got {transform.scope!r}"
                )
        self.scope: Scope = max((transform.scope for _, transform in steps), key=_WIDTH.index, default="row")
        self.tag = self._tag()

    @property
    def is_empty(self) -> bool:
        """Whether it has no steps."""
        return not self._steps

    def told(self) -> tuple[tuple[str, str, Scope], ...]:
        """Return name, tag and scope of each step."""
        return tuple((name, _tag_of(transform), transform.scope) for name, _, transform in self._steps)

    def __call__(self, batch: Batch, keys: PickKeys) -> Batch:
        """Return the batch that the last step made.

        Raises:
            TransformError: if a step gives back what is no batch of the same rows on the same device.
            Exception: what a step raises, itself, with a note that names the step.
        """
        for place, (name, stream, transform) in enumerate(self._steps, 1):
            # A batch of its own: a step that sets attributes of what it gets changes nothing of what is delivered.
            given = batch.with_fields(batch.names, batch.values())
            spans = spans_of(batch)
            try:
                result = transform(given, keys.of_stream(stream))
            except Exception as error:
                error.add_note(f"raised by transform {name!r}, step {place} of {len(self._steps)}, for {batch!r}")
                raise
            batch = checked(result, name, batch, spans)
        return batch

    def output(self, spec: SampleSpec) -> SampleSpec | None:
        """Return the fields that it makes of these; None where a step of the user's own leaves that open.

        Raises:
            TransformError: if a step cannot work on what it would get; the message names the step.
        """
        for name, _, transform in self._steps:
            if not isinstance(transform, BundledTransform):
                return None
            try:
                spec = transform.output(spec)
            except TransformError as error:
                raise TransformError(f"transform {name!r}: {error}") from None
        return spec

    def array_pass(self, spec: SampleSpec) -> ArrayTransform | None:
        """Return the whole chain as one pass over arrays in host memory; None where there is none.

        Args:
            spec: Fields of the rows that it would get.

        Raises:
            TransformError: as :meth:`output`.
        """
        if self.is_empty or self.output(spec) is None:  # which names the step that cannot work on the fields
            return None
        return fuse([(stream, transform) for _, stream, transform in self._steps], spec)

    def _tag(self) -> str:
        if self.is_empty:
            return ""
        text = "; ".join(f"{name}: {_tag_of(transform)}" for name, _, transform in self._steps)
        return f"{text} [{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}]"

    def __len__(self) -> int:
        return len(self._steps)

    def __repr__(self) -> str:
        return f"Chain({self.tag})"


def as_chain(thing: Any) -> Chain:
    """Return what a user gave as ``transforms`` as a chain.

    Steps without names get those of their functions or classes, in snake case: ``random_crop``, and ``random_crop_2``
    for a second one.

    Args:
        thing: None, a callable, a sequence of callables, a dict of name -> callable, or a chain. A callable of the
            user's own says how far its rows look at each other in an attribute ``scope``; without one it is ``row``.

    Raises:
        LoaderError: if something is no transform; the message says what is taken.
    """
    if thing is None:
        return Chain(())
    if isinstance(thing, Chain):
        return thing
    if isinstance(thing, Mapping):
        for name in thing:
            if not isinstance(name, str) or not name.isidentifier():
                raise LoaderError(f"the transform name {name!r} must be letters, digits and _, as in 'crop'")
        return Chain([(name, _step(transform, f"transform {name!r}")) for name, transform in thing.items()])
    if isinstance(thing, list | tuple):
        steps = [_step(transform, f"transform {place}") for place, transform in enumerate(thing)]
        return Chain(list(zip(_names(thing), steps, strict=True)))
    return Chain([(_snake(thing), _step(thing, "transforms"))])


def _step(thing: Any, what: str) -> Transform:
    if isinstance(thing, Chain):
        raise LoaderError(f"{what} is a chain; a chain is no step of another: give the steps in one dict or sequence")
    if isinstance(thing, type):
        raise LoaderError(f"{what} is the class {thing.__qualname__}, not an object of it; give {thing.__qualname__}()")
    if not callable(thing):
        raise LoaderError(f"{what} is {type(thing).__qualname__} {str(thing)[:40]!r}, which cannot be called; {_TAKEN}")
    if isinstance(thing, BundledTransform | UserTransform):
        return thing
    try:
        return UserTransform(thing)
    except LoaderError as error:
        raise LoaderError(f"{what}: {error}") from None


def _tag_of(transform: Transform) -> str:
    if isinstance(transform, BundledTransform | UserTransform):
        return transform.tag
    return f"{name_of(transform)}()"


def _snake(thing: object) -> str:
    """Return a name for a step without one.

    >>> from functools import partial
    >>> _snake(Chain), _snake(partial(stream_of)), _snake(lambda batch, keys: batch)
    ('chain', 'stream_of', 'function')
    """
    while isinstance(thing, partial):
        thing = thing.func
    name = name_of(thing).rpartition(":")[2].rpartition(".")[2]
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_")
    return words if words.isidentifier() else "function"


def _names(things: Sequence[object]) -> list[str]:
    """Return a name for each step; the second of a name is numbered 2."""
    names: list[str] = []
    for thing in things:
        base = _snake(thing)
        name, number = base, 1
        while name in names:
            number += 1
            name = f"{base}_{number}"
        names.append(name)
    return names
