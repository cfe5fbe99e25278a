"""Avro schemas as the plans by which machine code reads and writes the model's values.

A plan is a tuple that begins with a word: `("long",)`, `("bytes",)`, `("boolean",)`,
`("string", members or None)`, `("enum", members, numbers)`, `("array", (item,), is_sorted)`,
`("union", (plan or None for null, …))`, and for a record its class or None (a tuple of the fields),
the names and the plans of its fields, the field at which an inlined record begins or -1, what
derives a field from that record's bytes, that field's name, and the names and the values of those
fields that no record carries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from commitlog.codecs.avro_compiled import SchemaNames

Plan = tuple[Any, ...]

_SCALARS = ("long", "bytes", "boolean")


class Planner:
    """Makes the plan of one schema."""

    def __init__(self, names: SchemaNames) -> None:
        """Take what the names in it stand for."""
        self._names = names
        self._named: dict[str, Plan] = {}

    def plan(self, kind: Any, field: str = "") -> Plan:
        """Return the plan of a schema that the field of this name has."""
        if isinstance(kind, list):
            return ("union", tuple(None if each == "null" else self.plan(each) for each in kind))
        if kind == "string":
            members = self._names.texts.get(field)
            return ("string", members and {one.value: one for one in members})
        if isinstance(kind, str):
            return (kind,) if kind in _SCALARS else self._named[kind.rsplit(".", 1)[-1]]
        if kind["type"] == "array":
            items, pairs = kind["items"], self._names.sorted_pairs
            name = items.get("name") if isinstance(items, dict) else items
            is_sorted = isinstance(name, str) and name.rsplit(".", 1)[-1] in pairs
            return ("array", (self.plan(items),), is_sorted)
        name = kind["name"]
        made = self._enum(kind) if kind["type"] == "enum" else self._record(kind)
        self._named[name] = made
        return made

    def _enum(self, schema: Mapping[str, Any]) -> Plan:
        symbols = schema["symbols"]
        members = self._names.classes[schema["name"]]
        return ("enum", tuple(map(members, symbols)), {one: n for n, one in enumerate(symbols)})

    def _record(self, schema: Mapping[str, Any]) -> Plan:
        name = schema["name"]
        carried, inlined = self._fields(schema)
        names = tuple(field["name"] for field in carried)
        plans = tuple(self.plan(field["type"], field["name"]) for field in carried)
        derived, derive = self._names.derived.get(name, (None, None))
        kind = self._names.classes.get(name)
        others = [f for f in fields(kind) if f.name not in (*names, derived)] if kind else []
        given = {f.name: f.default for f in others if f.default is not MISSING}
        values = tuple(given.values())
        return ("record", kind, names, plans, inlined, derive, derived, tuple(given), values)

    def _fields(self, schema: Mapping[str, Any]) -> tuple[list[Any], int]:
        """Return the fields of an object, and the one at which an inlined record begins or -1."""
        carried: list[Any] = []
        begins = -1
        for field in schema["fields"]:
            kind = field["type"]
            if isinstance(kind, dict) and kind.get("name") in self._names.inlined:
                begins = len(carried)
                carried += self._fields(kind)[0]
            else:
                carried.append(field)
        return carried, begins
