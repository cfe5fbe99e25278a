"""What verifying a log costs: a made-up log, decided by the machine, walked and decided again.

    python -m tests.benchmarks.verify_cost [transactions] [--broker] [--damage SEQUENCE]

The log is in memory, or on an embedded broker of its own. Prints CPU seconds of this process, since
the machine may have other work, and the time that passed. The log's tables have no files.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from commitlog.adapters.kafka import KafkaLog
from commitlog.adapters.log_records import encode_to_append
from commitlog.adapters.memory import MemoryLog
from commitlog.codecs.avro import encode_leader_started, payload_hash, seal_outcome
from commitlog.core.creation import STORAGE_VERSIONS
from commitlog.core.decisions import Decision, FileWanted, Found, Need, Wanted
from commitlog.core.machine import Machine
from commitlog.core.replica import Replica
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.operations import CreateTable, LanceCommit, Summary
from commitlog.model.records import (
    LeaderStarted,
    Observation,
    Submitted,
    Transaction,
)
from commitlog.ports import Log
from commitlog.protocol import outcomes_topic, transaction_key, transactions_topic
from consumers.broker import EmbeddedBroker
from consumers.verify import Options, verify
from tests.core_world import column

TABLES = 10
FILE_BYTES = 5_000
NODE = "127.0.0.1:1"
CHUNK = 5_000
WAIT_SECONDS = 600.0


def append_to(table: str, number: int) -> Transaction:
    """Return an append of one fragment, as a writer sends it."""
    name = f"{number:032x}"
    fragment = DataFragment(physical_rows=1000)
    fragment.files.add(
        path=f"{name}.lance",
        fields=[0, 1, 2],
        column_indices=[0, 1, 2],
        file_major_version=2,
        file_size_bytes=FILE_BYTES,
    )
    message = LanceTransaction(uuid=str(uuid.UUID(int=number)))
    message.append.fragments.append(fragment)
    operation = LanceCommit(
        (table,),
        "Append",
        0,
        message.SerializeToString(deterministic=True),
        summary=Summary(1000, 0, FILE_BYTES, 1, 0, 0, (f"{name}.lance",)),
    )
    return Transaction(message.uuid, (operation,), principal="bench", submitted_at_ms=0)


def create(table: str) -> Transaction:
    """Return the creation of a table of three columns."""
    fields = tuple(column(f"c{i}", i) for i in range(3))
    operation = CreateTable(
        (table,),
        str(uuid.uuid4()),
        f"/tables/{table}",
        fields,
        data_storage_version=STORAGE_VERSIONS[0],
    )
    return Transaction(str(uuid.uuid4()), (operation,))


class Generator:
    """Writes a log as a leader with very fast storage would."""

    def __init__(self) -> None:
        """Begin a term on an empty log."""
        self.log = MemoryLog()
        self.machine = Machine(self.log.create(tables_root="/tables"))
        self.replica = Replica()
        for answered in self.log.read_outcomes(0).poll():
            self.replica.receive_answered(answered)
        chain = self.replica.chain
        started = LeaderStarted(1, NODE, "leader", 0, chain.hash, b"")
        self._append_outcome("leader/1/leader", encode_leader_started(started))
        chain.admit(started)
        for submitted in self.log.read_transactions(0).poll():
            self.decide(submitted)

    def run(self, transaction: Transaction) -> None:
        """Append a transaction and decide it."""
        self.decide(self.append(transaction))

    def append(self, transaction: Transaction) -> Submitted:
        """Append a transaction, as the leader will read it."""
        value = encode_to_append(transaction)
        key = transaction_key(transaction.transaction_id)
        cluster, topic = self.log.cluster, transactions_topic(self.log.name)
        offset = cluster.append(topic, 0, key, value)
        time_ms = cluster.partition(topic, 0).records[-1].time_ms
        record = Transaction(
            **{name: getattr(transaction, name) for name in Transaction.__slots__[:-1]},
            payload_hash=payload_hash(transaction),
        )
        return Submitted(0, offset, time_ms, record)

    def decide(self, submitted: Submitted) -> None:
        """Decide a record and append its outcome."""
        decision = self.machine.decide(submitted, {})
        if isinstance(decision, Need):
            files = [w for w in decision.wanted if isinstance(w, FileWanted)]
            seen: dict[Wanted, Found] = {
                file: Found(Observation(file.path, FILE_BYTES)) for file in files
            }
            decision = self.machine.decide(submitted, seen)
        assert isinstance(decision, Decision)
        chain = self.replica.chain
        outcome, record = seal_outcome(
            decision.outcome, previous_hash=chain.hash, epoch=1, node=NODE
        )
        assert not chain.admit(outcome)
        self.machine.apply(submitted, outcome, changes=decision.changes)
        self._append_outcome(f"1/{outcome.sequence}", record)

    def _append_outcome(self, key: str, value: bytes) -> None:
        self.log.cluster.append(outcomes_topic(self.log.name), 0, key.encode(), value)


class BrokerGenerator(Generator):
    """Writes the same log to Kafka, many records at once."""

    def __init__(self, log: KafkaLog) -> None:
        """Begin a term on an empty log."""
        self.machine = Machine(log.create(tables_root="/tables"))
        self.replica = Replica()
        self._asked, self._told = log.transactions_writer(), log.outcomes_writer(0)
        self._undelivered = 0
        self._forge_at = 0
        reader = log.read_outcomes(0)
        for answered in reader.poll(timeout_seconds=WAIT_SECONDS):
            self.replica.receive_answered(answered)
        reader.close()
        chain = self.replica.chain
        started = LeaderStarted(1, NODE, "leader", 0, chain.hash, b"")
        self._append_outcome("leader/1/leader", encode_leader_started(started))
        chain.admit(started)
        self._reader = log.read_transactions(0)
        self._decide_to_the_end()

    def run_all(self, transactions: Iterable[Transaction], forge_at: int) -> None:
        """Append all and decide all; the outcome of one sequence gets another's content."""
        self._forge_at = forge_at
        source = iter(transactions)
        while chunk := list(itertools.islice(source, CHUNK)):
            for transaction in chunk:
                self._asked.append(transaction, partition=0)
            assert not self._asked.flush(WAIT_SECONDS)
            self._decide_to_the_end()

    def close(self) -> None:
        """Let go of Kafka."""
        self._asked.close()
        self._told.close()
        self._reader.close()

    def _decide_to_the_end(self) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        end = self._reader.end_offset()
        while self._reader.position() < end:
            for submitted in self._reader.poll(records_max=CHUNK):
                self.decide(submitted)
            assert time.monotonic() < deadline
        while self._undelivered:
            self._told.poll(0.1)
            assert time.monotonic() < deadline

    def _append_outcome(self, key: str, value: bytes) -> None:
        def delivered(offset: int, error: Exception | None) -> None:
            assert error is None, error
            self._undelivered -= 1

        if key == f"1/{self._forge_at}":
            value = value[:-1] + bytes([value[-1] ^ 1])
        self._undelivered += 1
        self._told.append(key, value, delivered)


def transactions(count: int) -> Iterator[Transaction]:
    """Yield the creation of some tables and so many appends to them."""
    for number in range(TABLES):
        yield create(f"t{number}")
    for number in range(count):
        yield append_to(f"t{number % TABLES}", number + 1)


def measure(log: Log, damage: int) -> None:
    """Verify a log in both ways."""
    for name, options in (
        ("hashes, order, answers", Options(chain_only=True)),
        ("the same, and every decision", Options(log_only=True)),
    ):
        started, began = time.process_time(), time.monotonic()
        verdict = verify(log, 0, options)
        cpu, took = time.process_time() - started, time.monotonic() - began
        found = f"first bad sequence {verdict.first_bad_sequence}; " if damage else ""
        assert verdict.first_bad_sequence == (damage or None), verdict.problem
        per_million = cpu / verdict.outcomes * 1e6
        print(
            f"{name}: {found}{verdict.outcomes:,} outcomes in {cpu:.1f} s of CPU ({took:.1f} s); "
            f"{per_million:.0f} s of CPU per million",
            flush=True,
        )


def main() -> None:
    """Generate a log and verify it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", nargs="?", type=int, default=50_000, metavar="transactions")
    parser.add_argument("--broker", action="store_true", help="on an embedded broker")
    parser.add_argument("--damage", type=int, default=0, help="flip a bit of this outcome's record")
    options = parser.parse_args()
    started, began = time.process_time(), time.monotonic()

    def made() -> None:
        cpu, took = time.process_time() - started, time.monotonic() - began
        print(
            f"made {options.count:,} transactions in {cpu:.1f} s of CPU ({took:.1f} s)", flush=True
        )

    if not options.broker:
        in_memory = Generator()
        for transaction in transactions(options.count):
            in_memory.run(transaction)
        made()
        measure(in_memory.log, 0)
        return
    with tempfile.TemporaryDirectory(prefix="verify-cost-") as folder:
        broker = EmbeddedBroker.start(Path(folder))
        # In bulk, and on a machine that may be busy.
        settings = {"linger.ms": 20, "message.timeout.ms": 1000 * int(WAIT_SECONDS)}
        log = KafkaLog.connect(broker.bootstrap_servers, "commitlog", settings)
        try:
            on_kafka = BrokerGenerator(log)
            on_kafka.run_all(transactions(options.count), options.damage)
            on_kafka.close()
            made()
            measure(log, options.damage)
        finally:
            log.close()
            broker.stop()


if __name__ == "__main__":
    main()
