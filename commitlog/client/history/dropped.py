"""Finds a table that was dropped: by a version index, if one is given, or else in all of the log.

An index tells at once which few records made a table what it was; these are read from the log. It
isn't believed beyond that and which versions were deleted, of which there may be thousands.
"""

from __future__ import annotations

import os
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from commitlog.adapters.reading import record_at
from commitlog.client.commits.names import like_known
from commitlog.client.history.feed import PartitionFeed
from commitlog.client.history.feed_events import Selection, Start
from commitlog.client.history.lives import Life, Lives
from commitlog.client.history.sql import asking_index
from commitlog.client.leader.runtime import Runtime
from commitlog.client.leader.transactions_by_offset import TransactionsByOffset
from commitlog.core.catalogue.version_deletion import merged
from commitlog.core.log.chain import BEGINNING
from commitlog.errors import NoSuchTable, Unavailable
from commitlog.model.records import Outcome
from commitlog.model.table import TableId, format_table_id

if TYPE_CHECKING:
    import duckdb

INDEX_SECONDS = 3.0
"""How long an index that is behind may stand still before the log is read instead."""
LOOK_AGAIN_SECONDS = 0.1
RECORDS_MAX = 1_000
"""If more made the tables of a name what they were, all of the log is read, which is quicker."""
LIVES_MAX = 20
"""So many that had the name are looked at, those that were changed last."""

_LIVES = """
SELECT incarnation FROM operations JOIN tables USING (incarnation)
WHERE operations.partition = $partition AND is_table AND status = 'committed'
  AND $name IN (operations.table_name, name_after)
  AND (ended_by IS NOT NULL OR format = 'iceberg') AND $incarnation IN ('', incarnation)
GROUP BY ALL ORDER BY greatest(max(operations.sequence), any_value(ended_sequence)) DESC
LIMIT $lives_max
"""
_RECORDS = """
WITH done AS (
    SELECT incarnation, sequence, operations.version, metadata_location,
           operation IN ('CreateTable', 'DeclareTable', 'RegisterTable', 'DeregisterTable',
                         'DropTable', 'RenameTable', 'AlterProperties') AS is_of_table
    FROM operations
    WHERE partition = $partition AND status = 'committed'
      AND list_contains($incarnations, incarnation)
), versions AS (  -- the others repeat what was before
    FROM done WHERE NOT is_of_table
), made AS (
    SELECT sequence FROM done WHERE is_of_table
    UNION SELECT min(sequence) FROM done GROUP BY incarnation
    UNION SELECT max(sequence) FROM versions WHERE version IS NOT NULL GROUP BY incarnation
    UNION SELECT max(sequence) FROM versions WHERE metadata_location IS NOT NULL
          GROUP BY incarnation
    UNION SELECT ended_sequence FROM tables WHERE list_contains($incarnations, incarnation)
)
SELECT sequence, outcome_offset, hash FROM transactions
WHERE partition = $partition AND sequence IN (FROM made) ORDER BY sequence
"""
_NAMES = """
SELECT DISTINCT table_name FROM tables
WHERE partition = $partition AND (ended_by <> 'DeregisterTable' OR format = 'iceberg')
"""
_DELETED = """
SELECT DISTINCT first_version, last_version FROM expiries
WHERE partition = $partition AND incarnation = $incarnation ORDER BY ALL
"""


def dropped_table(
    runtime: Runtime,
    table: TableId,
    incarnation: str,
    deadline: float,
    index: str | os.PathLike[str] | None,
) -> Life:
    """Return the incarnation of a table that was dropped last, or the one that is asked for.

    Raises:
        NoSuchTable: there is none.
        Unavailable: the log wasn't read by the deadline.
        WrongLog: the index is another log's.
    """
    partition, name = runtime.domains.partition(table), format_table_id(table)
    end = int(runtime.request(partition, "status")["sequence"])
    if index is not None:
        try:
            _await_index(runtime, partition, end, deadline, index)
            found = _by_index(runtime, partition, name, incarnation, index)
        except Unavailable:
            found = None  # it is behind, another program's, or damaged
        if found is not None:
            return found
    lives = Lives()
    feed = PartitionFeed(runtime.log, partition, Start(BEGINNING, 0))
    for outcome, submitted in feed.read_to(end, deadline, Selection()):
        lives.apply(outcome, submitted)
    if (found := _last(lives, name, incarnation)) is None:
        raise _none_dropped(runtime, name, incarnation, lives.like_dropped(name))
    return found


def _none_dropped(runtime: Runtime, name: str, incarnation: str, hint: str) -> NoSuchTable:
    return NoSuchTable(
        f"no table {name}{f' of incarnation {incarnation}' if incarnation else ''} was"
        f" dropped from the log {runtime.log.name}.",
        hint=hint,
    )


def _last(lives: Lives, name: str, incarnation: str) -> Life | None:
    found = [one for one in lives.dropped(name) if incarnation in {"", one.incarnation}]
    return found[-1] if found else None


def _await_index(
    runtime: Runtime, partition: int, end: int, deadline: float, index: str | os.PathLike[str]
) -> None:
    """Return once an index has a sequence; raise Unavailable if it doesn't come to that."""
    newest, until = -1, 0.0
    while True:
        with asking_index(index, runtime.genesis.log_id) as connection:
            at = "SELECT max(sequence) FROM positions WHERE partition = ?"
            has = connection.execute(at, [partition]).fetchall()[0][0] or 0
        if has >= end:
            return
        now = time.monotonic()
        if has > newest:
            newest, until = has, min(now + INDEX_SECONDS, deadline)
        if now >= until:
            raise Unavailable(f"the index {index} has {has} of {end} outcomes")
        time.sleep(LOOK_AGAIN_SECONDS)


def _by_index(
    runtime: Runtime,
    partition: int,
    name: str,
    incarnation: str,
    index: str | os.PathLike[str],
) -> Life | None:
    """Return what an index knows; None if it can't tell.

    Raises NoSuchTable if none of this name was dropped, Unavailable if it can't be read.
    """
    with asking_index(index, runtime.genesis.log_id) as connection:
        return _in_index(connection, runtime, partition, name, incarnation)


def _in_index(
    connection: duckdb.DuckDBPyConnection,
    runtime: Runtime,
    partition: int,
    name: str,
    incarnation: str,
) -> Life | None:
    def asked(sql: str, **parameters: Any) -> list[Any]:
        return connection.execute(sql, {"partition": partition, **parameters}).fetchall()

    known = asked(_LIVES, name=name, incarnation=incarnation, lives_max=LIVES_MAX)
    records = asked(_RECORDS, incarnations=[one for (one,) in known])
    if len(records) > RECORDS_MAX:
        return None
    lives = Lives()
    for sequence, offset, digest in records:
        outcome = _outcome(runtime, partition, sequence, offset, digest)
        # Each by itself: what is between them is most of the log.
        with closing(TransactionsByOffset(runtime.log, partition)) as transactions:
            lives.apply(outcome, transactions.of(outcome))
    found = _last(lives, name, incarnation)
    if found is None and len(known) < LIVES_MAX:
        names = {one for (one,) in asked(_NAMES)}
        raise _none_dropped(runtime, name, incarnation, like_known(name, names, "dropped tables"))
    if found is None:
        return None
    ranges = tuple(asked(_DELETED, incarnation=found.incarnation))
    return replace(found, deleted=merged((), ranges))


def _outcome(
    runtime: Runtime, partition: int, sequence: int, offset: int, digest: bytes
) -> Outcome:
    found = record_at(runtime.log.read_outcomes(partition, offset), offset)
    record = found.record if found is not None else None
    if not isinstance(record, Outcome) or (record.sequence, record.hash) != (sequence, digest):
        # As after a restore to an earlier position. The log itself tells then, or what it lacks.
        raise Unavailable(f"the index has another outcome {sequence} than the log at {offset}")
    return record
