"""The namespaces that exist, and how a committed operation changes them."""

from __future__ import annotations

from bisect import bisect_left
from operator import itemgetter

from commitlog.core.tables.by_name import ByName
from commitlog.model.operations import (
    AlterProperties,
    CreateNamespace,
    CreateTable,
    DeclareTable,
    DropNamespace,
    Operation,
    Properties,
    RegisterTable,
    RenameTable,
)
from commitlog.model.table import TableId

_FEW = 16


class Namespaces(ByName[Properties]):
    """The namespaces of a partition, with their properties."""

    def apply(self, operation: Operation) -> None:
        """Take what a committed operation does to them."""
        if isinstance(operation, CreateTable | DeclareTable | RegisterTable):
            self._add(parents(operation.table))
        elif isinstance(operation, RenameTable):
            self._add(parents(operation.new_table))
        elif isinstance(operation, CreateNamespace):
            if operation.namespace not in self:
                self._add(parents(operation.namespace))
                self[operation.namespace] = tuple(sorted(operation.properties))
        elif isinstance(operation, DropNamespace):
            for name in self.within(operation.namespace):
                del self[name]
        elif isinstance(operation, AlterProperties) and operation.is_namespace:
            self[operation.target] = altered(self.get(operation.target, ()), operation)

    def _add(self, namespaces: list[TableId]) -> None:
        for namespace in namespaces:
            self.setdefault(namespace, ())


def parents(table: TableId) -> list[TableId]:
    """Return the namespaces that a table is in, outermost first."""
    return [table[:length] for length in range(1, len(table))]


class _Distinct(tuple[tuple[str, str], ...]):
    """Properties in order, each key once: a namespace may be made with one key twice."""

    __slots__ = ()


def altered(properties: Properties, operation: AlterProperties) -> Properties:
    """Return properties with an alteration made: a small one copies the others as they are."""
    upserts = dict(operation.upserts)
    if not isinstance(properties, _Distinct) or len(operation.removals) + len(upserts) > _FEW:
        values = dict(properties)
        for key in operation.removals:
            values.pop(key, None)
        return _Distinct(sorted({**values, **upserts}.items()))
    found = list(properties)
    for key in (*operation.removals, *upserts):
        at = bisect_left(found, key, key=itemgetter(0))
        is_there = at < len(found) and found[at][0] == key
        found[at : at + is_there] = [(key, upserts[key])] if key in upserts else []
    return _Distinct(found)
