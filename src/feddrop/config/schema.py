"""The JSON schema of a run's configuration, generated from the declarations of the settings.

It describes types, ranges, choices, defaults and meanings, and rejects unknown keys. It cannot express everything that
:class:`~feddrop.config.RunConfig` checks: rules between settings are left to the program, ``1.0`` counts as an integer,
and infinity, which JSON lacks, counts as a number.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from typing import Any

from feddrop.config.compare import Budget, Compare
from feddrop.config.conversion import declared, options_of, to_table
from feddrop.config.descriptions import meanings, summary
from feddrop.config.fields import Limits
from feddrop.config.methods import METHODS, SuppliedMethod
from feddrop.config.run import RunConfig, sections_of

DRAFT = "https://json-schema.org/draft/2020-12/schema"
CUSTOM = "^[^:]+:[^:]+$"
"""Pattern of ``"package.module:object"``."""
_TYPES: dict[Any, str] = {int: "integer", float: "number", str: "string", bool: "boolean"}
_BOUNDS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}

Schema = dict[str, Any]


def run_schema() -> Schema:
    """Return the JSON schema (draft 2020-12) of a run's configuration."""
    top = _table(RunConfig)
    for name, cls in sections_of().items():
        top["properties"][name] = _method() if name == "method" else _table(cls)
    return {"$schema": DRAFT, "title": "feddrop run configuration"} | top


def compare_schema() -> Schema:
    """Return the JSON schema of a comparison file: the settings of a run, and ``[compare]`` with its arms."""
    run = run_schema()
    settings = {name: run[name] for name in ("type", "additionalProperties", "properties")}
    arm = settings | {"properties": run["properties"] | {"method": _method(default="")}}
    compare = _table(Compare)
    compare["properties"]["budget"] = _table(Budget) | {"minProperties": 1}
    compare["properties"]["arms"] = {
        "description": "The arms, by name.",
        "type": "object",
        "minProperties": 2,
        "additionalProperties": {"$ref": "#/$defs/arm"},
    }
    compare["required"] = ["arms"]
    return {
        "$schema": DRAFT,
        "title": "feddrop comparison",
        "description": "The settings of a run, which all arms share, and [compare].",
        "$defs": {"arm": {"description": "The settings in which an arm differs."} | arm},
        **(settings | {"properties": run["properties"] | {"compare": compare}, "required": ["compare"]}),
    }


def _table(cls: type[Any]) -> Schema:
    """Return the schema of a section without the sections in it."""
    texts, inner = meanings(cls), sections_of(cls)
    defaults = {} if cls is Budget else to_table(cls())  # an empty budget is an error
    properties = {
        item.name: _property(hint, item.metadata["limits"], texts[item.name], defaults.get(item.name))
        for item, hint in declared(cls)
        if item.name not in inner
    }
    return {
        "description": summary(cls),
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
    }


def _method(default: str = "feddrop") -> Schema:
    """Return the schema of ``[method]``: a name, or a table whose other keys depend on its name.

    A table without a name has the settings of the default; without a default, those of a method named elsewhere.
    """
    names: Schema = {
        "description": 'Name of the learning method, or "package.module:factory" for a custom one.',
        **({"default": default} if default else {}),
        "anyOf": [{"enum": [*METHODS, SuppliedMethod.name]}, {"type": "string", "pattern": CUSTOM}],
    }
    rules: list[Schema] = []
    for name, cls in METHODS.items():
        table = _table(cls)
        condition: Schema = {"properties": {"name": {"const": name}}}
        if name != default:
            condition["required"] = ["name"]
        rules.append({"if": condition, "then": table | {"properties": {"name": True} | table["properties"]}})
    table = {"type": "object", "properties": {"name": names}, "allOf": rules}
    return {"description": meanings(RunConfig)["method"], "if": {"type": "object"}, "then": table, "else": names}


def _property(hint: Any, limits: Limits, meaning: str, default: Any) -> Schema:
    options = [_typed(option, limits) for option in options_of(hint)]
    found = {"description": meaning} | (options[0] if len(options) == 1 else {"anyOf": options})
    if default is not None and default != math.inf:
        found["default"] = list(default) if isinstance(default, tuple) else default
    return found


def _typed(option: Any, limits: Limits) -> Schema:
    """Return the schema of a value of one type."""
    origin, inner = typing.get_origin(option), typing.get_args(option)
    if origin is tuple:
        return {"type": "array", "items": _typed(inner[0], Limits() if limits.words else limits)}
    if origin is not None and issubclass(origin, Mapping):
        options = [_typed(one, limits) for one in options_of(inner[1])]
        return {"type": "object", "additionalProperties": options[0] if len(options) == 1 else {"anyOf": options}}
    found: Schema = {"type": _TYPES[option]}
    if option is str and (allowed := list(limits.choices or limits.words)):
        return {"anyOf": [{"enum": allowed}, found | {"pattern": CUSTOM}]} if limits.custom else {"enum": allowed}
    if option in (int, float):
        bounds = {word: getattr(limits, key) for key, word in _BOUNDS.items() if getattr(limits, key) is not None}
        found |= {"anyOf": [{"const": 0}, bounds]} if limits.zero else bounds
    return found
