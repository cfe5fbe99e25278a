"""The namespace as of a position of the log: what it showed then, read only.

A client that sends `x-commitlog-sequence` with each request sees the tables, their names and their
versions as they were there: a consistent cut over all tables, as Iceberg's clients have it under
the warehouse `at:POSITION`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from lance_namespace import TableVersionNotFoundError

from commitlog.adapters.storage import store_for
from commitlog.client.history.folds import TableAt
from commitlog.client.history.positions import NOW
from commitlog.client.history.snapshot import Snapshot, standing
from commitlog.client.leader.tables import TableInfo
from commitlog.codecs.manifest_file import decode_manifest
from commitlog.errors import InvalidRequest, NoSuchTable
from commitlog.model.table import Policy, TableId, parse_table_id
from consumers.servers.namespace.call import Call
from consumers.servers.namespace.service import Service
from consumers.servers.namespace.version_facts import written
from consumers.servers.security.grants import Access

POSITION = "x-commitlog-sequence"
"""In an answer to a commit, the position in the log from which it can be seen; in a question, the
position at which it is asked."""
AHEAD_SECONDS = 10.0
"""How long a question waits for a position that the log isn't at yet."""
_PAUSE_SECONDS = 0.02


def as_of(now: Service, call: Call) -> Service:
    """Return what answers a request: the past that it names, else the present."""
    named = call.headers.get(POSITION)
    if named is None:
        return now
    with now.lock:
        known = now.pasts.get(named)
    if known is None:
        is_fixed = named not in now.log.tags()  # a tag may move
        known = PastService(now, now.log.snapshot(_positions(now, named)))
        if is_fixed and named != NOW:
            with now.lock:
                now.pasts[named] = known
    return known


def _positions(now: Service, named: str) -> dict[int, int]:
    deadline = time.monotonic() + AHEAD_SECONDS
    while True:
        try:
            return now.log.position(named)
        except InvalidRequest as error:
            is_ahead = isinstance(error.value, int) and time.monotonic() < deadline
            if not is_ahead:
                raise
        time.sleep(_PAUSE_SECONDS)


class PastService(Service):
    """A log as of one position. Nothing is changed by it: such requests don't come here."""

    most = Access.READ
    is_past = True

    def __init__(self, now: Service, then: Snapshot) -> None:
        """Show what was there."""
        super().__init__(now.log, now.settings, now.security, now.metrics)
        self._then = then
        self._infos: dict[TableId, TableInfo] = {}

    def info(self, table: TableId) -> TableInfo:
        """Return a table as it was, with its schema of then."""
        known = self._infos.get(table)
        if known is None:
            found = self._then.table(table)
            if found.is_iceberg:
                kind = "view" if found.is_view else "table"
                raise NoSuchTable(f"{found.name} is an Iceberg {kind}, not a Lance table")
            known = self._described(found, standing(self.log, found.incarnation))
            if known.version:
                path = self.readable(known, known.version)
                state, _ = decode_manifest(store_for(known.location).read(path))
                message = state.header.message
                known = replace(
                    known,
                    fields=tuple(one.SerializeToString() for one in message.fields),
                    schema_metadata=tuple(sorted(message.schema_metadata.items())),
                    data_storage_version=message.data_format.version,
                )
            self._infos[table] = known
        return known

    def lately(self, table: TableId) -> TableInfo:
        """Return a table as it was."""
        return self.info(table)

    def heads(self, within: TableId | None = None, **part: Any) -> dict[TableId, int]:
        """Return all tables' versions as they were, of whichever part is asked."""
        return {
            parse_table_id(found.name): found.version
            for found in self._then.tables.values()
            if not found.is_iceberg
        }

    def namespaces(
        self, within: TableId | None = None, **part: Any
    ) -> dict[TableId, dict[str, str]]:
        """Return the namespaces that stood, with their properties, whichever part is asked."""
        return {name: dict(found) for name, found in self._then.namespaces.items()}

    def readable(self, info: TableInfo, version: int) -> str:
        """Return the path of a version that stood, once it can be read."""
        now = standing(self.log, info.incarnation)
        if now is not None:
            # It may have another name now, by which the leader knows it.
            return super().readable(replace(info, table_id=now.table_id), version)
        path = written(info, version) if 1 <= version <= info.version else None
        if path is None:
            raise TableVersionNotFoundError(
                f"{info.name} was dropped since, and version {version} no longer exists"
            )
        return path

    def _described(self, found: TableAt, now: TableInfo | None) -> TableInfo:
        table = parse_table_id(found.name)
        if now is not None:
            return replace(now, table_id=table, version=found.version, properties=found.properties)
        return TableInfo(
            table_id=table,
            incarnation=found.incarnation,
            location=found.location,
            version=found.version,
            readable_version=found.version,
            policy=Policy.EVERY,
            primary_key=(),
            properties=found.properties,
            stable_row_ids=False,
        )
