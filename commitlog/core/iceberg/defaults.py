"""What an update may not say, since nobody reads a table's metadata with it in.

Iceberg's Java library cannot open such a table at all. Requests are looked at, and records under
`ICEBERG_LAYOUTS_SINCE`.
"""

from __future__ import annotations

import re
from typing import Any

from commitlog.core.iceberg.reading import INT32, INT64, Node
from commitlog.core.iceberg.schemas import primitive

_HIGHEST = {"float": 3.4028234663852886e38, "double": 1.7976931348623157e308}
_DECIMAL = re.compile(r"-?[0-9]+(?:\.([0-9]+))?")
_HEX = re.compile("(?:[0-9a-fA-F]{2})*")
_BASE64 = re.compile("(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}(?:==)?|[A-Za-z0-9+/]{3}=?)?")
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP_YEAR}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,9})?)?"
_MOMENT = re.compile(f"{_DATE}T{_TIME}")
_MOMENT_IN_UTC = re.compile(rf"{_MOMENT.pattern}(?:Z|\+00:00)")
_TEXTS = {
    "string": re.compile(".*", re.DOTALL),
    "binary": _HEX,
    "uuid": re.compile("[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
    "date": re.compile(_DATE),
    "time": re.compile(_TIME),
    "timestamp": _MOMENT,
    "timestamp_ns": _MOMENT,
    "timestamptz": _MOMENT_IN_UTC,
    "timestamptz_ns": _MOMENT_IN_UTC,
}


def check_update(action: str, update: Node) -> None:
    """Refuse an update whose values are not of the types that they have in the metadata."""
    if action == "add-schema":
        check_defaults(update.member("schema"))
    elif action == "add-encryption-key":
        metadata = update.member("encryption-key").member("encrypted-key-metadata")
        if not _BASE64.fullmatch(metadata.string()):
            metadata.fail("iceberg_not_base64")


def check_defaults(kind: Node) -> None:
    """Refuse a default that is not a value of its column's type, in a schema that was read."""
    if isinstance(kind.value, str):
        return
    for field in kind.member("fields").items() if "fields" in kind.value else ():
        for name in ("initial-default", "write-default"):
            if name in field.value:
                _check_default(field, name)
        check_defaults(field.member("type"))
    for part in ("element", "key", "value"):
        if part in kind.value:
            check_defaults(kind.member(part))


def _check_default(field: Node, name: str) -> None:
    kind = field.member("type").value
    # The specification allows defaults of nested types too, as arrays and objects.
    if isinstance(kind, str) and not _fits(primitive(kind) or kind, field.member(name).value):
        field.member(name).fail("iceberg_default_unfit", value=field.value[name], type=kind)


def _fits(kind: str, value: Any) -> bool:
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in {"int", "long"}:
        high = INT32 if kind == "int" else INT64
        return type(value) is int and -high - 1 <= value <= high
    if kind in {"float", "double"}:
        return isinstance(value, float) and abs(value) <= _HIGHEST[kind]
    if not isinstance(value, str):
        return False
    if kind.startswith("decimal"):
        found = _DECIMAL.fullmatch(value)
        return found is not None and len(found[1] or "") == int(kind[:-1].split(",")[1])
    if kind.startswith("fixed"):
        return bool(_HEX.fullmatch(value)) and len(value) == 2 * int(kind[6:-1])
    return kind in _TEXTS and _TEXTS[kind].fullmatch(value) is not None
