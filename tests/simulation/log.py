"""A process's view of the log: the real `MemoryLog`, with a point at every call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from commitlog.adapters.log_records import to_answered, to_raw, to_submitted
from commitlog.adapters.memory import (
    Decode,
    MemoryLog,
    MemoryOutcomesWriter,
    MemoryReader,
    MemoryRecordsWriter,
)
from commitlog.adapters.memory_cluster import NeverMoved, Partition, Unconnected
from commitlog.errors import Unavailable
from commitlog.model.records import Answered, Genesis, Submitted
from commitlog.ports import LogIdentity, OnDelivery, OnLanded, RawRecord, Record
from commitlog.protocol import outcomes_topic, transactions_topic
from tests.simulation.scheduler import Process, Scheduler


class SimulatedReader(Unconnected, Generic[Record]):
    """Never blocks: to wait is to let others run."""

    def __init__(
        self,
        reader: MemoryReader[Record],
        partition: Partition,
        scheduler: Scheduler,
        process: Process,
        name: str,
    ) -> None:
        """Wrap a reader."""
        self._reader, self._partition, self._scheduler = reader, partition, scheduler
        self._process, self._name = process, name

    def poll(self, *, records_max: int = 500, timeout_seconds: float = 0.1) -> list[Record]:
        """Return what is there."""
        self._scheduler.point(self._process, f"poll {self._name}")
        records = self._poll(records_max)
        if not records and timeout_seconds > 0:
            self._scheduler.sleep(self._process, timeout_seconds)
            records = self._poll(records_max)
        return records

    def _poll(self, records_max: int) -> list[Record]:
        if self._process.is_cut_off or self._reader.position() == self._partition.end:
            return []
        if self._process.is_spared:
            records_max = 1
        elif records_max > 3:
            # Kafka gives what one fetch brought; often that is less than there is.
            records_max = self._scheduler.random.choice((1, 3, 20, records_max))
        return self._reader.poll(records_max=records_max, timeout_seconds=0)

    def position(self) -> int:
        """Return the next offset to be read."""
        return self._reader.position()

    def end_offset(self, timeout_seconds: float = 10) -> int:
        """Return where the log ends now."""
        self._scheduler.point(self._process, f"end {self._name}")
        if self._process.is_cut_off:
            raise Unavailable("simulated: no answer")
        return self._reader.end_offset(timeout_seconds)

    def seek(self, offset: int) -> None:
        """Go on from another offset."""
        self._reader.seek(offset)

    def close(self) -> None:
        """Read no more."""
        self._reader.close()


W = TypeVar("W", MemoryOutcomesWriter, MemoryRecordsWriter)


class _Ending(Generic[W]):
    """A writer that a dead process ends no more."""

    def __init__(self, writer: W, scheduler: Scheduler, process: Process) -> None:
        """Wrap a writer."""
        self._writer: W = writer
        self._scheduler, self._process = scheduler, process
        self.told_twice: Callable[[], float] = lambda: 0.0
        """How often an acknowledgement comes twice, and how often it doesn't say where."""

    def purge(self) -> None:
        """Give up what is held back; it may still appear."""
        if self._process.is_alive:
            self._writer.purge()

    def close(self) -> None:
        """Give up what is on its way and run its callbacks."""
        if self._process.is_alive:
            self._writer.purge()
            self._writer.poll(0)


class SimulatedWriter(_Ending[MemoryOutcomesWriter]):
    """Appends outcomes for one term."""

    def append(self, key: str, value: bytes, on_delivery: OnDelivery) -> None:
        """Send an outcome on its way."""
        self._scheduler.point(self._process, f"append {key}")

        def delivered(offset: int, error: Exception | None) -> None:
            on_delivery(offset, error)
            if error is None and self._scheduler.chance(self.told_twice()):
                self._scheduler.counters["acknowledged twice"] += 1
                on_delivery(offset, error)

        self._writer.append(key, value, delivered)
        self._scheduler.point(self._process, f"append-done {key}")

    def poll(self, timeout_seconds: float) -> int:
        """Run callbacks; return how many ran."""
        self._scheduler.point(self._process, "poll-acknowledgements")
        count = self._writer.poll(0)
        if not count and timeout_seconds > 0:
            self._scheduler.sleep(self._process, timeout_seconds)
            count = self._writer.poll(0)
        return count


class SimulatedRecordsWriter(_Ending[MemoryRecordsWriter]):
    """Appends what writers sent, for one term."""

    def append(self, key: bytes, value: bytes, on_landed: OnLanded) -> None:
        """Send a record on its way."""
        self._scheduler.point(self._process, f"append {key.decode()}")

        def landed(offset: int, time_ms: int, error: Exception | None) -> None:
            if error is None and self._scheduler.chance(self.told_twice()):
                self._scheduler.counters["acknowledged without an offset"] += 1
                offset, time_ms = -1, 0
            on_landed(offset, time_ms, error)
            if error is None and self._scheduler.chance(self.told_twice()):
                on_landed(offset, time_ms, error)

        self._writer.append(key, value, landed)
        self._scheduler.point(self._process, f"append-done {key.decode()}")

    def poll(self, timeout_seconds: float) -> int:
        """Run callbacks; return how many ran."""
        self._scheduler.point(self._process, "poll-records")
        return self._writer.poll(0)


def remembering(decode: Decode[Record]) -> Decode[Record]:
    """Decode each record once: values never change, and many processes read them again."""
    known: dict[tuple[int, int, int, bytes | None, bytes | None], Record | None] = {}

    def remembered(
        partition: int, offset: int, time_ms: int, key: bytes | None, value: bytes | None
    ) -> Record | None:
        what = (partition, offset, time_ms, key, value)
        if what not in known:
            known[what] = decode(*what)
        return known[what]

    return remembered


class Decoders:
    """How one run decodes its records."""

    def __init__(self) -> None:
        """Begin with nothing decoded."""
        self.submitted: Decode[Submitted] = remembering(to_submitted)
        self.answered: Decode[Answered] = remembering(to_answered)


AnyWriter = SimulatedWriter | SimulatedRecordsWriter


class SimulatedLog(NeverMoved):
    """See `commitlog.ports.Log`; what a running process asks of it."""

    def __init__(
        self,
        log: MemoryLog,
        decoders: Decoders,
        scheduler: Scheduler,
        process: Process,
        on_writer: Callable[[int, AnyWriter], None] = lambda number, writer: None,
    ) -> None:
        """Let a process use the log."""
        self._log, self._decoders = log, decoders
        self._scheduler, self._process = scheduler, process
        self._on_writer = on_writer
        self.name = log.name

    def genesis(self, partition: int = 0) -> Genesis:
        """Return what a partition begins with."""
        return self._log.genesis(partition)

    def identity(self) -> LogIdentity:
        """Return the cluster's and the topics' ids."""
        return self._log.identity()

    def check_settings(self) -> None:
        """Raise TopicSettings if records would be lost."""
        self._log.check_settings()

    def read_transactions(
        self, partition: int, offset: int = 0, *, patient: float = 0.0
    ) -> SimulatedReader[Submitted]:
        """Read the transactions topic from an offset on."""
        return self._read(
            transactions_topic(self.name), partition, offset, self._decoders.submitted
        )

    def read_outcomes(
        self, partition: int, offset: int = 0, *, patient: float = 0.0
    ) -> SimulatedReader[Answered]:
        """Read the outcomes topic from an offset on."""
        return self._read(outcomes_topic(self.name), partition, offset, self._decoders.answered)

    def read_raw(
        self, partition: int, offset: int = 0, *, is_transactions: bool
    ) -> SimulatedReader[RawRecord]:
        """Read one of the two topics from an offset on, as bytes."""
        topic = (transactions_topic if is_transactions else outcomes_topic)(self.name)
        return self._read(topic, partition, offset, to_raw)

    def partitions(self) -> int:
        """Return the number of partitions."""
        return self._log.partitions()

    def close(self) -> None:
        """Do nothing: its readers are closed by those who read."""

    def tombstone(self, partition: int, keys: Sequence[bytes]) -> None:
        """Name transactions that compaction may remove."""
        for key in keys:
            self._scheduler.point(self._process, f"tombstone {key.decode()}")
            self._log.tombstone(partition, [key])

    def _read(
        self, topic: str, partition: int, offset: int, decode: Decode[Record]
    ) -> SimulatedReader[Record]:
        cluster = self._log.cluster
        return SimulatedReader(
            MemoryReader(cluster, topic, partition, offset, decode),
            cluster.partition(topic, partition),
            self._scheduler,
            self._process,
            topic.rpartition(".")[2],
        )

    def outcomes_writer(self, partition: int) -> SimulatedWriter:
        """Return a writer for one term of one leader."""
        writer = self._log.outcomes_writer(partition)
        simulated = SimulatedWriter(writer, self._scheduler, self._process)
        self._on_writer(writer._number, simulated)
        return simulated

    def records_writer(self, partition: int) -> SimulatedRecordsWriter:
        """Return what appends writers' records for one term."""
        writer = self._log.records_writer(partition)
        simulated = SimulatedRecordsWriter(writer, self._scheduler, self._process)
        self._on_writer(writer._number, simulated)
        return simulated

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the simulation doesn't need Log.{name}")
