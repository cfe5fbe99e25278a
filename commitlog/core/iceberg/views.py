"""Iceberg views: their metadata, what changes it, and what a record asks of them.

A view is kept as a table without columns and rows, beside its own members: names, places, drops
and checkpoints treat both alike. The rules of its updates are those of Iceberg's Java
`ViewMetadata.Builder`.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from commitlog.core.iceberg.actions import last_added
from commitlog.core.iceberg.by_content import ByContent, frozen
from commitlog.core.iceberg.domain import IcebergRefused, IcebergResult, UnmetRequirement
from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.iceberg_table import IcebergTable, Value
from commitlog.core.iceberg.metadata import table_of
from commitlog.core.iceberg.metadata_draft import POSITION, start
from commitlog.core.iceberg.naming import check_place, derived_uuid, next_metadata_location
from commitlog.core.iceberg.plain_actions import read_uuid
from commitlog.core.iceberg.reading import Node, dump_json, load_json
from commitlog.core.iceberg.schemas import read_schema
from commitlog.model.operations import IcebergChange
from commitlog.model.reasons import Phrase
from commitlog.model.records import Code, Status
from commitlog.model.table import TableId

ASSERT_UUID = "assert-view-uuid"
ASSERT_CREATE = "assert-view-create"
"""Ours: the document's way to make a view has no requirement, since it has no commit."""
HISTORY_MAX = "version.history.num-entries"
_HISTORY_MAX_DEFAULT = 10
_ACTIONS = (
    *("assign-uuid", "upgrade-format-version", "set-location", "set-properties"),
    *("remove-properties", "add-schema", "add-view-version", "set-current-view-version"),
)


@dataclass(frozen=True, slots=True)
class IcebergView(IcebergTable):
    """The metadata of one version of a view."""

    members: Value = field(default_factory=dict)
    """All of it, as it is in the file."""

    def to_bytes(self) -> bytes:
        """Return the metadata as JSON, in ASCII."""
        return dump_json(dict(self.members)).encode("ascii")


def view_of(members: Value, metadata_location: str) -> IcebergView:
    """Return the view of metadata that the log wrote."""
    empty = start(None, time_ms=0, uuid=str(members["view-uuid"])).table
    known = {one.name: getattr(empty, one.name) for one in fields(IcebergTable)}
    known |= {"location": members["location"], "metadata_location": metadata_location}
    return IcebergView(**{**known, "properties": members["properties"], "members": members})


def read_any(value: Any, location: str, *, path: str = "") -> IcebergTable:
    """Return the table, or the view, of metadata that the log wrote."""
    if isinstance(value, dict) and "view-uuid" in value:
        return view_of(value, location)
    return table_of(value, location, path=path or location)


def decode_state(data: bytes) -> IcebergTable:
    """Return the table, or the view, of a checkpoint."""
    location, metadata = data.split(b"\n", 1)
    what = "a checkpoint's table metadata"
    return read_any(load_json(metadata, what), load_json(location, what), path=what)


def is_view_change(operation: IcebergChange) -> bool:
    """Return True if a change of the log is about a view."""
    if '"assert-view-' not in operation.requirements:
        return False
    try:
        sent = load_json(operation.requirements, "requirements")
    except Invalid:
        return False
    kinds = [one.get("type") for one in sent if isinstance(one, dict)] if sent else []
    return bool(kinds) and all(kind in (ASSERT_UUID, ASSERT_CREATE) for kind in kinds)


def decide_views(
    views: Mapping[TableId, IcebergView],
    operations: Sequence[IcebergChange],
    *,
    time_ms: int,
    transaction_id: str,
    namespaces: Container[TableId],
    others: Mapping[TableId, str],
    position: int,
    taken: Container[TableId] = (),
) -> tuple[IcebergResult, ...] | IcebergRefused:
    """Decide all changes of views of one transaction; changes nothing.

    `others` are the tables of any format, by name, with their uuids, and `taken` the names of those
    that the transaction itself makes or changes.
    """
    results: dict[TableId, IcebergResult] = {}
    try:
        for operation in operations:
            name, before = operation.table, views.get(operation.table)
            if name in results or name in taken:
                raise Invalid("iceberg_view_twice", view=".".join(name))
            uuid = before.uuid if before is not None else others.get(name, "")
            refused = _refused(operation, uuid, is_view=before is not None)
            if refused is None and before is None and name[:-1] not in namespaces:
                reason = Phrase("iceberg_no_such_namespace", {"namespace": ".".join(name[:-1])})
                refused = IcebergRefused(Status.REJECTED, Code.NO_SUCH_NAMESPACE, reason)
            if refused is not None:
                return refused
            named = "\x1f".join((transaction_id, *name))
            after = _applied(before, operation, time_ms, named, position)
            results[name] = IcebergResult(name, before, after)
    except Invalid as error:
        return IcebergRefused(Status.REJECTED, Code.INVALID_OPERATION, error.phrase)
    return tuple(results.values())


def _refused(operation: IcebergChange, uuid: str, *, is_view: bool) -> IcebergRefused | None:
    requirements = Node(load_json(operation.requirements, "requirements"), "requirements")
    view = ".".join(operation.table)
    for requirement in requirements.items():
        is_create = requirement.member("type").string() == ASSERT_CREATE
        if not is_create and not is_view:
            phrase = Phrase("iceberg_no_such_view", {"view": view})
            return IcebergRefused(Status.REJECTED, Code.NO_SUCH_TABLE, phrase)
        wanted = "" if is_create else requirement.member("uuid").text()
        if uuid.lower() != wanted.lower():
            failed = UnmetRequirement(operation.table, requirement.object(), {"uuid": uuid})
            phrase = Phrase("iceberg_requirement_failed", {"tables": [view]})
            return IcebergRefused(Status.RETRYABLE, Code.EXPECTATION_FAILED, phrase, (failed,))
    return None


class _Draft:
    """A view's members while updates are applied."""

    def __init__(self, before: IcebergView | None, uuid: str, time_ms: int) -> None:
        self.is_new = before is None
        self.members: dict[str, Any] = (
            {**before.members, "properties": dict(before.properties)}
            if before is not None
            else {
                "view-uuid": uuid,
                "format-version": 1,
                "location": "",
                "schemas": [],
                "current-version-id": 0,
                "versions": [],
                "version-log": [],
                "properties": {},
            }
        )
        self.is_changed = before is None
        self.schema: int | None = None
        self.version: int | None = None
        self.added: set[int] = set()
        self.owned: set[str] = set()
        self._known: dict[str, ByContent] = {}
        self.time_ms = time_ms

    def apply(self, node: Node) -> None:
        """Apply one update."""
        action, members = node.member("action").string().lower(), self.members
        properties = members["properties"]
        match action:
            case "assign-uuid":
                uuid = read_uuid(node.member("uuid"))
                if not self.is_new and uuid.lower() != members["view-uuid"].lower():
                    raise Invalid("iceberg_uuid_is_set", uuid=members["view-uuid"], asked=uuid)
                self._set("view-uuid", uuid)
            case "upgrade-format-version":
                version = node.member("format-version")
                if version.int32() != 1:
                    version.fail("iceberg_format_version", value=version.value, known=(1,))
            case "set-location":
                place = node.member("location")
                self._set("location", check_place(place.text(), place.path))
            case "set-properties":
                updates = node.member("updates").strings()
                self.is_changed |= any(properties.get(k) != v for k, v in updates.items())
                properties.update(updates)
            case "remove-properties":
                for item in node.member("removals").items():
                    self.is_changed |= properties.pop(item.string(), None) is not None
            case "add-schema":
                self._add_schema(read_schema(node.member("schema")))
            case "add-view-version":
                self._add_version(node.member("view-version"))
            case "set-current-view-version":
                self._set_current(node.member("view-version-id"))
            case _:
                node.member("action").fail(
                    "iceberg_action_unknown", value=node.value["action"], known=sorted(_ACTIONS)
                )

    def _set(self, name: str, value: Any) -> None:
        """Set a member; whatever comes after, the view has changed if it was another before."""
        self.is_changed |= self.members[name] != value
        self.members[name] = value

    def _add(self, name: str, value: Value) -> None:
        """Add a value to a list, which belongs to this draft alone once something was added."""
        if name not in self.owned:
            self.owned.add(name)
            self.members[name] = list(self.members[name])
        self.members[name].append(value)
        self.is_changed = True

    def _known_of(self, name: str) -> ByContent:
        """Return the schemas or versions, to be found by what they say."""
        if name not in self._known:
            key, content = _CONTENTS[name]
            self._known[name] = ByContent(key, self.members[name], content)
        return self._known[name]

    def _add_schema(self, schema: dict[str, Any]) -> None:
        known = self._known_of("schemas")
        self.schema = known.find(schema)
        if self.schema is None:
            self.schema = known.following(0)
            added = {**schema, "schema-id": self.schema}
            known.add(added)
            self._add("schemas", added)

    def _add_version(self, node: Node) -> None:
        schema_id = last_added(node.member("schema-id").int32(), self.schema, "schema")
        if self._known_of("schemas").get(schema_id) is None:
            raise Invalid("iceberg_view_schema_unknown", schema=schema_id)
        dialects = set()
        for one in node.member("representations").items():
            one.member("type").text()
            dialect = one.member("dialect").text().lower()
            one.member("sql").text()
            if dialect in dialects:
                raise Invalid("iceberg_view_dialect_twice", dialect=dialect)
            dialects.add(dialect)
        node.member("version-id").int32()
        node.member("timestamp-ms").integer()
        node.member("summary").strings()
        for item in node.member("default-namespace").items():
            item.string()
        version = {**node.object(), "schema-id": schema_id}
        known = self._known_of("versions")
        self.version = known.find(version)
        if self.version is None:
            self.version = known.following(1)
            self.added.add(self.version)
            added = {**version, "version-id": self.version}
            known.add(added)
            self._add("versions", added)

    def _set_current(self, node: Node) -> None:
        wanted = last_added(node.int32(), self.version, "view version")
        found = self._known_of("versions").get(wanted)
        if found is None:
            raise Invalid("iceberg_view_version_unknown", version=wanted)
        if wanted == self.members["current-version-id"] and self.members["version-log"]:
            return
        time_ms = found["timestamp-ms"] if wanted in self.added else self.time_ms
        self._add("version-log", {"timestamp-ms": time_ms, "version-id": wanted})
        self.members["current-version-id"] = wanted

    def forget_old_versions(self) -> None:
        """Keep as many versions as the view's property says, and the current one."""
        text = self.members["properties"].get(HISTORY_MAX, str(_HISTORY_MAX_DEFAULT))
        if not (text.isascii() and text.isdecimal()) or len(text) > 9 or int(text) < 1:
            raise Invalid("iceberg_property_not_a_number", property=HISTORY_MAX, value=text)
        most = max(int(text), len(self.added))
        versions, current = self.members["versions"], self.members["current-version-id"]
        if len(versions) <= most:
            return
        newest = sorted(versions, key=lambda one: -one["version-id"])
        kept = {one["version-id"] for one in newest[:most] if one["version-id"] != current}
        kept = {*sorted(kept, reverse=True)[: most - 1], current}
        self.members["versions"] = [one for one in versions if one["version-id"] in kept]
        log = self.members["version-log"]
        gone = [i for i, one in enumerate(log) if one["version-id"] not in kept]
        self.members["version-log"] = log[gone[-1] + 1 :] if gone else log


def _schema_content(schema: Value) -> Hashable:
    return frozen({k: v for k, v in schema.items() if k != "schema-id"})


def _version_content(version: Value) -> Hashable:
    return frozen({k: v for k, v in version.items() if k not in ("version-id", "timestamp-ms")})


_CONTENTS = {
    "schemas": ("schema-id", _schema_content),
    "versions": ("version-id", _version_content),
}
"""By the view's member, under what its values have their ids, and what they say beside them."""


def _applied(
    before: IcebergView | None, operation: IcebergChange, time_ms: int, named: str, position: int
) -> IcebergView:
    draft = _Draft(before, derived_uuid(named, "view"), time_ms)
    for node in Node(load_json(operation.updates, "updates"), "updates").items():
        draft.apply(node)
    members = draft.members
    if not members["location"] or not members["versions"] or not members["version-log"]:
        raise Invalid("iceberg_view_not_whole", view=".".join(operation.table))
    if before is not None and not draft.is_changed:
        return before
    draft.forget_old_versions()
    members["properties"][POSITION] = str(position)
    place = next_metadata_location(
        members["location"],
        members["properties"],
        before.metadata_location if before is not None else "",
        derived_uuid(named, members["view-uuid"]),
    )
    return view_of(members, place)
