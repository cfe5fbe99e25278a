"""Why a transaction ended as it did, in words: what was compared with what, and what decided.

Read off the version index, which holds each attempt, what was committed between what it read and
the moment it was decided, and who won. The rules are the ones that the leader executes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from commitlog.core.conflicts.grid import LETTERS, OPERATION_NAMES, RULE_NAMES, RULES
from commitlog.model.names import ROWS_EXPIRED_THROUGH
from consumers import history
from consumers.history import Ask, Row
from consumers.views.index_rows import Value

LOG = "the log itself"
_BEFORE = """
WITH life AS (
    SELECT coalesce($2, (
        SELECT arg_max(incarnation, sequence * 1048576 + ordinal) FROM operations
        WHERE coalesce(name_after, table_name) = $1 AND status = 'committed'
          AND partition = $3 AND sequence < $4)) AS incarnation),
before AS (
    FROM operations
    WHERE table_name IN (
        SELECT $1 UNION ALL SELECT unnest(list_append(former_names, table_name)) FROM tables
        WHERE incarnation = (FROM life))
      AND incarnation = (FROM life) AND status = 'committed'
      AND partition = $3 AND sequence < $4)
"""
"""What had become of the table when it was decided, under whatever name."""
_MISSED = f"""
{_BEFORE}
SELECT operation, count(*) AS versions, min(version) AS first, max(version) AS last
FROM before WHERE version > $5 GROUP BY operation ORDER BY first
"""
_HEAD = f"{_BEFORE} SELECT max(version) AS version FROM before"
_REQUIRED = """
SELECT table_name, requirement, actual FROM failed_requirements
WHERE transaction_id = ? AND partition = ? AND sequence = ? ORDER BY ordinal
"""
_EXPECTED = """
SELECT kind, table_name, version, detail FROM expectations
WHERE transaction_id = ? AND partition = ? AND sequence = ? ORDER BY ordinal
"""
_ROWS_EXPIRED = """
SELECT sequence, value FROM properties
WHERE table_name = ? AND is_table AND partition = ? AND key = ? AND try_cast(value AS BIGINT) >= ?
ORDER BY sequence LIMIT 1
"""
_FIXED = {
    ".": "compatible, whatever they touched",
    "R": "a conflict, whatever they touched: read again and redo",
    "X": "a conflict, whatever they touched: a redo may mean something else",
    "E": "not to be judged: Lance doesn't know the operation",
}
_ENDS = {
    "committed": "It committed",
    "retryable": "It lost, and may be done again on the newest version",
    "incompatible": "It lost, and doing it again may mean something else",
    "rejected": "It was refused: the request itself is wrong",
    "superseded": "A later attempt of the same id was decided before it, so it counts no more",
}


def explain(root: str | os.PathLike[str], transaction_id: str) -> list[Row]:
    """Return one row per attempt of an id, oldest first, each with its `words`.

    Empty if the index knows nothing of the id.
    """

    def work(run: Ask) -> list[Row]:
        return [_attempt(run, row) for row in history.attempts(run, transaction_id)]

    return history.read(root, work)


def _attempt(run: Ask, row: Row) -> Row:
    place = (row["partition"], row["sequence"])
    about = [row["transaction_id"], *place]
    details = _rows(row["details"])
    compared = [_compared(run, one, place) for one in details]
    required = run(_REQUIRED, about)
    expected = run(_EXPECTED, about)
    names = ("transaction_id", "partition", "sequence", "attempt", "status", "code", "message")
    told: Row = {name: row[name] for name in names}
    told |= {
        "answers": row["answers"],
        "operations": compared,
        "conflict": row["conflict"],
        "expected": expected,
        "failed_requirements": required,
    }
    told["words"] = [
        *_words(row, details, compared, required, expected),
        *(of_change(one, is_done=row["status"] == "committed") for one in _rows(row["changed"])),
        *_of_expired_rows(run, row, details),
    ]
    return told


def _rows(value: Value) -> list[Row]:
    assert isinstance(value, Sequence)
    return [dict(one) for one in value if isinstance(one, dict)]


def _compared(run: Ask, one: Row, place: tuple[Value, Value]) -> Row:
    """Return what an operation was compared with: versions of its table, by operation."""
    told: Row = {
        name: one[name]
        for name in ("table_name", "operation", "read_version", "version", "built_on", "rebased")
    }
    about = [one["table_name"], one["incarnation"], *place]
    [found] = run(_HEAD, about)
    told["head"] = found["version"]
    read = one["read_version"]
    rows: list[Row] = []
    if one["operation"] in OPERATION_NAMES and isinstance(read, int) and read:
        rows = run(_MISSED, [*about, read])
    told["compared"] = [_judged(str(one["operation"]), missed) for missed in rows]
    return told


def _judged(asking: str, missed: Row) -> Row:
    letter = LETTERS.get((asking, str(missed["operation"])), ".")
    rule = RULE_NAMES.get(letter, "")
    meaning = _FIXED.get(letter) or (RULES[letter].__doc__ or "").strip().split("\n")[0]
    return {**missed, "rule": rule, "meaning": meaning}


def _words(
    row: Row, details: list[Row], compared: list[Row], required: list[Row], expected: list[Row]
) -> Iterable[str]:
    status = str(row["status"])
    yield f"{_ENDS[status]}."
    if row["answers"] is not None:
        yield (
            f"It had committed before, as outcome {row['answers']}: that commit is its answer, and "
            "nothing was done twice."
        )
        return
    if row["kind"] == "protocol" and status == "committed":
        yield "It put rules of the log in force; `commitlog rules` shows those of now."
    for each in expected:
        held = "had to hold" if status == "committed" else "was to hold"
        yield f"Expected: {each['kind']} {each['table_name']} {_of(each)}, which {held} first."
    for one, told in zip(details, compared, strict=True):
        yield from _of_operation(one, told, len(details) > 1)
    yield from _of_refusal(row, required)


def of_change(one: Row, *, is_done: bool) -> str:
    """Say what was set of a table, a namespace, or the log itself (a tag, a place)."""
    of = str(one["table_name"]) if one["is_table"] else f"namespace {one['table_name']}"
    of = of if one["table_name"] else LOG
    asked = "It" if is_done else "It asked for this: it"
    if one["value"] is None:
        return f"{asked} removed {one['key']} of {of}."
    return f"{asked} set {one['key']} of {of} to {one['value']}."


def _of_expired_rows(run: Ask, row: Row, details: list[Row]) -> Iterable[str]:
    """Say which record had the rows of a write expire."""
    partition, position = row["partition"], row["sequence"]
    written = [one["table_name"] for one in details if one["operation"] == "WriteRows"]
    for table in dict.fromkeys(written):
        about = [table, partition, ROWS_EXPIRED_THROUGH, position]
        for one in run(_ROWS_EXPIRED, about):
            yield (
                f"The rows for {table} that were applied have left the log and its archive since: "
                f"they expired by record {one['sequence']}."
            )


def _of(each: Row) -> str:
    known = [str(each[name]) for name in ("version", "detail") if each[name] is not None]
    return " ".join(known)


def _of_operation(one: Row, told: Row, is_one_of_many: bool) -> Iterable[str]:
    operation, table, head = one["operation"], one["table_name"] or LOG, told["head"]
    part = f"operations[{one['ordinal']}]: " if is_one_of_many else ""
    read = one["read_version"]
    if one["rebased"] and one["snapshot_id"] is not None:
        yield (
            f"{part}{operation} of the Iceberg table {table}: {one['rebased_over']} snapshots came "
            "since the one that its client had read. Its manifests were put over them, and "
            f"snapshot {one['snapshot_id']} is current since."
        )
        return
    if one["snapshot_id"] is not None or one["metadata_location"] is not None:
        yield (
            f"{part}{operation} of the Iceberg table {table}: all that the client required of it "
            f"held. Its current snapshot is {one['snapshot_id']} since."
        )
        return
    if operation == "WriteRows":
        yield (
            f"{part}The rows for {table} were accepted at position {one['sequence']}. One of the "
            "table's next ApplyRows says what came of them: they are applied in order of position."
        )
        return
    if operation == "ApplyRows":
        yield (
            f"{part}The writes of rows to {table} that it names are the next ones after those that "
            "were applied before."
        )
        return
    if read is None or operation not in OPERATION_NAMES:
        made = f" and made version {one['version']}" if one["version"] else ""
        yield f"{part}{operation} of {table} was decided on the catalogue as it stood{made}."
        return
    if not read:
        yield f"{part}{operation} of {table} reads nothing: it is as of the head, version {head}."
    else:
        yield f"{part}{operation} of {table} read version {read}; version {head} was the newest."
        yield from _of_versions(told)
    if one["status"] == "committed" and one["version"] is not None:
        yield _of_commit(one)


def _of_versions(told: Row) -> Iterable[str]:
    rows = _rows(told["compared"])
    if not rows:
        yield "No other commit came in between, so there was nothing to compare it with."
        return
    yield "Commits in between, and the verdict on each:"
    for each in rows:
        first, last = each["first"], each["last"]
        where = f"version {first}" if first == last else f"versions {first} to {last}"
        by = f" (rule {each['rule']})" if each["rule"] else ""
        yield f"  {each['versions']} {each['operation']}, {where}: {each['meaning']}{by}"


def _of_commit(one: Row) -> str:
    version, built_on = one["version"], one["built_on"]
    if one["rebased"]:
        return (
            f"The rows that it deletes were still there: its deletion vectors were merged with "
            f"newer ones on top of version {built_on}, and it became version {version}."
        )
    if one["rebased_over"]:
        return f"None of them touched what it touches: it became version {version}, unchanged."
    return f"It became version {version}."


def _of_refusal(row: Row, required: list[Row]) -> Iterable[str]:
    conflict = row["conflict"]
    if isinstance(conflict, dict):
        yield (
            f"Version {conflict['winner_version']} of {conflict['table_name']}, "
            f"{conflict['winner_operation']} by transaction {conflict['winner_transaction_id']}, "
            f"came first: {conflict['rule']}{_on(conflict)}."
        )
        if conflict["advice"]:
            yield f"What to do: {conflict['advice']}"
    elif row["code"] is not None:
        yield f"{row['code']}: {row['message']}"
    for each in required:
        yield (
            f"The client required {each['requirement']} of {each['table_name']}; it has "
            f"{each['actual']}."
        )


def _on(conflict: Row) -> str:
    parts = [
        f"{name} {', '.join(map(str, found))}"
        for name in ("fragments", "keys")
        if isinstance(found := conflict[name], Sequence) and found
    ]
    return f" on {' and '.join(parts)}" if parts else ""
