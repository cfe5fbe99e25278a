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


_PLACE = """
partition           INTEGER    Kafka partition: the commit domain that decided
sequence            BIGINT     position: the outcome's dense number in its partition, from 1
time                TIMESTAMP  log time of the decision, UTC; never goes back in a partition
"""
_OF_TABLE = """
ordinal             INTEGER    the operation's place in the transaction
table_name          VARCHAR    the table
incarnation         VARCHAR    uuid of this life of the table
"""
TABLE_ORDER = ("table_name", "partition", "sequence", "ordinal")


def state(name: str, comment: str, columns: str, order: tuple[str, ...] = ()) -> Relation:
    """Return a relation whose columns are lines of `name TYPE meaning`."""
    rows = (line.split(None, 2) for line in columns.splitlines() if line.strip())
    return Relation(name, comment, tuple(RelationColumn(*row) for row in rows), order)


def event(name: str, comment: str, columns: str, order: tuple[str, ...]) -> Relation:
    """Return a relation of what happened: each row begins with its place in the log."""
    return state(name, comment, _PLACE + columns, order)


def about_table(name: str, comment: str, columns: str) -> Relation:
    """Return a relation of what happened to tables: each row says next to which one."""
    return event(name, comment, _OF_TABLE + columns, TABLE_ORDER)
