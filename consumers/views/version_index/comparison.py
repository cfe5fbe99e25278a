"""Compares two version indexes row by row: the published one with one that was built again.

Each relation of each partition is counted and digested in both files, up to a sequence that both
have; where they differ, the first differing row is looked for. Rows are compared whole but for
words, which another version of this program may render differently from the same reason.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import duckdb

from commitlog.errors import Unavailable, UnsupportedFormat, WrongLog
from consumers.history import connect, query
from consumers.views.version_index.relation import Relation
from consumers.views.version_index.schema import EVENTS, LEADERS, TABLES

_DIGESTS = 1 << 64
_WORDS = frozenset({"message", "advice"})


@dataclass(frozen=True, slots=True)
class RelationCompared:
    """One relation of one partition, in both indexes."""

    relation: str
    rows: int
    """In the index that was built again."""
    digest: str
    """Of those rows, whatever their order: hexadecimal."""
    first_difference: int | None = None
    """The sequence of the first row that one of them hasn't; None: they are equal."""


def position(root: str | os.PathLike[str], partition: int) -> tuple[int, bytes, int]:
    """Return where a published index stands: sequence, hash and offset of its last outcome.

    Sequence 0 if it has nothing of the partition. Raises Unavailable if there is no index.
    """
    with connect(root) as connection:
        return _position(connection, partition)


def _position(connection: duckdb.DuckDBPyConnection, partition: int) -> tuple[int, bytes, int]:
    row = connection.execute(
        "SELECT sequence, hash, last_outcome_offset FROM positions WHERE partition = ?",
        [partition],
    ).fetchone()
    return (int(row[0]), bytes(row[1] or b""), int(row[2])) if row else (0, b"", -1)


def check_index_of(root: str | os.PathLike[str], log: str, log_id: str) -> None:
    """Raise WrongLog if the index under `root` is another log's.

    None at all is no error, nor is one that can't be read, or that another version of this program
    made: its keeper publishes a good one, and whoever reads it says what is wrong until then.
    """
    known: dict[str, object] = {}
    with contextlib.suppress(Unavailable, UnsupportedFormat):
        known = {str(row["key"]): row["value"] for row in query(root, "FROM meta")}
    if known.get("log_id", log_id) != log_id:
        raise WrongLog(
            f"the version index in {root} is of log {known.get('log')!r} ({known['log_id']}), not"
            f" of {log!r} ({log_id}): name this log's root, or the other log"
        )


def compare(
    published: str | os.PathLike[str],
    rebuilt: str | os.PathLike[str],
    partition: int,
) -> Iterator[RelationCompared]:
    """Compare what two roots' indexes have of a partition, up to the outcome that both have.

    The tables' rows change in place: they are compared if both stand at that outcome, in the
    snapshots that are compared. Raises Unavailable if one of them cannot be read.
    """
    with connect(published) as theirs, connect(rebuilt) as ours:
        ends = [_position(one, partition)[0] for one in (theirs, ours)]
        through = min(ends)
        relations = (*EVENTS, LEADERS, TABLES) if through == max(ends) else EVENTS
        for relation in relations:
            try:
                found = [_digest(one, relation, partition, through) for one in (theirs, ours)]
                first = None
                if found[0] != found[1]:
                    first = _first_difference(theirs, ours, relation, partition, through)
            except duckdb.Error as error:
                raise Unavailable(f"the version index cannot be compared: {error}") from error
            yield RelationCompared(relation.name, found[1][0], f"{found[1][1]:016x}", first)


def _digest(
    connection: duckdb.DuckDBPyConnection, relation: Relation, partition: int, through: int
) -> tuple[int, int]:
    names = ", ".join(f'"{one.name}"' for one in relation.columns if one.name not in _WORDS)
    found = connection.execute(
        f"SELECT count(*), coalesce(sum(hash(r)), 0) FROM (SELECT {names} FROM {relation.name}) r"
        " WHERE partition = ? AND sequence <= ?",
        [partition, through],
    ).fetchone()
    assert found is not None
    return int(found[0]), int(found[1]) % _DIGESTS


def _first_difference(
    theirs: duckdb.DuckDBPyConnection,
    ours: duckdb.DuckDBPyConnection,
    relation: Relation,
    partition: int,
    through: int,
) -> int:
    """Halve the range of sequences until one is left."""
    low, high = 0, through
    while low < high:
        middle = (low + high) // 2
        digests = {_digest(one, relation, partition, middle) for one in (theirs, ours)}
        if len(digests) == 1:
            low = middle + 1
        else:
            high = middle
    return low
