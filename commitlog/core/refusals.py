"""Refusals that need more than a name: who won, by which rule, and what the outcome says of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from commitlog.core.conflicts.candidate import Finding, Verdict
from commitlog.core.conflicts.history import History
from commitlog.core.decisions import BuildWanted, Refused
from commitlog.core.log.canonical import to_json
from commitlog.core.manifest.manifest_state import DeltaRefused
from commitlog.core.tables.lance_tables import Table
from commitlog.model.limits import ARGUMENT_ITEMS_MAX, FAILED_REQUIREMENTS_MAX, REASONS_SINCE, Rules
from commitlog.model.reasons import Cut, Phrase, bounded, cut, shortened
from commitlog.model.records import Code, Conflict, FailedRequirement, Outcome, Status
from commitlog.model.table import format_table_id
from commitlog.words import frozen, frozen_advice

_CODES = {
    "unknown_fragment": Code.UNKNOWN_FRAGMENT,
    "duplicate_fragment": Code.DUPLICATE_FRAGMENT,
    "updated_and_deleted": Code.DUPLICATE_FRAGMENT,
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


def told(rules: Rules, phrase: Phrase, operation: int = -1) -> dict[str, Any]:
    """Return what an outcome holds of a phrase: a reason, or in older protocols its words."""
    if rules.protocol >= REASONS_SINCE:
        return {"reason": bounded(phrase, operation)}
    prefix = f"operations[{operation}]: " if operation >= 0 else ""
    return {"message": prefix + frozen(phrase)}


def refusal_told(rules: Rules, refusal: Refused) -> dict[str, Any]:
    """Return what an outcome holds of a refusal."""
    conflict, failed = refusal.conflict, refusal.failed_requirements
    if rules.protocol >= REASONS_SINCE:
        failed = tuple(_bounded_requirement(one) for one in failed[:FAILED_REQUIREMENTS_MAX])
        conflict = conflict and _bounded_conflict(conflict)
    elif conflict is not None:
        conflict = replace(conflict, advice=frozen_advice(refusal.phrase))
    return {
        "code": refusal.code,
        "conflict": conflict,
        "observed": refusal.observed,
        "failed_requirements": failed,
        **told(rules, refusal.phrase, refusal.operation),
    }


def _bounded_conflict(conflict: Conflict) -> Conflict:
    keys = tuple(shortened(key) for key in conflict.keys[:ARGUMENT_ITEMS_MAX])
    return replace(conflict, fragments=conflict.fragments[:ARGUMENT_ITEMS_MAX], keys=keys)


def _bounded_requirement(failed: FailedRequirement) -> FailedRequirement:
    requirement, actual = _bounded_json(failed.requirement), _bounded_json(failed.actual)
    return replace(failed, requirement=requirement, actual=actual)


def _bounded_json(text: str) -> str:
    """Return JSON as it is; of a long one, an object that holds its beginning."""
    start = cut(text)
    if not isinstance(start, Cut):
        return text
    kept = {"cut": str(start), "length": start.length, "sha256": start.sha256.hex()}
    return to_json(kept).decode()


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
    phrase = Phrase(
        "conflict" if is_retryable else "conflict_incompatible",
        {
            "kind": kind,
            "table": format_table_id(table.table_id),
            "read_version": read_version,
            "version": finding.version,
            "winner": winner.kind,
            "transaction": winner.transaction_id,
            "rule": rule,
            "head": head,
            "where": _named("on_fragments", fragments=list(finding.fragments)),
            "what": _named("of_keys", keys=finding.keys),
        },
    )
    return Refused(
        Status.RETRYABLE if is_retryable else Status.INCOMPATIBLE,
        Code.CONFLICT,
        phrase,
        Conflict(
            table=table.table_id,
            transaction_id=winner.transaction_id,
            version=finding.version,
            operation=winner.kind,
            rule=rule,
            # A fragment that a client made up may have a number that no outcome can hold.
            fragments=tuple(one for one in finding.fragments if one < 2**63),
            keys=finding.keys,
        ),
    )


def _named(name: str, **found: Sequence[object]) -> Phrase | str:
    return Phrase(name, found) if any(found.values()) else ""


def build_error(outcome: Outcome, wanted: BuildWanted) -> str | Phrase:
    """Return why a manifest wasn't built, as the refusal has it; empty if it doesn't say."""
    if outcome.reason is not None:
        error = outcome.reason.argument("error") if outcome.code is Code.BUILD_REFUSED else ""
        assert isinstance(error, str | Phrase)
        return error
    before = " cannot be a clone: " if wanted.target else f" of {format_table_id(wanted.table)}: "
    return outcome.message.partition(before)[2]


def winner_of(table: Table, history: History, version: int, rule: str) -> Conflict:
    """Describe the version that stands in the way, as far as it is remembered."""
    known = history.floor < version <= history.head
    winner = history.committed(version) if known else None
    return Conflict(
        table=table.table_id,
        transaction_id=winner.transaction_id if winner else "",
        version=version,
        operation=winner.kind if winner else "",
        rule=rule,
    )


def delta_refused(error: DeltaRefused) -> Refused:
    """Return the refusal of an operation that doesn't fit the manifest."""
    code = _CODES.get(error.code, Code.INVALID_OPERATION)
    return Refused(Status.REJECTED, code, error.phrase)
