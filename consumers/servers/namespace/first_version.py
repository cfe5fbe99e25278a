"""A new table with rows: its first version is staged, then declared and committed as one record."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias

import lance
import pyarrow as pa
from lance_namespace import (
    DeclareTableResponse,
    TableNotFoundError,
    TableVersionNotFoundError,
)

from commitlog.adapters.lance_namespace import StagedManifest, StagingNamespace
from commitlog.adapters.storage_options import storage_options
from commitlog.client.leader.tables import TableInfo
from commitlog.errors import CommitConflict, InvalidTransaction, NoSuchVersion
from commitlog.model.table import TableId
from consumers.servers.namespace.call import Call
from consumers.servers.namespace.service import Service

_Operation: TypeAlias = Callable[[Service, Call], dict[str, Any]]


class _NewTable(StagingNamespace):
    """What pylance sees of a table that doesn't exist yet."""

    def __init__(self, location: str) -> None:
        super().__init__(location, 0)
        self._is_declared = False

    def describe_table(self, request: Any) -> Any:
        if not self._is_declared:
            raise TableNotFoundError("the table does not exist yet")
        # In an object store Lance asks for the options again, while it writes.
        return super().describe_table(request)

    def declare_table(self, request: Any) -> Any:
        self._is_declared = True
        return DeclareTableResponse(
            location=self.location,
            managed_versioning=True,
            storage_options=storage_options(self.location),
        )

    def list_table_versions(self, request: Any) -> Any:
        return {"versions": []}

    def describe_table_version(self, request: Any) -> Any:
        raise TableVersionNotFoundError("the table has no versions yet")


def stage_first_version(
    table: TableId, location: str, rows: pa.RecordBatchReader
) -> StagedManifest:
    """Write rows below a location and return the manifest that would make them version 1."""
    namespace = _NewTable(location)
    lance.write_dataset(
        rows,
        namespace_client=namespace,
        table_id=list(table),
        mode="create",
        enable_v2_manifest_paths=True,
    )
    (staged,) = namespace.staged
    return staged


def known_rows(service: Service, call: Call) -> TableInfo:
    """Return a table as it was learnt lately, or as it is if it had no rows then."""
    known = service.lately(call.table)
    return known if known.version else service.info(call.table)


def as_it_is(operation: _Operation) -> _Operation:
    """Have an operation on rows carried out again if its table has none, and had some lately.

    If it failed because the table is gone, that is told as it is elsewhere.
    """

    @wraps(operation)
    def carry_out(service: Service, call: Call) -> dict[str, Any]:
        try:
            return operation(service, call)
        except (InvalidTransaction, NoSuchVersion, CommitConflict):
            if call.stream is None or service.info(call.table).version:
                raise
        call.stream.seek(0)
        return operation(service, call)

    return carry_out
