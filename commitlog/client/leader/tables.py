"""A client's knowledge of tables: descriptions from the leader, kept until they are outdated."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from commitlog.adapters.places import bound
from commitlog.client.leader.runtime import Runtime
from commitlog.errors import NoSuchTable
from commitlog.lancepb.file_pb2 import Field
from commitlog.messages import TableDescription
from commitlog.model.table import TableId, format_table_id

if TYPE_CHECKING:
    import pyarrow as pa
    from lance.schema import LanceSchema

MAX_AGE_SECONDS = 60.0
"""How long a description is used for what the leader checks again anyway."""


@dataclass(frozen=True, kw_only=True)
class TableInfo(TableDescription):
    """A table as the leader described it at some moment."""

    lost_key: tuple[str, ...] = ()
    """The declared key, of which a column was renamed or dropped: then it is none."""

    def __repr__(self) -> str:
        """Show what a person asks for first, and no serialized fields."""
        columns = f" ({', '.join(self.column_ids)})" if self.fields else ""
        return f"<TableInfo {self.name}@{self.version}{columns} at {self.location}>"

    @property
    def name(self) -> str:
        """The table's name as people write it."""
        return format_table_id(self.table_id)

    @cached_property
    def schema(self) -> pa.Schema:
        """The table's Arrow schema."""
        from commitlog.codecs.lance_schema import arrow_schema

        return arrow_schema(self.lance_schema)

    @cached_property
    def lance_schema(self) -> LanceSchema:
        """The table's schema with field ids."""
        from lance.schema import LanceSchema

        metadata = {key: list(value) for key, value in self.schema_metadata}
        return LanceSchema._from_protos(json.dumps(metadata), *self.fields)

    @cached_property
    def field_ids(self) -> Mapping[int, Field]:
        """All fields by id."""
        return {field.id: field for field in map(Field.FromString, self.fields)}

    @cached_property
    def column_ids(self) -> Mapping[str, int]:
        """The field ids of top-level columns, by their names."""
        return {field.name: field.id for field in self.field_ids.values() if field.parent_id == -1}

    @cached_property
    def required_columns(self) -> tuple[str, ...]:
        """The top-level columns that may not be null."""
        return tuple(field.name for field in self.schema if not field.nullable)

    @cached_property
    def has_blobs(self) -> bool:
        """Whether a column holds blobs."""
        from commitlog.adapters.row_values import holds_blobs

        return any(map(holds_blobs, self.schema))

    @cached_property
    def row_shapes(self) -> dict[Any, Any]:
        """What `row_shapes` has found out of rows with this schema."""
        return {}

    def top_level_ids(self, names: tuple[str, ...] | list[str]) -> tuple[int, ...]:
        """Return the ids of top-level columns."""
        return tuple(map(self.column_ids.__getitem__, names))


_OF_SCHEMA = frozenset(
    name for name, value in vars(TableInfo).items() if isinstance(value, cached_property)
)
_VERSIONS = ("version", "readable_version")


@dataclass(frozen=True, slots=True)
class _Learnt:
    """What a leader said of a table."""

    at: float
    body: Any
    info: TableInfo
    is_said_again: bool
    """Whether it had said the same the time before."""


class Tables:
    """Descriptions by name. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[TableId, _Learnt] = {}

    def renew_locks(self) -> None:
        """In a forked child, wait for no thread that the parent has."""
        self._lock = threading.Lock()

    def known(self, table: TableId) -> TableInfo | None:
        """Return a recent description, without asking."""
        found = self._known.get(table)
        if found is None or time.monotonic() - found.at > MAX_AGE_SECONDS:
            return None
        return found.info

    def settled(self, table: TableId) -> TableInfo | None:
        """Return a description that was the same twice recently: it is likely still valid."""
        found = self._known.get(table)
        return self.known(table) if found is not None and found.is_said_again else None

    def at_location(self, table: TableId) -> TableInfo | None:
        """Return any former description of the table at a location."""
        found = self._known.get(table)
        return found.info if found else None

    def forget(self, table: TableId) -> None:
        """Ask again next time."""
        with self._lock:
            self._known.pop(table, None)

    def ask(self, runtime: Runtime, table: TableId, *, readable: bool = False) -> TableInfo:
        """Ask the leader; raise NoSuchTable with similar names.

        With `readable` it answers once the current head, or a later version, opens by path.
        """
        return self.asked(runtime, table, **({"readable": True} if readable else {}))()

    def asked(self, runtime: Runtime, table: TableId, **more: Any) -> Callable[[], TableInfo]:
        """Ask the leader as `ask` does; return a function that waits for the answer."""
        partition = runtime.domains.partition(table)
        answer = runtime.ask(partition, "table", table=list(table), **more)
        return partial(self._learn, table, answer)

    def _learn(self, table: TableId, answer: Callable[[], Any]) -> TableInfo:
        try:
            body = answer()
        except NoSuchTable:
            self.forget(table)
            raise
        with self._lock:
            known = self._known.get(table)
            is_said_again = known is not None and known.body == body
            if known is not None and _is_in_place(known, body):
                # With what was made of it.
                info = (
                    known.info
                    if is_said_again
                    else at_versions(known.info, **{name: body[name] for name in _VERSIONS})
                )
            else:
                info = _here(body)
                if known is not None:
                    _take_schema(info, known.info)
            self._known[table] = _Learnt(time.monotonic(), body, info, is_said_again)
        return info


def ask_all(runtime: Runtime, **only: str) -> list[TableInfo]:
    """Ask every leader for its tables, in `only` for those of an `incarnation` or an `ending`.

    The ending is that of their location. Older leaders tell of all, so look at what is told.
    """
    found = [
        _here(body)
        for partition in range(runtime.partitions)
        for body in runtime.request(partition, "tables", **only)
    ]
    return sorted(found, key=lambda info: info.table_id)


def _here(body: Mapping[str, Any]) -> TableInfo:
    """Return what a leader says of a table, which it knows by its recorded place.

    A key of which a column was renamed or dropped is none: the log knows it by its names.
    """
    info = replace(TableInfo.from_json(body), location=_place(body))
    is_whole = not info.fields or all(name in info.column_ids for name in info.primary_key)
    return info if is_whole else replace(info, primary_key=(), lost_key=info.primary_key)


def _place(body: Mapping[str, Any]) -> str:
    return bound(body["location"])


def _is_in_place(known: _Learnt, body: Mapping[str, Any]) -> bool:
    """Return True if a leader says the same of a table, but for its versions."""
    versions = {name: body[name] for name in _VERSIONS}
    return {**known.body, **versions} == body and known.info.location == _place(body)


def at_versions(info: TableInfo, **versions: int) -> TableInfo:
    """Return a table at other versions, with all that was made of its schema."""
    made = object.__new__(TableInfo)
    vars(made).update(vars(info), **versions)
    return made


def _take_schema(info: TableInfo, other: TableInfo) -> None:
    """Give a version what was made of another one's schema, if it is the same."""
    if (info.fields, info.schema_metadata) == (other.fields, other.schema_metadata):
        vars(info).update((name, made) for name, made in vars(other).items() if name in _OF_SCHEMA)
