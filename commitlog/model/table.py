"""How tables are named: a path of parts, written `namespace$table`.

A table id is a tuple of its parts in memory and joined by `$` wherever people read it. The first
of several parts is the commit domain, which decides the partition (`DomainMap`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from commitlog.errors import InvalidTransaction

TableId = tuple[str, ...]
DELIMITER = "$"
PART_LENGTH_MAX = 255


class Policy(StrEnum):
    """Which versions of a table get a manifest file by themselves."""

    EVERY = "every"
    LATEST = "latest"


LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")
_FORBIDDEN = frozenset("/\\\0" + DELIMITER)


def parse_table_id(table: str | Sequence[str]) -> TableId:
    """Split and check a table id: no part is empty, `.`, `..`, or contains `/`."""
    if isinstance(table, str):
        return _split(table)
    has_order = isinstance(table, Iterable) and not isinstance(table, Mapping | Set)
    parts = tuple(table) if has_order else ()
    if not has_order or not all(isinstance(part, str) for part in parts):
        raise InvalidTransaction(
            f"table id {table!r} is not a valid name",
            field="table",
            value=table,
            advice="Give text such as 'namespace$table', or its parts",
        )
    return _checked(parts, table)


@lru_cache(maxsize=1024)
def _split(table: str) -> TableId:
    return _checked(tuple(table.split(DELIMITER)), table)


def _checked(parts: TableId, table: str | Sequence[str]) -> TableId:
    for part in parts or ("",):
        bad = not part or part in {".", ".."} or not _FORBIDDEN.isdisjoint(part)
        bad = bad or LONE_SURROGATE.search(part) is not None
        if bad or len(part) > PART_LENGTH_MAX:
            raise InvalidTransaction(
                f"table id {table!r} has a part {part!r} that cannot name a table or namespace",
                field="table",
                value=table,
                advice=(
                    "Use parts that are not empty, '.' or '..', without '/', '\\' and '$', "
                    f"of at most {PART_LENGTH_MAX} characters"
                ),
            )
    return parts


def format_table_id(table: TableId) -> str:
    """Join a table id's parts as people write them."""
    return DELIMITER.join(table)


@dataclass(frozen=True, slots=True)
class DomainMap:
    """Which partition decides for a table: by the first part of its name.

    `partitions` holds the domains that were given a partition of their own; all others share
    partition 0.
    """

    partitions: tuple[tuple[str, int], ...] = ()

    def partition(self, table: TableId) -> int:
        """Return the partition that decides for `table`; root tables are in partition 0."""
        if len(table) > 1:
            for domain, partition in self.partitions:
                if domain == table[0]:
                    return partition
        return 0
