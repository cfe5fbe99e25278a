"""Every error that leaves this package, named after what the caller does next.

    CommitLogError
      InvalidRequest            correct what was asked; nothing was done
        InvalidTransaction      correct the transaction; nothing was appended
          RecordTooLarge        split the transaction
          MissingDataFile       write the file first, or correct its path
      NoSuchTable               create it, or correct its name
        NoSuchVersion           ask for a version that exists
      TableAlreadyExists        open it, or choose another name
      CommitConflict            (only from `Outcome.raise_for_conflict`)
        RetryableConflict       read the new version, redo the operation
        IncompatibleConflict    stop; a redo may mean something else
        TransactionRejected     correct the request; the log holds the reason
        TransactionSuperseded   a later attempt of the same id holds the answer
      OutcomeUnknown            ask again with the same transaction id, never with a new one
      Unavailable               make the same call again, later
        Overloaded              the same, after `retry_after_seconds`
        StorageFull             the same, once the disk that it names has space
      Fenced                    end this process's term: another leader stands
      WrongLog                  correct the address: this is another cluster, log or domain
        LogMoved                connect to the cluster that it names
      TopicSettings             correct the topic's settings, then start again
      CorruptLog                stop; run `commitlog verify`
      UnsupportedFormat         upgrade this program

A refusal is a value inside (`Outcome.status`); it becomes an exception only at the edge, when a
caller asks for one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commitlog.model.records import Outcome


_BUILD_PATH = re.compile(
    r"""
    ,?[ ]?(?:location:[ ])?Location[ ]?\{[^{}]*\.rs[^{}]*\}
    | (?:,?[ ](?:at[ ]|location:[ ])?)?[^\s,;'"()\[\]{}/]*/[^\s,;'"()\[\]{}]*\.rs:\d+(?::\d+)?
    """,
    re.VERBOSE,
)


def without_build_paths(text: str) -> str:
    """Leave out where in its own sources, on the machine that built it, pylance failed."""
    return _BUILD_PATH.sub("", text) if ".rs" in text else text


class CommitLogError(Exception):
    """The root of all errors of this package, whose texts may end in another library's."""

    def __init__(self, *arguments: object) -> None:
        """Take the text."""
        super().__init__(
            *(without_build_paths(one) if isinstance(one, str) else one for one in arguments)
        )


class InvalidRequest(CommitLogError):
    """What was asked cannot be answered as it is; nothing was done.

    `field` names what is wrong, `value` shows it, `advice` says what to do.
    """

    def __init__(self, message: str, *, field: str = "", value: object = None, advice: str = ""):
        end = "" if advice.endswith("?") else "."
        super().__init__(f"{message}. {advice}{end}" if advice else message)
        self.field = field
        self.value = value
        self.advice = advice


class InvalidTransaction(InvalidRequest):
    """The transaction cannot be committed as it is; nothing was appended."""


class RecordTooLarge(InvalidTransaction):
    """The encoded record is over the log's limit."""


class MissingDataFile(InvalidTransaction):
    """A fragment names a data file that isn't in the table's location."""


class NoSuchTable(CommitLogError):
    """The log knows no table of this name."""

    ADVICE = "Create it first, or bring it back with undrop if it was dropped."


class NoSuchVersion(NoSuchTable):
    """The table exists; this version of it doesn't."""


class TableAlreadyExists(CommitLogError):
    """The name or the location is taken."""


class CommitConflict(CommitLogError):
    """A transaction that was decided and not committed."""

    def __init__(self, message: str, outcome: Outcome):
        super().__init__(message)
        self.outcome = outcome


class RetryableConflict(CommitConflict):
    """Something that this transaction had not read won: read the new version and redo."""


class IncompatibleConflict(CommitConflict):
    """Redoing the operation may mean something else than what was asked."""


class TransactionRejected(CommitConflict):
    """The request was wrong; `outcome.code` says how."""


class TransactionSuperseded(CommitConflict):
    """A later attempt of the same transaction id was decided before this one."""


class OutcomeUnknown(CommitLogError):
    """Time ran out before an answer came; the transaction may be committed."""

    def __init__(self, message: str, transaction_id: str):
        super().__init__(message)
        self.transaction_id = transaction_id


class Unavailable(CommitLogError):
    """Kafka, the leader or the store doesn't answer; nothing was appended by this call."""


class Overloaded(Unavailable):
    """The leader has more work than it takes; try again after `retry_after_seconds`."""

    def __init__(self, message: str, retry_after_seconds: float):
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class StorageFull(Unavailable):
    """The disk or store of a table's files has no space; nothing was committed by this call."""


class Fenced(CommitLogError):
    """This leader's term is over."""


class InvalidSettings(CommitLogError):
    """A setting of Kafka's client or a store that is no good, or that this log must set itself."""


class WrongLog(CommitLogError):
    """The identity of what answers differs from what was expected."""


class LogMoved(WrongLog):
    """The log is on another cluster now: connect to `bootstrap_servers`.

    `transaction_id` is what was submitted here and got no answer, if anything was; the log there
    answers for it by this id, or takes it again under this id.
    """

    def __init__(self, message: str, bootstrap_servers: str = "", transaction_id: str = ""):
        super().__init__(message)
        self.bootstrap_servers = bootstrap_servers
        self.transaction_id = transaction_id

    def about(self, transaction_id: str) -> LogMoved:
        """Return this error for a transaction that got no answer."""
        message = (
            f"{self}. Transaction {transaction_id} may be in the log. Connect there and ask "
            "with log.outcome(id), or submit it there again with this id"
        )
        return LogMoved(message, self.bootstrap_servers, transaction_id)


class TopicSettings(CommitLogError):
    """A topic's settings would lose or reorder records."""


class CorruptLog(CommitLogError):
    """A record, a hash or a checkpoint contradicts the others."""


class UnsupportedFormat(CommitLogError):
    """A record, manifest or feature flag that this version doesn't know."""
