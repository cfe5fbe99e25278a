"""An event-sourced commit log on Kafka for Lance tables.

    from commitlog import CommitLog

    log = CommitLog.connect("localhost:9092")
    log.append("shop$orders", {"id": [1], "amount": [9.5]})

A commit is an append: one record is one transaction, and its outcome is the commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commitlog.errors import (
    CommitConflict,
    CommitLogError,
    CorruptLog,
    IncompatibleConflict,
    InvalidRequest,
    InvalidTransaction,
    MissingDataFile,
    NoSuchTable,
    NoSuchVersion,
    OutcomeUnknown,
    Overloaded,
    RecordTooLarge,
    RetryableConflict,
    TableAlreadyExists,
    TopicSettings,
    TransactionRejected,
    TransactionSuperseded,
    Unavailable,
    UnsupportedFormat,
    WrongLog,
)
from commitlog.model.operations import KeyHashes
from commitlog.model.records import (
    Application,
    Code,
    Conflict,
    KeyAbsent,
    Outcome,
    PredicateUnchanged,
    Status,
    TableAbsent,
    TableVersionIs,
)

if TYPE_CHECKING:
    from commitlog.adapters.storage_options import use_storage_options
    from commitlog.client.log import CommitLog
    from commitlog.client.tables import TableInfo
    from commitlog.client.tickets import Ticket

__all__ = [
    "Application",
    "Code",
    "CommitConflict",
    "CommitLog",
    "CommitLogError",
    "Conflict",
    "CorruptLog",
    "IncompatibleConflict",
    "InvalidRequest",
    "InvalidTransaction",
    "KeyAbsent",
    "KeyHashes",
    "MissingDataFile",
    "NoSuchTable",
    "NoSuchVersion",
    "Outcome",
    "OutcomeUnknown",
    "Overloaded",
    "PredicateUnchanged",
    "RecordTooLarge",
    "RetryableConflict",
    "Status",
    "TableAbsent",
    "TableAlreadyExists",
    "TableInfo",
    "TableVersionIs",
    "Ticket",
    "TopicSettings",
    "TransactionRejected",
    "TransactionSuperseded",
    "Unavailable",
    "UnsupportedFormat",
    "WrongLog",
    "use_storage_options",
]

_LAZY = {
    "CommitLog": "commitlog.client.log",
    "TableInfo": "commitlog.client.tables",
    "Ticket": "commitlog.client.tickets",
    "use_storage_options": "commitlog.adapters.storage_options",
}


def __getattr__(name: str) -> Any:
    """Load what needs pylance on first use: a leader that builds nothing never loads it."""
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(module), name)
    globals()[name] = value
    return value
