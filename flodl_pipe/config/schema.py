"""The JSON schema of a recipe, in draft-07, which is what editors know.

A recipe is a partial config with a defaults list, so the models' schema is loosened: nothing is required, any value
may be an interpolation, and ``defaults`` and ``hydra`` are known. Unknown keys stay forbidden. Where the defaults list
picks an option of a group with kinds (``override /source: records``), only the keys of that kind are left.
"""

import json
from typing import Any

import yaml

from flodl_pipe.config.places import conf_dir
from flodl_pipe.config.root import Config

__all__ = ["recipe_schema"]

_INTERPOLATION = {
    "description": "A value taken from elsewhere, or ??? for the user to give.",
    "type": "string",
    "pattern": r"\$\{.+\}|^\?\?\?$",
}
_GROUPS = ("source", "sampling", "transforms", "loader", "cluster", "reports", "job")
_WITH_KINDS = ("source", "job")


def _is_section(schema: dict[str, Any]) -> bool:
    """Whether a property is a section or a fixed tag. Offering an interpolation there would only blur messages."""
    return "const" in schema or "$ref" in json.dumps(schema)


def _loosen_property(schema: dict[str, Any]) -> dict[str, Any]:
    """Let a value also be an interpolation; its description and default stay where editors look for them."""
    if _is_section(schema):
        return schema
    head: dict[str, Any] = {word: schema[word] for word in ("description", "default") if word in schema}
    rule = {word: content for word, content in schema.items() if word not in ("description", "default", "title")}
    arms = rule["anyOf"] if rule.keys() == {"anyOf"} else [rule]
    return {**head, "anyOf": [*arms, {"$ref": "#/$defs/Interpolation"}]}


def _loosen(node: Any) -> Any:
    """Return a schema for a part of what the given one describes."""
    if isinstance(node, list):
        return [_loosen(item) for item in node]
    if not isinstance(node, dict):
        return node
    loose = {name: _loosen(value) for name, value in node.items()}
    if "properties" in loose:
        loose.pop("required", None)
        loose.pop("title", None)
        loose["properties"] = {name: _loosen_property(value) for name, value in loose["properties"].items()}
    if "oneOf" in loose:
        loose.pop("discriminator", None)
        loose["anyOf"] = loose.pop("oneOf")
    return loose


def _options(group: str) -> list[str]:
    return sorted(file.stem for file in (conf_dir() / group).glob("*.yaml"))


def _defaults() -> dict[str, Any]:
    """Return the schema of a defaults list."""
    entry = {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "properties": {
            f"override /{group}": {"anyOf": [{"enum": _options(group)}, {"type": ["string", "null"]}]}
            for group in _GROUPS
        },
        "patternProperties": {r"^(override |optional )*/?[\w/.:-]+$": {}},
        "additionalProperties": False,
    }
    return {
        "type": "array",
        "items": {"anyOf": [{"type": "string"}, entry]},
        "description": "Hydra's defaults list: other recipes, then '- override /GROUP: OPTION'.",
    }


def _rule(group: str, option: str, models: dict[str, str]) -> dict[str, Any]:
    """Return: if the defaults list picks this option, the section has the keys of the option's kind."""
    text = (conf_dir() / group / f"{option}.yaml").read_text(encoding="utf-8")
    pick = f"override /{group}"
    picks = {"type": "object", "required": [pick], "properties": {pick: {"const": option}}}
    return {
        "if": {"required": ["defaults"], "properties": {"defaults": {"contains": picks}}},
        "then": {"properties": {group: {"$ref": f"#/$defs/{models[yaml.safe_load(text)['kind']]}"}}},
    }


def recipe_schema() -> dict[str, Any]:
    """Return the schema as a JSON document."""
    schema = _loosen(Config.model_json_schema(by_alias=True))
    models = {
        definition["properties"]["kind"]["const"]: name
        for name, definition in schema["$defs"].items()
        if "kind" in definition.get("properties", {})
    }
    schema["$defs"]["Interpolation"] = _INTERPOLATION
    schema["properties"].pop("allow_import", None)  # no recipe may set these
    engine = schema["properties"].pop("engine", None)
    if engine is not None:
        del schema["$defs"]["EngineConfig"]
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "flodl_pipe recipe",
        **{word: schema[word] for word in ("type", "additionalProperties", "$defs")},
        "properties": {"defaults": _defaults(), "hydra": {"type": "object"}, **schema["properties"]},
        "allOf": [_rule(group, option, models) for group in _WITH_KINDS for option in _options(group)],
    }
