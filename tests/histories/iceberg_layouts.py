"""Random columns and partition specs: a table may have what Iceberg's Java library opens."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

from commitlog.core.iceberg.domain import IcebergRefused
from tests.histories.iceberg_java import JavaIceberg, Refused
from tests.unit.iceberg_examples import EVENTS, change, decide, metadata, table

_NAMES = ("id", "p", "q", "s", "a.b")
_PARTS = ("p", "id", "q", "x", "s.p", "s.element", "s", "a.b", "s.key", "s.value")
_SOURCES = (1, 2, 3, 4, 5, 11, 12, 13)
_TRANSFORMS = (
    *("identity", "void", "bucket[4]", "truncate[3]"),
    *("year", "month", "day", "hour"),
)
_TYPES = (
    *("boolean", "int", "long", "float", "double", "decimal(9, 2)", "date", "time"),
    *("timestamp", "timestamptz", "string", "uuid", "fixed[4]", "binary"),
)


def compare(java: JavaIceberg, rng: random.Random, count: int) -> Counter[str]:
    """Give tables of any layout one more column; return how many both take, and both refuse."""
    told: Counter[str] = Counter()
    for _ in range(count):
        found = _layout(rng)
        columns = found["schemas"][0]["fields"]
        more = {"id": 99, "name": "more", "required": False, "type": "long"}
        wanted = {"type": "struct", "schema-id": 1, "fields": [*columns, more]}
        decided = decide(
            {EVENTS: table(**found)},
            change(
                [
                    {"action": "add-schema", "schema": wanted},
                    {"action": "set-current-schema", "schema-id": -1},
                ]
            ),
        )
        is_refused = isinstance(decided, IcebergRefused)
        parts = {"schemas": [*found["schemas"], wanted], "current-schema-id": 1}
        after = json.dumps(metadata(snapshots=0, **{**found, **parts}))
        if not isinstance(decided, IcebergRefused):
            after = decided[0].after.to_json()
        assert _opens(java, after) is not is_refused, (found, decided)
        told["refused" if is_refused else "opened"] += 1
    return told


def _opens(java: JavaIceberg, text: str) -> bool:
    try:
        java.api.TableMetadataParser.fromJson(text)
    except Refused:
        return False
    return True


def _layout(rng: random.Random) -> dict[str, Any]:
    """Return members of a table's metadata."""
    names = rng.sample(_NAMES, rng.randrange(1, 5))
    fields = [_field(i, name, _type(rng, i + 10)) for i, name in enumerate(names, start=1)]
    specs = [{"spec-id": number, "fields": _parts(rng)} for number in range(rng.randrange(1, 3))]
    return {
        "schemas": [{"type": "struct", "schema-id": 0, "fields": fields}],
        "last-column-id": 99,
        "partition-specs": specs,
        "default-spec-id": rng.randrange(len(specs)),
        "last-partition-id": 1009,
    }


def _field(field_id: int, name: str, kind: Any) -> dict[str, Any]:
    return {"id": field_id, "name": name, "required": False, "type": kind}


def _type(rng: random.Random, inner: int) -> Any:
    value = {"element-id": inner, "element": "long", "element-required": False}
    pair = {"key-id": inner, "key": "string", "value-id": inner + 20, "value": "long"}
    member = _field(inner, rng.choice("pa"), rng.choice(_TYPES))
    return rng.choice(
        [
            *_TYPES,
            *_TYPES,
            {"type": "list", **value},
            {"type": "map", **pair, "value-required": False},
            {"type": "struct", "fields": [member]},
        ]
    )


def _parts(rng: random.Random) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "transform": rng.choice(_TRANSFORMS),
            "source-id": rng.choice(_SOURCES),
            "field-id": field_id,
        }
        for field_id, name in enumerate(rng.sample(_PARTS, rng.randrange(0, 3)), start=1000)
    ]
