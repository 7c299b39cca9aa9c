"""What all ranks must have alike, and what becomes of one that fails: all know, by name, and all stop.

Ranks that differ in data, order or config would train on a mixture of both in silence; ranks of which one has failed
would wait for it. Facts are compared by one short digest, so that agreeing costs one small exchange; only when digests
differ do ranks tell each other everything, to say what it is and who has which.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from flodl_pipe.cluster.world import World
from flodl_pipe.errors import ClusterError

__all__ = ["agree", "outcome"]

_Result = TypeVar("_Result")

_MAX_LINES = 12
_MAX_SHOWN = 80
_MAX_REASON = 2000
_NOTHING = "nothing"
_ABSENT = object()


def agree(world: World, facts: Mapping[str, Any], when: str) -> None:
    """Refuse to go on unless all ranks have equal facts. All ranks must call this.

    Args:
        world: The ranks.
        facts: Name of each fact -> its value, anything that JSON holds. A text that is a JSON object is told key by
            key; a cursor's state dict serves as it is.
        when: Where in the run this is, to be read after "the ranks do not agree": "before the first step".

    Raises:
        ClusterError: on every rank, if they differ; it names each fact that does, its values and who has them, the
            fewest first. Also if ranks do not come.
    """
    texts = {name: _as_text(value) for name, value in facts.items()}
    digest = hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()
    what = f"comparing data, order and config {when}"
    if len(set(world.gather(digest, what))) == 1:
        return
    all_facts: list[dict[str, str]] = world.gather(texts, what)
    lines = list(_differences(world, all_facts))
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES:] = [f"and {len(lines) - _MAX_LINES} more differences"]
    told = "".join(f"\n  {line}" for line in lines)
    raise ClusterError(f"the ranks do not agree {when}; give all of them the same data and config{told}")


def outcome(
    world: World, when: str, call: Callable[[], _Result], *, undo: Callable[[_Result], object] | None = None
) -> _Result:
    """Do something on every rank, and go on only if it has succeeded on all. All ranks must call this.

    Args:
        world: The ranks.
        when: What is done, to be read after "failed": "building the loader".
        call: Called once. It must not talk to other ranks, or take care of those that fail before it does.
        undo: Takes back what ``call`` returned, where that failed on another rank.

    Returns:
        What ``call`` returned on this rank.

    Raises:
        Exception: what ``call`` raised, on the rank where it did.
        ClusterError: on the others, naming who has failed, and of what; also if ranks do not come.
    """
    try:
        result = call()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        with contextlib.suppress(ClusterError):  # the error itself says more than that others are gone too
            world.gather(reason[:_MAX_REASON], when)
        raise
    try:
        reasons = world.gather(None, when)
    except ClusterError:
        if undo is not None:
            undo(result)
        raise
    failed = [rank for rank, reason in enumerate(reasons) if reason is not None]
    if failed:
        if undo is not None:
            undo(result)
        by_reason: dict[str, list[int]] = {}
        for rank in failed:
            by_reason.setdefault(reasons[rank], []).append(rank)
        told = "; ".join(f"{world.names(ranks)}: {reason}" for reason, ranks in by_reason.items())
        raise ClusterError(f"{when} failed on {len(failed)} of {world.world_size} ranks, so all stop: {told}")
    return result


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _differences(world: World, all_facts: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield a line for each fact, or key in it, that is not the same on all ranks."""
    for name in dict.fromkeys(name for facts in all_facts for name in facts):
        texts = [facts.get(name) for facts in all_facts]
        if len(set(texts)) == 1:
            continue
        lines = list(_compared(world, name, [_parsed(text) for text in texts]))
        # The same keys and values, in another order, or written in another way.
        yield from lines or [_line(world, name, [_NOTHING if text is None else text for text in texts])]


def _parsed(text: str | None) -> Any:
    """Return what a fact says: a text, or what a text that is a JSON object holds."""
    if text is None:
        return _ABSENT
    if text.startswith("{"):
        with contextlib.suppress(ValueError):
            return json.loads(text)
    return text


def _compared(world: World, name: str, values: Sequence[Any]) -> Iterator[str]:
    """Yield a line for each key that differs: ``loader.batch_size``.

    Objects are told key by key if all ranks have one; where some have none it is that which is told, once.
    """
    if all(isinstance(value, dict) for value in values):
        for key in dict.fromkeys(key for value in values for key in value):
            yield from _compared(world, f"{name}.{key}", [value.get(key, _ABSENT) for value in values])
        return
    exact = [_NOTHING if value is _ABSENT else json.dumps(value) for value in values]
    if len(set(exact)) == 1:
        return
    short = [_short(value) for value in values]
    yield _line(world, name, short if len(set(short)) > 1 else exact)


def _short(value: Any) -> str:
    """Return a value as a line tells it: a text as it is, an object without what is null in it."""
    if value is _ABSENT:
        return _NOTHING
    return value if isinstance(value, str) else json.dumps(_without_nulls(value))


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _without_nulls(item) for key, item in value.items() if item is not None}


def _line(world: World, name: str, values: Sequence[str]) -> str:
    """Tell who has which value, the odd ones out first; of two equal camps, the one without the first rank."""
    by_value: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        by_value.setdefault(value, []).append(rank)
    groups = sorted(by_value.items(), key=lambda item: (len(item[1]), -item[1][0]))
    start = _first_difference(list(by_value))
    told = "; ".join(f"{_shown(value, start)} on {world.names(ranks)}" for value, ranks in groups)
    return f"{name}: {told}"


def _first_difference(values: Sequence[str]) -> int:
    shortest = min(map(len, values))
    return next((at for at in range(shortest) if len({value[at] for value in values}) > 1), shortest)


def _shown(value: str, differs_at: int) -> str:
    """Return a value, or of a long one the stretch where it differs from the others."""
    if len(value) <= _MAX_SHOWN:
        return value or "''"
    start = max(0, min(differs_at - 20, len(value) - _MAX_SHOWN))
    end = start + _MAX_SHOWN
    return f"{'...' if start else ''}{value[start:end]}{'...' if end < len(value) else ''}"
