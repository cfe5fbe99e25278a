"""An event-sourced commit log on Kafka for Lance and Iceberg tables.

    from commitlog import CommitLog

    log = CommitLog.connect("localhost:9092")
    log.append("shop$orders", {"id": [1], "amount": [9.5]})

A commit is an append: one record is one transaction, and its outcome is the commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commitlog.adapters.storage_options import use_storage_options
    from commitlog.client.leader.tables import TableInfo
    from commitlog.client.leader.tickets import Ticket
    from commitlog.client.log import CommitLog
    from commitlog.errors import (
        CommitConflict,
        CommitLogError,
        CorruptLog,
        IncompatibleConflict,
        InvalidRequest,
        InvalidSettings,
        InvalidTransaction,
        LogClosed,
        LogMoved,
        MissingDataFile,
        NoSuchNamespace,
        NoSuchTable,
        NoSuchVersion,
        OutcomeUnknown,
        Overloaded,
        RecordTooLarge,
        RetryableConflict,
        StorageFull,
        StorageUnwritable,
        TableAlreadyExists,
        TopicSettings,
        TransactionRejected,
        TransactionSuperseded,
        Unavailable,
        UnsupportedFormat,
        WrongColumns,
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
    "InvalidSettings",
    "InvalidTransaction",
    "KeyAbsent",
    "KeyHashes",
    "LogClosed",
    "LogMoved",
    "MissingDataFile",
    "NoSuchNamespace",
    "NoSuchTable",
    "NoSuchVersion",
    "Outcome",
    "OutcomeUnknown",
    "Overloaded",
    "PredicateUnchanged",
    "RecordTooLarge",
    "RetryableConflict",
    "Status",
    "StorageFull",
    "StorageUnwritable",
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
    "WrongColumns",
    "WrongLog",
    "use_storage_options",
]

_MODULES = {
    "commitlog.adapters.storage_options": ("use_storage_options",),
    "commitlog.client.log": ("CommitLog",),
    "commitlog.client.leader.tables": ("TableInfo",),
    "commitlog.client.leader.tickets": ("Ticket",),
    "commitlog.model.operations": ("KeyHashes",),
    "commitlog.model.records": (
        "Application",
        "Code",
        "Conflict",
        "KeyAbsent",
        "Outcome",
        "PredicateUnchanged",
        "Status",
        "TableAbsent",
        "TableVersionIs",
    ),
}
"""Where the names are that aren't errors."""
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import what a program uses, when it uses it: a command that prints help needs none of it."""
    if name == "__version__":
        from importlib.metadata import version

        return version("lance-commitlog")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_MODULE_OF.get(name, "commitlog.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Name what isn't imported yet, too: shells complete by this."""
    return sorted({*globals(), *__all__, "__version__"})
