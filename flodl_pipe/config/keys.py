"""Key paths: from a location in a model to the key a user wrote, and to the key they probably meant."""

import difflib
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

__all__ = [
    "UNSET",
    "Key",
    "children",
    "did_you_mean",
    "dotted",
    "elsewhere",
    "has_free_names",
    "key_names",
    "locate",
    "may_be_added",
    "parse_key",
]

UNSET = "??? "
"""What a recipe's ``???`` becomes, a key that has to be given; told from OmegaConf's own by the blank."""

Key = tuple[str | int, ...]
"""Path of a key; integers are places in a list."""


def dotted(key: Key) -> str:
    """Return a key as messages show it.

    >>> dotted(("source", "path", 0))
    'source.path[0]'
    """
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)
    return text.removeprefix(".")


def parse_key(text: str) -> Key:
    """Return the path that a dotted key names, in OmegaConf's spelling or ours.

    >>> parse_key("source.path[0]"), parse_key("source.path.0")
    (('source', 'path', 0), ('source', 'path', 0))
    """
    parts = text.replace("[", ".").replace("]", "").split(".")
    return tuple(int(part) if part.isdigit() else part for part in parts if part)


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the closest option, or an empty string.

    >>> did_you_mean("vram_max_usge", ["vram_max_usage", "readers"])
    " Did you mean 'vram_max_usage'?"
    """
    close = difflib.get_close_matches(word, list(options), n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else ""


def key_names(model: type[BaseModel]) -> list[str]:
    """Return the keys of a section as YAML spells them."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _strip(annotation: Any) -> Any:
    """Remove ``Annotated`` and ``| None``."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif get_origin(annotation) in (Union, types.UnionType):
            arms = [arm for arm in get_args(annotation) if arm is not types.NoneType]
            if len(arms) > 1:
                return annotation
            annotation = arms[0]
        else:
            return annotation


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _kinds(annotation: Any) -> dict[str, type[BaseModel]]:
    """Return kind -> model for a union that is told apart by ``kind``, else an empty dict."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return {}
    arms = [_strip(arm) for arm in get_args(annotation)]
    return {
        get_args(arm.model_fields["kind"].annotation)[0]: arm
        for arm in arms
        if _is_model(arm) and get_origin(arm.model_fields["kind"].annotation) is Literal
    }


def children(model: type[BaseModel], name: str) -> list[type[BaseModel]]:
    """Return the models a key of ``model`` may hold: one for a section, several for a section with kinds."""
    field = next((field for known, field in model.model_fields.items() if name in (known, field.alias)), None)
    found = _strip(field.annotation) if field is not None else None
    if isinstance(found, type) and issubclass(found, BaseModel):
        return [found]
    return list(_kinds(found).values())


def has_free_names(model: type[BaseModel], key: Key) -> bool:
    """Return whether a key holds a mapping whose names the user chooses.

    Args:
        model: The whole config.
        key: A key of it, such as ``("source", "fields")``.
    """
    return any(get_origin(_strip(at)) is dict for at in _types(model, key))


def may_be_added(model: type[BaseModel], key: Key) -> bool:
    """Return whether a key that a composed config lacks may still be added to it.

    Options list all keys of a section, so that none needs adding; but not those of a mapping whose names the user
    chooses, nor of sections below one.

    Args:
        model: The whole config.
        key: A key, such as ``("source", "parts", "web", "source", "stride")``.
    """
    # A section within a section is null until somebody fills it, as `source.subset` is.
    chosen = len(key) > 2 or any(has_free_names(model, key[:end]) for end in range(1, len(key)))
    return chosen and bool(_types(model, key))


def _types(model: type[BaseModel], key: Key) -> list[Any]:
    """Return the types that a key may have, one per kind on its way; none if there is no such key."""
    found: list[Any] = [model]
    for part in key:
        found = [below for at in found for below in _below(_strip(at), part)]
    return found


def _below(at: Any, part: str | int) -> list[Any]:
    """Return the types that a part of a key may have below a type: one in a mapping or list, one per kind else."""
    if get_origin(at) in (dict, list):
        return [get_args(at)[-1]]
    models = [at] if _is_model(at) else list(_kinds(at).values())
    fields = [entry for model in models for entry in model.model_fields.items()]
    return [field.annotation for name, field in fields if part in (name, field.alias)]


def locate(model: type[BaseModel], loc: Sequence[str | int]) -> tuple[Key, type[BaseModel] | None]:
    """Return the key of a Pydantic location, and the model that owns its last part.

    A location also holds the kind of each union on its way (``('source', 'token_shards', 'seq_len')``), which is no
    key. The types say which parts those are; guessing from the data would drop a key that is called like a kind.

    Args:
        model: Model that was validated.
        loc: Location in one of its errors.
    """
    key: list[str | int] = []
    at: Any = model
    owner: type[BaseModel] | None = None
    for part in loc:
        at = _strip(at)
        kinds = _kinds(at)
        if part in kinds:
            at = kinds[str(part)]
            continue
        if part == "[key]":  # the location of a mapping's key itself
            continue
        key.append(part)
        if _is_model(at):
            owner = at
            field = next((field for name, field in at.model_fields.items() if part in (name, field.alias)), None)
            at = field.annotation if field is not None else Any
        else:
            owner = None
            at = (get_args(at) or (Any,))[-1]
    return tuple(key), owner


def _walk(model: type[BaseModel], at: Key) -> Iterator[Key]:
    for name in key_names(model):
        yield (*at, name)
        for child in children(model, name):
            yield from _walk(child, (*at, name))


def elsewhere(model: type[BaseModel], word: str, cutoff: float = 1.0) -> str:
    """Return `` Did you mean 'section.word'?`` for the keys of the whole config that end in ``word``, or "".

    Args:
        model: The whole config.
        word: Last part of a key.
        cutoff: How alike a key's last part must be, from 0 to 1.
    """
    keys = list(_walk(model, ()))
    # kind is in several sections, and never what is meant.
    names = sorted({str(key[-1]) for key in keys} - {"kind"})
    close = difflib.get_close_matches(word, names, n=1, cutoff=cutoff)
    found = [key for key in keys if close and key[-1] == close[0]]
    least = min(map(len, found), default=0)  # a section's own key before one deeper down
    homes = dict.fromkeys(repr(dotted(key)) for key in found if len(key) == least)
    return f" Did you mean {' or '.join(homes)}?" if homes else ""
