"""Finds the version that renamed what a running stream reads: it reads columns by name.

Values under the new name would be missed, and a stream doesn't come back to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyspark.sql.types import StructType

from commitlog.errors import NoSuchVersion
from commitlog.lancepb.file_pb2 import Field
from commitlog.spark.versions import TableVersions

Path = tuple[str, ...]
"""A column's name, and those of fields within its structs."""


@dataclass(frozen=True)
class Rename:
    """A version that gave a column, or a field of a struct, another name."""

    version: int
    old: Path
    new: Path


def first_rename(
    versions: TableVersions, schema: StructType, start: int, last: int
) -> Rename | None:
    """Return the first of some versions that renamed what a schema names, and the table lacks now.

    If the table has the name again, it is read by that: another stream may have begun with it.
    """
    gone = set(_read(schema)) - set(_paths(versions.info.field_ids).values())
    if not gone:
        return None
    for version in range(max(start, 2), last + 1):
        try:
            before, after = versions.take(version - 1), versions.read(version)
        except NoSuchVersion:
            continue  # who plans its changes says so
        versions.keep(after)
        names = _paths(after.state.header.fields)
        for number, old in _paths(before.state.header.fields).items():
            new = names.get(number, old)
            if old in gone and new != old:
                return Rename(version, old, new)
    return None


def _read(schema: StructType, above: Path = ()) -> Iterator[Path]:
    for field in schema.fields:
        path = (*above, field.name)
        yield path
        if isinstance(field.dataType, StructType):
            yield from _read(field.dataType, path)


def _paths(fields: Mapping[int, Field]) -> dict[int, Path]:
    """Return all fields by id; parents stand before their children."""
    paths: dict[int, Path] = {-1: ()}
    for number, field in fields.items():
        paths[number] = (*paths[field.parent_id], field.name)
    return paths
