"""What is said on a leader's socket: one dataclass for each message, which both ends use.

A reader takes what it knows from a message and leaves the rest, so that newer programs may say
more; what an older one left out has a default.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from commitlog.model.table import Policy, TableId

NO_SUCH_REQUEST = "the leader has no request"
"""How a leader begins to refuse a request that only newer ones know."""
Described = TypeVar("Described", bound="TableDescription")


@dataclass(frozen=True, kw_only=True)
class TableDescription:
    """A table as its leader knows it."""

    table_id: TableId
    incarnation: str
    location: str
    version: int
    """The head: the newest committed version."""
    readable_version: int
    """The newest version that opens by path."""
    policy: Policy
    primary_key: tuple[str, ...]
    properties: Mapping[str, str]
    stable_row_ids: bool
    fields: tuple[bytes, ...] = ()
    """One serialized `lance.file.Field` per field, parents before children."""
    schema_metadata: tuple[tuple[str, bytes], ...] = ()
    data_storage_version: str = ""
    deleted: tuple[tuple[int, int], ...] = ()
    """Versions that were deleted: first and last of each range."""

    def to_json(self) -> dict[str, Any]:
        """Return the message."""
        return {
            "table": list(self.table_id),
            "incarnation": self.incarnation,
            "location": self.location,
            "version": self.version,
            "readable_version": self.readable_version,
            "policy": self.policy.value,
            "primary_key": list(self.primary_key),
            "properties": dict(self.properties),
            "stable_row_ids": self.stable_row_ids,
            "deleted": [list(one) for one in self.deleted],
            "fields": [base64_text(one) for one in self.fields],
            "schema_metadata": {key: base64_text(value) for key, value in self.schema_metadata},
            "data_storage_version": self.data_storage_version,
        }

    @classmethod
    def from_json(cls: type[Described], body: Mapping[str, Any]) -> Described:
        """Read the message."""
        metadata = body.get("schema_metadata", {})
        return cls(
            table_id=tuple(body["table"]),
            incarnation=body["incarnation"],
            location=body["location"],
            version=body["version"],
            readable_version=body["readable_version"],
            policy=Policy(body["policy"]),
            primary_key=tuple(body["primary_key"]),
            properties=dict(body["properties"]),
            stable_row_ids=body["stable_row_ids"],
            fields=tuple(base64.b64decode(field) for field in body.get("fields", ())),
            schema_metadata=tuple(sorted((k, base64.b64decode(v)) for k, v in metadata.items())),
            data_storage_version=body.get("data_storage_version", ""),
            deleted=tuple((first, last) for first, last in body.get("deleted", ())),
        )


@dataclass(frozen=True, slots=True)
class TableHead:
    """What a listing says of a table: a part of its description, which older leaders send whole."""

    table_id: TableId
    incarnation: str
    version: int

    def to_json(self) -> dict[str, Any]:
        """Return the message."""
        return {
            "table": list(self.table_id),
            "incarnation": self.incarnation,
            "version": self.version,
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> TableHead:
        """Read the message."""
        return cls(tuple(body["table"]), body["incarnation"], body["version"])


@dataclass(frozen=True, slots=True)
class NamespaceDescription:
    """A namespace as a leader knows it; other leaders may know more properties of it."""

    namespace: TableId
    properties: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return the message."""
        return {"namespace": list(self.namespace), "properties": dict(self.properties)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> NamespaceDescription:
        """Read the message."""
        return cls(tuple(body["namespace"]), body["properties"])


@dataclass(frozen=True, slots=True)
class IcebergDescription:
    """Where an Iceberg table's metadata is."""

    table: TableId
    uuid: str
    metadata_location: str
    metadata: Any = None
    """The metadata itself, if it was asked for."""
    is_view: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the message."""
        said: dict[str, Any] = {
            "table": list(self.table),
            "uuid": self.uuid,
            "metadata_location": self.metadata_location,
        }
        if self.is_view:
            said["is_view"] = True
        return said if self.metadata is None else {**said, "metadata": self.metadata}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> IcebergDescription:
        """Read the message."""
        # An older leader leaves out the name that it was asked for.
        name = tuple(body.get("table", ()))
        return cls(
            table=name,
            uuid=body["uuid"],
            metadata_location=body["metadata_location"],
            metadata=body.get("metadata"),
            is_view=bool(body.get("is_view")),
        )


@dataclass(frozen=True, slots=True)
class DecidedRecords:
    """A transaction's outcome as it is in the log, and the record of what was asked."""

    outcome: bytes
    transaction: bytes = b""
    """Empty: the log doesn't have it any more, or it wasn't asked for."""

    def to_json(self) -> dict[str, Any]:
        """Return the message."""
        return {"outcome": base64_text(self.outcome), "transaction": base64_text(self.transaction)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> DecidedRecords:
        """Read the message."""
        return cls(base64.b64decode(body["outcome"]), base64.b64decode(body.get("transaction", "")))


def base64_text(data: bytes) -> str:
    """Return bytes as they are in JSON."""
    return base64.b64encode(data).decode()
