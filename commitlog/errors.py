"""Every error that leaves this package, named after what the caller does next.

    CommitLogError
      InvalidRequest            correct what was asked; nothing was done
        InvalidTransaction      correct the transaction; nothing was appended
          RecordTooLarge        split the transaction
          MissingDataFile       write the file first, or correct its path
          WrongColumns          correct the rows' columns, or change the table's
      NoSuchTable               create it, or correct its name
        NoSuchNamespace         the same, of the namespace
        NoSuchVersion           ask for a version that exists
      InvalidSettings           correct the setting of Kafka's client or of a store
      TableAlreadyExists        open it, or choose another name
      CommitConflict            (only from `Outcome.raise_for_conflict`)
        RetryableConflict       read the new version, redo the operation
        IncompatibleConflict    stop; a redo may mean something else
        TransactionRejected     correct the request; the log holds the reason
        TransactionSuperseded   a later attempt of the same id holds the answer
      OutcomeUnknown            ask again with the same transaction id, never with a new one
      Unavailable               make the same call again later
        LogClosed               connect again first: this client was closed
        Overloaded              the same, after `retry_after_seconds`
        StorageUnwritable       the same, once its place takes files
          StorageFull           the same, once the disk that it names has space
      Fenced                    end this process's term: another process leads
      WrongLog                  correct the address: this is another cluster, log or domain
        LogMoved                connect to the cluster that it names
      TopicSettings             correct the topic's settings, then start again
      CorruptLog                stop; run `commitlog verify`
      UnsupportedFormat         upgrade this program

Inside the package a refusal is a value (`Outcome.status`). It becomes an exception only when a
caller asks for one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commitlog.model.records import Outcome

TEXT_CHARACTERS_MAX = 1000

_WORD = re.compile(r"""[^\s,;'"()\[\]{}]+""")
_SOURCE = re.compile(r"[^/]*/.*\.rs:\d+(?::\d+)?")
"""Within a word: where it names a line of a source file."""
_BEFORE_SOURCE = re.compile(r",?[ ](?:at[ ]|location:[ ])?\Z")
_BEFORE_SOURCE_LENGTH = len(", location: ")
_LOCATION = re.compile(r",?[ ]?(?:location:[ ])?Location[ ]?\{[^{}]*+\}")
_DUMPS = (
    (re.compile(r"does not support logical expression \w+(?=\()"), ("})", "))")),
    (re.compile(r"in (?:dataset )?schema(?=:\s+Schema \{)"), ("}",)),
)
"""How pylance names what it can't compute, or doesn't have, before all that it knows of it; and how
that ends."""


def shown_text(text: str) -> str:
    """Return a text as an error shows it: of a long one its beginning and its end."""
    if len(text) <= TEXT_CHARACTERS_MAX:
        return text
    half = TEXT_CHARACTERS_MAX // 2
    return f"{text[:half]} [… {len(text) - 2 * half} characters …] {text[-half:]}"


def without_build_paths(text: str) -> str:
    """Remove the places in pylance's own sources, and its own values, that its errors end with.

    A text may hold whatever a client sent, so this takes time in proportion to its length.
    """
    if ".rs" in text:
        text = _LOCATION.sub(lambda found: "" if ".rs" in found[0] else found[0], text)
        text = _without_sources(text)
    for begins, ends in _DUMPS:
        if found := begins.search(text):
            last = max(text.rfind(end, found.end()) + len(end) for end in ends)
            if last > found.end():
                text = text[: found.end()] + text[last:]
    return text


def _without_sources(text: str) -> str:
    kept, at = [], 0
    for word in _WORD.finditer(text):
        source = _SOURCE.match(word[0]) if ".rs:" in word[0] else None
        if source is not None:
            before = max(at, word.start() - _BEFORE_SOURCE_LENGTH)
            found = _BEFORE_SOURCE.search(text, before, word.start())
            kept.append(text[at : found.start() if found else word.start()])
            at = word.start() + source.end()
    return "".join((*kept, text[at:]))


class CommitLogError(Exception):
    """The base class of all errors of this package."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(
            *(without_build_paths(one) if isinstance(one, str) else one for one in arguments)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what it holds; Python would call the class with its message alone.

        A pool of processes whose worker raises what can't be read again breaks, or hangs.
        """
        return _same_again, (type(self), self.args), vars(self)


def _same_again(kind: type[CommitLogError], arguments: tuple[object, ...]) -> CommitLogError:
    return kind.__new__(kind, *arguments)


class InvalidRequest(CommitLogError):
    """The request is invalid; nothing was done.

    `field` names the invalid part, `value` is its value, `advice` says what to do.
    """

    def __init__(self, message: str, *, field: str = "", value: object = None, advice: str = ""):
        # What Lance says may end with a question.
        stop, end = ("" if text.endswith("?") else "." for text in (message, advice))
        super().__init__(f"{message}{stop} {advice}{end}" if advice else message)
        self.field = field
        self.value = value
        self.advice = advice


def of_the_future(moment: str, field: str) -> InvalidRequest:
    """Return the refusal of a time for which the same question may get another answer later."""
    return InvalidRequest(
        f"{moment} is in the future: commits up to then aren't known yet",
        field=field,
        value=moment,
        advice="Give a time that has passed",
    )


class InvalidTransaction(InvalidRequest):
    """The transaction is invalid; nothing was appended."""


class RecordTooLarge(InvalidTransaction):
    """The encoded record exceeds the log's limit."""


class MissingDataFile(InvalidTransaction):
    """A fragment names a data file that isn't in the table's location."""


class WrongColumns(InvalidTransaction):
    """Rows have other columns than the table, or types that no value of them fits."""


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return a sentence that asks for known names like one that isn't known; "": none is."""
    # A shell takes `$orders` of an unquoted name for a variable.
    inside = sorted(one for one in known if one.startswith(f"{name}$"))
    near = [*dict.fromkeys((*inside, *difflib.get_close_matches(name, known, n=3)))][:3]
    return f"Did you mean {', '.join(near)}?" if near else ""


class NoSuchTable(CommitLogError):
    """The log has no table of this name.

    `hint` is the last sentence: it may name other tables, of which not everybody may know.
    """

    ADVICE = "Create it first, or bring it back with undrop if it was dropped."

    def __init__(self, message: str, *, hint: str = ""):
        super().__init__(f"{message} {hint}" if hint else message)
        self.hint = hint


class NoSuchNamespace(NoSuchTable):
    """The log has no namespace of this name, so none of its tables either."""


class NoSuchVersion(NoSuchTable):
    """The table exists, but it doesn't have this version."""


class TableAlreadyExists(CommitLogError):
    """The name or the location is taken."""


class CommitConflict(CommitLogError):
    """The transaction was decided, but not committed."""

    def __init__(self, message: str, outcome: Outcome):
        super().__init__(message)
        self.outcome = outcome


class RetryableConflict(CommitConflict):
    """A commit came first that this transaction hadn't read: read the new version and redo it."""


class IncompatibleConflict(CommitConflict):
    """A conflict; redoing the operation may mean something else."""


class TransactionRejected(CommitConflict):
    """The request is wrong; `outcome.code` says why."""


class TransactionSuperseded(CommitConflict):
    """A later attempt of the same transaction id was decided before this one."""


class OutcomeUnknown(CommitLogError):
    """No answer came in time; the transaction may be committed."""

    def __init__(self, message: str, transaction_id: str):
        super().__init__(message)
        self.transaction_id = transaction_id


class Unavailable(CommitLogError):
    """Kafka, the leader or the store doesn't answer; this call appended nothing."""


class LogClosed(Unavailable):
    """This client was closed, here or by another thread."""

    def __init__(
        self, message: str = "the log is closed: somebody called close() on it; connect again"
    ):
        super().__init__(message)


class Overloaded(Unavailable):
    """The leader has too much work; try again after `retry_after_seconds`.

    `table` names the table if it is only that one's store that is behind, and is empty otherwise.
    """

    def __init__(self, message: str, retry_after_seconds: float, table: str = ""):
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.table = table


class StorageUnwritable(Unavailable):
    """The place of a table's files can't be written; this call committed nothing."""


class StorageFull(StorageUnwritable):
    """The disk or store of a table's files has no space; this call committed nothing."""


class Fenced(CommitLogError):
    """This leader's term is over."""


class InvalidSettings(CommitLogError):
    """A setting of Kafka's client or a store is invalid, or reserved for this log."""


class WrongLog(CommitLogError):
    """The cluster, log or domain that answers isn't the expected one."""


class LogMoved(WrongLog):
    """The log is on another cluster now: connect to `bootstrap_servers`.

    `transaction_id` names a transaction that was submitted here and got no answer, if there is
    one. Ask for its outcome there, or submit it there again under the same id.
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
    """With these settings a topic could lose or reorder records."""


class CorruptLog(CommitLogError):
    """A record, a hash or a checkpoint contradicts the others."""


class UnsupportedFormat(CommitLogError):
    """This version doesn't know a record, manifest or feature flag that it found."""
