"""What the program needs of a log, in types; `adapters.kafka` and `adapters.memory` implement it.

A partition is read from an offset on, by one reader per thread, which sees each record once and in
order. Appending is asynchronous: a callback gets the result, on the thread that polls. A callback's
error says in `appended` whether a record is certainly not in the log, or may be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from commitlog.errors import CommitLogError
from commitlog.model.records import Answered, Genesis, ProtocolVersion, Submitted, Transaction

Record = TypeVar("Record")
PATIENT_SECONDS = 0.1
"""How late records may be for readers that show or index them, and that nobody waits for."""

OnDelivery = Callable[[int, Exception | None], None]
"""Called once per append with (offset, None), or with (-1, error), where the error is a
`DeliveryFailed`."""

OnLanded = Callable[[int, int, Exception | None], None]
"""Called once per append with (offset, append time in ms, None), or with (-1, 0, error), where the
error is a `DeliveryFailed`. An offset of -1 or a time of 0 without an error: the record is in the
log, but the cluster no longer says where, or since when."""


class DeliveryFailed(CommitLogError):
    """An append that was not acknowledged.

    `appended` is False if the record is certainly not in the log, and None if it may be there now,
    or may even appear later, up to the writer's delivery timeout. It is never True.
    """

    def __init__(self, message: str, *, appended: Literal[False] | None):
        super().__init__(message)
        self.appended = appended


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """What distinguishes this log from another one of the same name."""

    cluster_id: str
    transactions_topic_id: str
    outcomes_topic_id: str
    log: str


@dataclass(frozen=True, slots=True)
class MovedPartition:
    """What a cluster had of one partition when the log was moved away from it."""

    sequence: int
    """Of its last valid outcome."""
    hash: str
    offset: int
    """Of that outcome."""


@dataclass(frozen=True, slots=True)
class Move:
    """One move of a log from a cluster to another."""

    from_cluster: str
    to_cluster: str
    at_ms: int
    partitions: tuple[MovedPartition, ...]

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Move:
        """Read it from JSON."""
        return cls(
            **{**found, "partitions": tuple(MovedPartition(**one) for one in found["partitions"])}
        )


class RawRecord(NamedTuple):
    """A record as Kafka has it, tombstones included."""

    offset: int
    append_time_ms: int
    key: bytes | None
    value: bytes | None


class Reader(Protocol[Record]):
    """Reads one partition in order. For one thread at a time.

    It skips tombstones in the transactions topic: they are no records of the log. An
    offset outside the log raises CorruptLog, a missing topic WrongLog. While the
    cluster can't be reached, `poll` returns nothing, and later continues.
    """

    def poll(self, *, records_max: int = 500, timeout_seconds: float = 0.1) -> list[Record]:
        """Return new records as soon as there are any; empty if none came in time."""

    def position(self) -> int:
        """Return the next offset to be read; all before it were returned, or hold no record."""

    def end_offset(self, timeout_seconds: float = 10) -> int:
        """Ask the log where it ends now; caught up is `position() >= end_offset()`."""

    def pause(self) -> None:
        """Fetch nothing more until the next `poll`."""

    def rest(self) -> None:
        """Release the connection until the next `poll`: for readers that rarely read."""

    def seek(self, offset: int) -> None:
        """Continue from another offset."""

    def close(self) -> None:
        """Close the connection."""


class TransactionsWriter(Protocol):
    """Appends to the transactions topic. Thread-safe."""

    def append(
        self,
        transaction: Transaction | ProtocolVersion,
        *,
        partition: int,
        on_delivery: OnDelivery | None = None,
        session: str = "",
    ) -> None:
        """Send a record.

        Raises:
            RecordTooLarge: it is over the limit; nothing was sent.
            InvalidTransaction: a value that can't be encoded; nothing was sent.
            Overloaded: too much is on its way already; nothing was sent.
        """

    def poll(self, timeout_seconds: float) -> int:
        """Run callbacks on this thread; return how many ran, waiting for the first one."""

    def flush(self, timeout_seconds: float) -> int:
        """Wait until nothing is on its way, running callbacks; return how much still is."""

    def close(self) -> None:
        """Give up records on their way (their callbacks get an error) and close."""


class OutcomesWriter(Protocol):
    """Appends to one partition of the outcomes topic, in order, for one term. One thread."""

    def append(self, key: str, value: bytes, on_delivery: OnDelivery) -> None:
        """Send a record; RecordTooLarge and Overloaded as for transactions.

        It may go with the next group, once `poll` has reported the one before.
        """

    def poll(self, timeout_seconds: float) -> int:
        """Run callbacks on this thread; return how many ran, waiting for the first one."""

    def purge(self) -> None:
        """Give up what is on its way: the callbacks get an error whose `appended` is None."""

    def close(self) -> None:
        """Purge, run the remaining callbacks, and close."""


class RecordsWriter(Protocol):
    """Appends writers' records to one partition of the transactions topic, in order. One thread.

    They are encoded already, and their size was checked.
    """

    def append(self, key: bytes, value: bytes, on_landed: OnLanded) -> None:
        """Take a record for the next group, which `poll` sends."""

    def poll(self, timeout_seconds: float) -> int:
        """Send what waits and run callbacks; return how many ran, waiting for the first one."""

    def purge(self) -> None:
        """Give up what is on its way: the callbacks get an error whose `appended` is None."""

    def close(self) -> None:
        """Purge, run the remaining callbacks, and close."""


class Log(Protocol):
    """A log: two topics, with one partition for each separate commit domain."""

    @property
    def name(self) -> str:
        """The log's name, from which the topics' names derive."""

    def create(
        self,
        *,
        partitions: int = 1,
        domains: Mapping[str, int] | None = None,
        tables_root: str = "",
        replication_factor: int | None = None,
    ) -> Genesis:
        """Make what is missing of the log; return what partition 0 begins with.

        May run again and in several processes at once: the first Genesis written rules. A topic
        that is there already keeps its settings.

        Raises:
            WrongLog: what exists has other partitions or domains, or is another cluster's log.
            TopicSettings: what exists is set so that it would lose records.
        """

    def genesis(self, partition: int = 0) -> Genesis:
        """Return a partition's first record; WrongLog if there is no such log."""

    def partitions(self) -> int:
        """Return the number of partitions, which both topics have."""

    def identity(self) -> LogIdentity:
        """Return the ids of the cluster and the topics that the log was made with."""

    def home(self) -> str:
        """Return what distinguishes this copy of the log from all others, such as restored ones."""

    def moves(self) -> Sequence[Move]:
        """Return the moves that brought the log to this cluster, oldest first."""

    def check_here(self, timeout_seconds: float = 30.0) -> None:
        """Raise LogMoved if the log was moved, WrongLog if it is gone and another has its name."""

    def check_settings(self) -> None:
        """Raise TopicSettings, naming topic, setting, value and what was expected."""

    def read_transactions(
        self, partition: int, offset: int = 0, *, patient: float = 0.0
    ) -> Reader[Submitted]:
        """Read the transactions topic from an offset on.

        A `patient` reader gets new records up to so many seconds late, and costs the cluster
        and itself one fetch where others cost one per record.
        """

    def read_outcomes(
        self, partition: int, offset: int = 0, *, patient: float = 0.0
    ) -> Reader[Answered]:
        """Read the outcomes topic from an offset on; records may be `Unreadable`."""

    def transactions_writer(self) -> TransactionsWriter:
        """Return a writer that threads may share."""

    def outcomes_writer(self, partition: int) -> OutcomesWriter:
        """Return a writer for one term of one leader."""

    def records_writer(self, partition: int) -> RecordsWriter | None:
        """Return what appends writers' records during one term of one leader.

        None where the cluster tells its clients apart: there each one appends by its own rights.
        """

    def last_outcome_records(self, partition: int, count: int = 1) -> list[Answered]:
        """Return the newest records of a partition, oldest first, fewer if it has fewer."""

    def close(self) -> None:
        """Close the connections made so far; who asks again makes others."""


class ArchivableLog(Log, Protocol):
    """A log whose records can be copied as they are, and whose old transactions can go."""

    def read_raw(
        self, partition: int, offset: int = 0, *, is_transactions: bool
    ) -> Reader[RawRecord]:
        """Read one of the two topics from an offset on, as bytes."""

    def tombstone(self, partition: int, keys: Sequence[bytes]) -> None:
        """Name transactions that compaction may remove; Unavailable if not all were appended."""
