"""What a relation of the version index is: columns with types and meanings, written once.

DDL, Arrow schemas, the order inside a segment and the comments inside the file are made from it,
so they cannot disagree.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import pyarrow as pa

ARROW_TYPES = {
    "BIGINT": pa.int64(),
    "BIGINT[]": pa.list_(pa.int64()),
    "BLOB": pa.binary(),
    "BOOLEAN": pa.bool_(),
    "INTEGER": pa.int32(),
    "TIMESTAMP": pa.timestamp("us"),
    "VARCHAR": pa.string(),
    "VARCHAR[]": pa.list_(pa.string()),
}


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """One column: its DuckDB type and what it holds."""

    name: str
    type: str
    comment: str


@dataclass(frozen=True, slots=True)
class Relation:
    """One relation: what a row of it is, its columns, and the order inside a segment."""

    name: str
    comment: str
    columns: tuple[RelationColumn, ...]
    order: tuple[str, ...] = ()

    def ddl(self, schema: str) -> str:
        """Return the statement that makes the relation."""
        columns = ", ".join(f'"{column.name}" {column.type}' for column in self.columns)
        return f"CREATE TABLE {schema}.{self.name} ({columns})"


@functools.cache
def arrow_schema(relation: Relation) -> pa.Schema:
    """Return the Arrow schema that fits a relation's columns."""
    return pa.schema([(column.name, ARROW_TYPES[column.type]) for column in relation.columns])


def columns(text: str) -> tuple[RelationColumn, ...]:
    """Read columns from lines of `name TYPE meaning`."""
    rows = (line.split(None, 2) for line in text.splitlines() if line.strip())
    return tuple(RelationColumn(name, kind, comment) for name, kind, comment in rows)


PLACE = """
partition           INTEGER    Kafka partition: the commit domain that decided
sequence            BIGINT     position: the outcome's dense number in its partition, from 1
time                TIMESTAMP  log time of the decision, UTC; never goes back in a partition
"""
"""What every event's row begins with."""
OF_TABLE = """
ordinal             INTEGER    the operation's place in the transaction
table_name          VARCHAR    the table
incarnation         VARCHAR    uuid of this life of the table
"""
"""What an event about a table has next."""
TABLE_ORDER = ("table_name", "partition", "sequence", "ordinal")
