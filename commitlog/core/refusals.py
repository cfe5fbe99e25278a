"""How refusals are worded: who won, by which rule, and what to do next."""

from __future__ import annotations

import re

from commitlog.core.asking import Finding, Verdict
from commitlog.core.decisions import Refused, rejected
from commitlog.core.history import History
from commitlog.core.manifest import DeltaRefused
from commitlog.core.tables import Table
from commitlog.model.records import Code, Conflict, Status
from commitlog.model.table import format_table_id

_CODES = {
    "unknown_fragment": Code.UNKNOWN_FRAGMENT,
    "duplicate_fragment": Code.DUPLICATE_FRAGMENT,
    "unknown_field": Code.WRONG_SCHEMA,
    "field_twice": Code.WRONG_SCHEMA,
    "no_fields": Code.WRONG_SCHEMA,
    "column_count_mismatch": Code.WRONG_SCHEMA,
    "column_missing": Code.WRONG_SCHEMA,
    "column_unexpected": Code.WRONG_SCHEMA,
    "required_field_missing": Code.WRONG_SCHEMA,
    "unknown_file_format": Code.WRONG_SCHEMA,
    "storage_format_mismatch": Code.WRONG_SCHEMA,
    "unexpected_row_ids": Code.WRONG_SCHEMA,
}


def snake(name: str) -> str:
    """Return a CamelCase name in snake case."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def conflict_refused(
    table: Table, kind: str, finding: Finding, read_version: int, head: int
) -> Refused:
    """Return the refusal of an operation that lost against a committed version."""
    winner = table.history.committed(finding.version)
    is_retryable = finding.verdict is Verdict.RETRYABLE
    rule = f"{snake(kind)}_{snake(winner.kind)}_{finding.rule}"
    if is_retryable:
        advice = f"Read version {head} and do it again."
    else:
        advice = f"Look at version {head} before doing it again: it may mean something else now."
    name = format_table_id(table.table_id)
    where = f" on fragments {list(finding.fragments)}" if finding.fragments else ""
    what = f" ({', '.join(finding.keys)})" if finding.keys else ""
    return Refused(
        Status.RETRYABLE if is_retryable else Status.INCOMPATIBLE,
        Code.CONFLICT,
        f"{kind} of {name} read version {read_version}; version {finding.version}, "
        f"{winner.kind} by {winner.transaction_id}, came first{where}{what}: {rule}.",
        Conflict(
            table=table.table_id,
            transaction_id=winner.transaction_id,
            version=finding.version,
            operation=winner.kind,
            rule=rule,
            fragments=finding.fragments,
            keys=finding.keys,
            advice=advice,
        ),
    )


def winner_of(table: Table, history: History, version: int, rule: str, advice: str) -> Conflict:
    """Describe the version that stands in the way, as far as it is remembered."""
    known = history.floor < version <= history.head
    winner = history.committed(version) if known else None
    return Conflict(
        table=table.table_id,
        transaction_id=winner.transaction_id if winner else "",
        version=version,
        operation=winner.kind if winner else "",
        rule=rule,
        advice=advice,
    )


def delta_refused(error: DeltaRefused) -> Refused:
    """Return the refusal of an operation that doesn't fit the manifest."""
    return rejected(_CODES.get(error.code, Code.INVALID_OPERATION), str(error))
