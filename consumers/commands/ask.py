"""Commands that ask: what happened, to which table, who lost to whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from commitlog.model.table import format_table_id
from consumers.commands import output
from consumers.commands.columns import Column, Row
from consumers.commands.exit_codes import ExitCode
from consumers.commands.options import (
    HERE,
    JSON_FLAG,
    AsCsv,
    AsJson,
    Limit,
    Where,
    connect,
    id_of,
    partitions_of,
)
from consumers.commands.output import clock, day_and_time

if TYPE_CHECKING:
    from commitlog.model.records import Answered, Outcome

Attempted = Annotated[str, Parameter(help="The transaction's id or sequence.")]
OfPartition = Annotated[int, Parameter(help="The partition of the sequence.")]
AsJsonAttempts = Annotated[
    bool, JSON_FLAG, Parameter(help="Print a JSON array, one object per decided attempt.")
]
FOLLOW_POLL_SECONDS = 0.5
TIME = Column("time, UTC", lambda row: clock(row["time"]), leaves=2, brief=day_and_time)
TABLES = """
SELECT table_name, version, changed_at, changed_by, policy, primary_key, commits, rows_added,
       rows_removed, location, partition, sequence, incarnation, format, snapshot_id,
       metadata_location
FROM tables WHERE ended_by IS NULL ORDER BY table_name
"""


def history(
    table: str,
    /,
    *,
    where: Where = HERE,
    limit: Limit = 50,
    refused: Annotated[bool, Parameter(help="Show refused attempts too.")] = True,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Show a table's versions and refused attempts, newest first.

    Parameters
    ----------
    table
        The table's name, for example nyc$flights (quote the $).
    """
    from consumers import history as index

    rows = index.history(where.index_root(), table, limit=limit, refused=refused)
    columns = (
        Column("version", _version, is_number=True),
        TIME,
        Column("status"),
        Column("operation"),
        Column("rows", _row_change, is_number=True),
        Column("rebased", _rebased, leaves=4),
        Column("writer", "principal", leaves=5),
        Column("sequence", is_number=True, leaves=3),
        Column("transaction", "transaction_id", leaves=6),
        Column("why", "message", gives_way=True),
    )
    none = f"{table} has no versions yet"
    output.print_listing(
        columns, rows, as_json=as_json, as_csv=as_csv, nothing=none, names=rows.columns
    )


def tables(*, where: Where = HERE, as_json: AsJson = False, as_csv: AsCsv = False) -> None:
    """Show all tables and their newest versions."""
    from consumers import history as index

    rows = index.query(where.index_root(), TABLES)
    columns = (
        Column("table", "table_name"),
        Column("version", _version, is_number=True),
        Column("changed, UTC", lambda row: clock(row["changed_at"]), leaves=3),
        Column("by", "changed_by", leaves=4),
        Column("commits", is_number=True, leaves=5),
        Column("policy", leaves=6),
        Column("location", leaves=7),
    )
    none = "the log has no tables yet"
    output.print_listing(
        columns, rows, as_json=as_json, as_csv=as_csv, nothing=none, names=rows.columns
    )


def conflicts(
    table: str | None = None,
    /,
    *,
    where: Where = HERE,
    limit: Limit = 50,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Show who lost to whom, on what, and what to do next.

    Parameters
    ----------
    table
        Only this table's conflicts.
    """
    from consumers import history as index

    rows = index.conflicts(where.index_root(), table, limit=limit)
    columns = (
        TIME,
        Column("table", "table_name"),
        Column("status", leaves=5),
        Column("writer", "principal", leaves=4),
        Column("operation", leaves=6),
        Column("read", "read_version", is_number=True, leaves=3),
        Column("lost to", _winner),
        Column("rule"),
        Column("what to do", "advice", gives_way=True, leaves=7),
    )
    output.print_listing(
        columns, rows, as_json=as_json, as_csv=as_csv, nothing="no conflicts", names=rows.columns
    )


def show(
    transaction: Attempted,
    /,
    *,
    where: Where = HERE,
    partition: OfPartition = 0,
    as_json: AsJsonAttempts = False,
) -> ExitCode:
    """Show everything that the log has about a transaction."""
    from consumers import history as index

    return _print_attempts(
        index.transaction, _show_attempt, where, transaction, partition, as_json=as_json
    )


def explain(
    transaction: Attempted,
    /,
    *,
    where: Where = HERE,
    partition: OfPartition = 0,
    as_json: AsJsonAttempts = False,
) -> ExitCode:
    """Explain the outcome of a transaction: what was compared, and which rule decided."""
    from consumers.views.explanation import explain as explained

    return _print_attempts(
        explained, _explain_attempt, where, transaction, partition, as_json=as_json
    )


def _print_attempts(
    attempts_of: Callable[[Path, str], Sequence[Row]],
    print_one: Callable[[Row], None],
    where: Where,
    transaction: str,
    partition: int,
    *,
    as_json: bool,
) -> ExitCode:
    """Print what there is of each attempt of a transaction, named by its id or its sequence."""
    root = where.index_root()
    transaction = id_of(root, transaction, partition)
    attempts = attempts_of(root, transaction) or attempts_of(root, transaction.removeprefix("txn-"))
    if as_json:
        output.print_json(attempts)
    if not attempts:
        output.note(
            f"commitlog: the version index has no transaction {transaction}: none was submitted as "
            "that, or it isn't decided or not in the index yet (`commitlog log` shows the newest)"
        )
        return ExitCode.REFUSED
    for position, attempt in enumerate(attempts if not as_json else ()):
        if position:
            print()
        print_one(attempt)
    return ExitCode.OK


def _explain_attempt(attempt: Row) -> None:
    what = (
        f"transaction {attempt['transaction_id']}, attempt {attempt['attempt']},"
        f" position {attempt['sequence']}: {attempt['status']}"
    )
    print("\n  ".join(map(output.visible, [what, *attempt["words"]])))


def log(
    *,
    where: Where = HERE,
    partition: int = 0,
    limit: Limit = 20,
    follow: Annotated[
        bool, Parameter(name=["--follow", "-f"], negative="", show_default=False)
    ] = False,
    as_json: Annotated[bool, JSON_FLAG] = False,
) -> None:
    """Show the newest outcomes in the log, oldest first.

    Parameters
    ----------
    partition
        Which partition to read.
    follow
        Follow new outcomes until Ctrl-C.
    as_json
        Print a JSON array; with --follow, one JSON object per line.
    """
    with closing(connect(where.load())) as connected:
        partitions_of(connected, partition)
        records = connected.last_outcome_records(partition, limit)
        rows = [_record_row(record) for record in records]
        if not follow:
            output.print_listing(LOG_COLUMNS, rows, as_json=as_json, nothing="the log is empty")
            return
        for row in rows:
            _print_line(row, as_json)
        position = records[-1].offset + 1 if records else 0
        with closing(connected.read_outcomes(partition, position)) as reader:
            while True:
                output.check_reader()
                for record in reader.poll(timeout_seconds=FOLLOW_POLL_SECONDS):
                    _print_line(_record_row(record), as_json)


LOG_COLUMNS = (
    Column("sequence", is_number=True),
    TIME,
    Column("status"),
    Column("what", gives_way=True),
    Column("transaction", "transaction_id", leaves=3),
    Column("why", "message", gives_way=True),
)


def _record_row(answered: Answered) -> dict[str, Any]:
    from commitlog.model.records import Genesis, LeaderStarted, Outcome, Retained, Unreadable

    record = answered.record
    row: dict[str, Any] = {
        "offset": answered.offset,
        "partition": answered.partition,
        "time": datetime.fromtimestamp(answered.append_time_ms / 1000, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z"),
        "sequence": None,
        "transaction_id": "",
        "message": "",
    }
    if isinstance(record, Outcome):
        return row | _outcome_row(record)
    if isinstance(record, LeaderStarted):
        what = f"epoch {record.epoch} at {record.node}"
        return row | {"kind": "leader", "status": "leader", "what": what, "epoch": record.epoch}
    if isinstance(record, Genesis):
        what = f"log {record.log}, {record.tables_root}"
        return row | {"kind": "genesis", "status": "genesis", "what": what, "epoch": 0}
    if isinstance(record, Retained):
        what = f"transactions before offset {record.transactions_offset} left to the archive"
        at = {"epoch": None, "sequence": record.sequence}
        return row | at | {"kind": "retained", "status": "retained", "what": what}
    assert isinstance(record, Unreadable)
    return row | {"kind": "void", "status": "void", "what": "", "message": record.reason}


def _outcome_row(outcome: Outcome) -> dict[str, Any]:
    changes = [
        f"{result.operation} {format_table_id(result.table)}"
        + (f"@{result.version}" if result.version else "")
        for result in outcome.results
    ]
    conflict = outcome.conflict
    if not changes and outcome.status == "committed" and outcome.answers is None:
        changes = ["rules of the log"]
    if conflict is not None:
        changes = [
            f"lost to {conflict.operation} {format_table_id(conflict.table)}@{conflict.version}"
        ]
    return {
        "kind": "outcome",
        "sequence": outcome.sequence,
        "epoch": outcome.epoch,
        "status": str(outcome.status),
        "code": str(outcome.code),
        "what": ", ".join(changes),
        "versions": outcome.versions(),
        "transaction_id": outcome.transaction_id,
        "attempt": outcome.attempt,
        "answers": outcome.answers,
        "message": outcome.message,
        "hash": outcome.hash.hex(),
    }


def _print_line(row: Row, as_json: bool) -> None:
    if as_json:
        import json

        print(json.dumps(row), flush=True)
        return
    words = [output.one_line(output.text(one.of(row))) or "-" for one in LOG_COLUMNS]
    print(f"{words[0]:>9}  {words[1]}Z  {words[2]:<12} {'  '.join(words[3:])}".rstrip(), flush=True)


def _show_attempt(row: Row) -> None:
    from consumers.views.explanation import of_change

    output.print_facts(
        {
            "transaction": row["transaction_id"],
            "attempt": row["attempt"] or "",
            "status": f"{row['status']} {row['code'] or ''}".strip(),
            "sequence": f"{row['sequence']} in partition {row['partition']}",
            "time": f"{clock(row['time'])} UTC",
            "writer": row["principal"],
            "why": row["message"],
        }
    )
    for one in row["details"]:
        made = f"version {one['version']}" if one["version"] else one["status"]
        if one["snapshot_id"]:
            made = f"snapshot {one['snapshot_id']}"
        name = one["table_name"] or "the log itself"
        _print_visible(f"{one['operation']} {name}: {made}, {_what_of(one)}")
    for one in row["failed_requirements"]:
        _print_visible(f"{one['table_name']} required {one['requirement']}, has {one['actual']}")
    for one in row["changed"]:
        _print_visible(of_change(one, is_done=row["status"] == "committed"))
    if lost := row["conflict"]:
        _print_visible(f"lost to {_winner(lost)} ({lost['rule']}). {lost['advice'] or ''}")


def _print_visible(line: str) -> None:
    print(f"  {output.one_line(line)}")


def _what_of(one: Row) -> str:
    """Return what an operation did with rows; writes of rows say it themselves."""
    if one["status"] == "committed" and one["message"]:
        return str(one["message"])
    return f"{_row_change(one) or 'no'} rows"


def _version(row: Row) -> object:
    """Return Lance's version, or Iceberg's snapshot."""
    return row["version"] or row.get("snapshot_id")


def _row_change(row: Row) -> str:
    added, removed = row.get("rows_added") or 0, row.get("rows_removed") or 0
    return " ".join(
        part for part in (f"+{added}" if added else "", f"-{removed}" if removed else "") if part
    )


def _rebased(row: Row) -> str:
    return f"over {row['rebased_over']}" if row.get("rebased_over") else ""


def _winner(row: Row) -> str:
    who = f" by {row['winner_principal']}" if row.get("winner_principal") else ""
    return f"{row['winner_operation']} @{row['winner_version']}{who}"
