"""Plain data to :class:`~flodl_pipe.config.root.Config`, and every fault of it in words.

Data comes as YAML read it. Required keys that are still ``???`` are taken out first, so that all of them are reported
together with everything else that is wrong. The rest is validated as JSON in Pydantic's strict mode: text becomes a
path and nothing else changes its type.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from flodl_pipe.config.base import shown
from flodl_pipe.config.keys import UNSET, Key, children, did_you_mean, dotted, elsewhere, key_names, locate
from flodl_pipe.config.root import Config
from flodl_pipe.errors import ConfigError, Problem

__all__ = ["Where", "problem_from", "validate"]

Where = Callable[[Key], str | None]
"""Says where a key was set; None for a default."""

# Pydantic's error type -> our words; {x} are fields of the error's context.
_RULES = {
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "too_short": "must hold at least {min_length}",
    "literal_error": "must be {expected}",
}


# These jobs read no data, so they must not ask for any: the sections stand in for ones with unset keys.
_WITHOUT_DATA = ("schema", "fetch")
_STAND_INS: dict[str, dict[str, Any]] = {
    "source": {"kind": "token_shards", "seq_len": 1},
    "loader": {"batch_size": 1},
}


def _take_unset(node: Any, at: Key = ()) -> list[Key]:
    """Remove every ``???`` below a node and return where they were."""
    if not isinstance(node, dict | list):
        return []
    unset: list[Key] = []
    for name, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
        if value in ("???", UNSET):
            unset.append((*at, name))
        else:
            unset += _take_unset(value, (*at, name))
    if isinstance(node, dict):
        for key in unset:
            if key[:-1] == at:
                del node[key[-1]]
    return unset


def _unknown_key(loc: Sequence[str | int]) -> str:
    """Return the words for a key that no section has: the closest one, or where its like lives."""
    key, owner = locate(Config, loc)
    word = str(key[-1])
    names = key_names(owner) if owner else []
    parent, above = locate(Config, loc[:-1])
    if above is not None and owner is not None and parent:
        for sibling in children(above, str(parent[-1])):
            if sibling is not owner and word in key_names(sibling):
                mine, theirs = (str(model.model_fields["kind"].default) for model in (owner, sibling))
                return f"unknown key for kind '{mine}': it belongs to kind '{theirs}'"
    if len(key) == 1:
        names = [*names, "recipe"]  # +recip=NAME lands here: to Hydra it is a new key
    near = elsewhere(Config, word) or did_you_mean(word, names) or elsewhere(Config, word, cutoff=0.75)
    return f"unknown key.{near or ' Known keys: ' + ', '.join(names)}"


def problem_from(error: ErrorDetails, where: Where) -> Problem:
    """Return one of Pydantic's errors in our words.

    Args:
        error: An error whose location is a key of the whole config.
        where: Says where a key was set.
    """
    key, _ = locate(Config, error["loc"])
    context = error.get("ctx", {})
    rule = error["type"]
    if rule == "extra_forbidden":
        message = _unknown_key(error["loc"])
    elif rule in ("missing", "union_tag_not_found"):
        key = key if rule == "missing" else (*key, "kind")
        # What is left out stands nowhere, but an item of a list that it is left out of does.
        place = where(key) if any(isinstance(part, int) for part in key) else None
        return Problem(dotted(key), "required, but not set", place)
    elif rule == "union_tag_invalid":
        key = (*key, "kind")
        kinds = [kind.strip(" '") for kind in context["expected_tags"].split(",")]
        tag = str(context["tag"])
        message = f"unknown kind {shown(tag)}.{did_you_mean(tag, kinds)} Known kinds: {', '.join(kinds)}"
    elif rule == "rule":
        key = (*key, *context["at"])
        message = context["text"]
    elif rule in _RULES:
        message = f"{_RULES[rule].format(**context)}, got {shown(error['input'])}"
        if rule == "literal_error" and isinstance(error["input"], str):
            message += "." + did_you_mean(
                error["input"], context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
            )
            message = message.removesuffix(".")
    else:
        message = f"{error['msg']} (got {shown(error['input'])})"
    return Problem(dotted(key), message, where(key))


def validate(plain: dict[str, Any], where: Where = lambda _: None, recipes: Sequence[str] = ()) -> Config:
    """Return the config that plain data describes.

    Args:
        plain: The whole config as dicts, lists, text, numbers, booleans and null; ``???`` for a required key that is
            not set. Changed in place.
        where: Says where a key was set; asked only to word a problem.
        recipes: Names to suggest when required keys are unset and no recipe was chosen.

    Raises:
        ConfigError: with every problem found.
    """
    unset = _take_unset(plain)
    job = plain.get("job")
    if isinstance(job, dict) and job.get("kind") in _WITHOUT_DATA:
        plain |= {str(key[0]): _STAND_INS[str(key[0])] for key in unset if key[0] in _STAND_INS}
        unset = [key for key in unset if key[0] not in _STAND_INS]
    problems = [
        Problem(dotted(key), f"required: give {dotted(key)}=... or set it in a recipe", where(key)) for key in unset
    ]
    if problems and recipes:
        last = problems[-1]
        start = f"{last.message}\n      or start from a recipe, +recipe=NAME with one of: {', '.join(recipes)}"
        problems[-1] = Problem(last.key, start, last.where)
    try:
        # default=str: whatever YAML yields that JSON lacks (bytes) becomes text, and the field's own rule judges it.
        config = Config.model_validate_json(json.dumps(plain, default=str), strict=True)
    except ValidationError as error:
        found = [problem_from(detail, where) for detail in error.errors(include_url=False)]
        # A section that lost its last required key would be reported a second time.
        known = {dotted(key) for key in unset}
        problems = [problem for problem in found if problem.key not in known] + problems
    if problems:
        raise ConfigError(problems)
    return config
