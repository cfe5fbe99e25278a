"""The events of the change feed, their JSON forms, and tokens to resume from."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from commitlog.adapters.places import bound
from commitlog.core.log.chain import ChainPlace
from commitlog.errors import InvalidRequest, WrongLog
from commitlog.model.operations import (
    ApplyRows,
    LanceCommit,
    Operation,
    WriteRows,
    operation_name,
    target,
)
from commitlog.model.records import (
    OperationResult,
    Outcome,
    Status,
    Submitted,
    Transaction,
    found_standing,
)
from commitlog.model.table import DELIMITER, TableId, format_table_id, parse_table_id

TYPE_PREFIX = "commitlog.transaction."
OPERATIONS_SHOWN = 3
_TOKEN_FORMAT = 1
_ALL = f"{DELIMITER}*"


@dataclass(frozen=True, slots=True)
class Start:
    """Where one partition's feed begins: at a place that is valid, telling what is after `told`."""

    place: ChainPlace
    told: int


def token_of(log_id: str, starts: Sequence[Start]) -> str:
    """Return the resume token of a start in each partition."""
    body = {"v": _TOKEN_FORMAT, "log": log_id, "at": list(map(_row, starts))}
    text = json.dumps(body, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _row(start: Start) -> list[int | str]:
    place = start.place
    row: list[int | str] = [place.sequence, place.outcomes_offset, place.epoch, place.hash.hex()]
    # A feed that began inside the log and hasn't read that far skips what came before.
    return row if start.told <= place.sequence else [*row, start.told]


class _ForeignToken(WrongLog, InvalidRequest):
    """A resume token is another log's. The request is wrong, not what this program is set to."""


def token_starts(token: str, log_id: str, partitions: int) -> list[Start]:
    """Return where a feed continues in each partition that has a resume token.

    Raises InvalidRequest if it is none, WrongLog if it is another log's.
    """
    try:
        body = json.loads(base64.urlsafe_b64decode(token.encode() + b"=" * (-len(token) % 4)))
        if body["v"] != _TOKEN_FORMAT:
            raise ValueError(body["v"])
        starts = [
            Start(
                ChainPlace(int(sequence), int(offset), int(epoch), bytes.fromhex(digest)),
                int(told[0]) if told else int(sequence),
            )
            for sequence, offset, epoch, digest, *told in body["at"]
        ]
        found = str(body["log"])
    except (ValueError, KeyError, TypeError, binascii.Error, RecursionError) as error:
        raise InvalidRequest(
            f"{token[:80]!r} is not a resume token",
            field="from_position",
            value=token[:80],
            advice="Give an event's token unchanged, a sequence, 'beginning' or 'now'",
        ) from error
    if found != log_id or len(starts) != partitions:
        raise _ForeignToken(
            f"the resume token is of log {found!r}, partitions: {len(starts)}; this is {log_id!r},"
            f" partitions: {partitions}",
            field="from_position",
            value=token[:80],
            advice="Begin anew",
        )
    places = [start.place for start in starts]
    if any(min(p.sequence, p.outcomes_offset, p.epoch) < 0 for p in places):
        raise InvalidRequest("the resume token names no place", field="from_position")
    return starts


@dataclass(frozen=True, slots=True)
class Selection:
    """Selects transactions: those that touch a table and ended in a certain way."""

    tables: tuple[str, ...] = ()
    """Names; `ns$*` is all in a namespace. Empty, or `*` among them: all."""
    statuses: tuple[Status, ...] = (Status.COMMITTED,)

    @classmethod
    def of(cls, tables: str | Sequence[str | Sequence[str]] | None, refused: bool) -> Selection:
        """Make a selection of what callers give; raises InvalidRequest for a wrong name."""
        several: Any = () if tables is None else tables
        is_one = isinstance(several, str) or not isinstance(several, Iterable)
        names = [several] if is_one else list(several)
        if "*" in names:
            names = []
        return cls(tuple(map(_name, names)), tuple(Status) if refused else (Status.COMMITTED,))

    @property
    def named(self) -> list[TableId]:
        """The tables that are selected by their full names."""
        return [parse_table_id(n) for n in self.tables if not n.endswith(_ALL)]

    @property
    def namespaces(self) -> list[TableId]:
        """The namespaces whose tables are all selected."""
        return [parse_table_id(n.removesuffix(_ALL)) for n in self.tables if n.endswith(_ALL)]

    def may_take(self, outcome: Outcome) -> bool:
        """Return False if the outcome alone rules it out: a repeated answer changed nothing."""
        return outcome.status in self.statuses and outcome.answers is None

    def takes(self, outcome: Outcome, submitted: Submitted) -> bool:
        """Return True if it touches a selected table."""
        if not self.tables:
            return True
        touched = {format_table_id(target(one)) for one in submitted.operations}
        touched |= {format_table_id(result.table) for result in outcome.results}
        return any(self._is_asked_for(table) for table in touched)

    def _is_asked_for(self, table: str) -> bool:
        return any(
            table.startswith(name[:-1]) if name.endswith(_ALL) else table == name
            for name in self.tables
        )


def _name(table: str | Sequence[str]) -> str:
    if isinstance(table, str) and table.endswith(_ALL):
        return f"{format_table_id(parse_table_id(table.removesuffix(_ALL)))}{_ALL}"
    return format_table_id(parse_table_id(table))


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """One decided transaction: everything that it changed, or why it changed nothing."""

    partition: int
    submitted: Submitted
    outcome: Outcome
    log: str
    log_id: str
    token: str
    """Where to resume after this event."""

    def __repr__(self) -> str:
        """Return one line: what was decided, of what, for whom."""
        transaction = self.transaction
        operations = transaction.operations if transaction is not None else ()
        by = f" by {transaction.principal}" if transaction and transaction.principal else ""
        named = ", ".join(operation_name(one) for one in operations[:OPERATIONS_SHOWN])
        more = ", …" if len(operations) > OPERATIONS_SHOWN else ""
        return f"<FeedEvent {named}{more}{by} {self.outcome!r}>"

    @property
    def sequence(self) -> int:
        """Its position in its partition."""
        return self.outcome.sequence

    @property
    def status(self) -> Status:
        """How it ended."""
        return self.outcome.status

    @property
    def transaction(self) -> Transaction | None:
        """The request; None for a change of rules, and for a record that can't be read."""
        record = self.submitted.record
        return record if isinstance(record, Transaction) else None

    @property
    def versions(self) -> dict[str, int]:
        """The newest version made, by table; of a dataset that was registered, the one it had."""
        made = (
            result for operation, result in self._done() if not found_standing(operation, result)
        )
        return {format_table_id(one.table): one.version for one in made if one and one.version}

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        outcome, transaction = self.outcome, self.transaction
        found: dict[str, Any] = {
            "partition": self.partition,
            "sequence": outcome.sequence,
            "status": str(outcome.status),
            "transaction_id": outcome.transaction_id,
            "attempt": outcome.attempt,
            "principal": transaction.principal if transaction else "",
            "properties": dict(transaction.properties) if transaction else {},
            "operations": [_operation(*one) for one in self._done()],
        }
        if transaction is not None and transaction.application is not None:
            application = transaction.application
            found["application"] = {
                "id": application.application_id,
                "sequence": application.sequence,
            }
        if outcome.status is not Status.COMMITTED:
            found |= {"code": str(outcome.code), "message": outcome.message}
        if outcome.conflict is not None:
            lost = outcome.conflict
            found["conflict"] = {
                "table": format_table_id(lost.table),
                "transaction_id": lost.transaction_id,
                "version": lost.version,
                "operation": lost.operation,
                "rule": lost.rule,
                "fragments": list(lost.fragments),
            }
        return found

    def to_cloud_event(self) -> dict[str, Any]:
        """Return it in the JSON format of CloudEvents 1.0."""
        outcome = self.outcome
        moment = datetime.fromtimestamp(outcome.time_ms / 1000, UTC)
        return {
            "specversion": "1.0",
            "id": f"{self.partition}/{outcome.sequence}",
            "source": f"urn:commitlog:{self.log_id}",
            "type": f"{TYPE_PREFIX}{outcome.status}",
            "subject": outcome.transaction_id,
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "datacontenttype": "application/json",
            "data": self.to_json(),
        }

    def _done(self) -> list[tuple[Operation | None, OperationResult | None]]:
        """Return operations with their results; one without the other if they don't correspond."""
        transaction = self.transaction
        asked = transaction.operations if transaction else ()
        results = self.outcome.results
        if len(results) == len(asked):
            return list(zip(asked, results, strict=True))
        return [(None, result) for result in results] or [(one, None) for one in asked]


def _operation(asked: Operation | None, result: OperationResult | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if asked is not None:
        found |= {"table": format_table_id(target(asked)), "operation": operation_name(asked)}
    if result is not None:
        found |= {"table": format_table_id(result.table), "incarnation": result.incarnation}
        found.setdefault("operation", result.operation)
        optional: Mapping[str, Any] = {
            "version": None if found_standing(asked, result) else result.version or None,
            "rebased_over": result.rebased_over or None,
            "metadata_location": result.metadata_location or None,
            "location": bound(result.location) or None,
        }
        found |= {name: value for name, value in optional.items() if value is not None}
    if isinstance(asked, WriteRows):
        found |= {"mode": asked.mode.value, "rows": asked.rows, "size": asked.size}
    elif isinstance(asked, ApplyRows):
        found |= {"after": asked.after, "through": asked.through, "writes": len(asked.writes)}
    elif isinstance(asked, LanceCommit):
        found["read_version"] = asked.read_version
        found["rows_added"] = asked.summary.rows_added
        found["rows_removed"] = asked.summary.rows_removed
        found["data_files"] = list(asked.summary.data_files)
    return found
