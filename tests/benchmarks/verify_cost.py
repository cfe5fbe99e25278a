"""What verifying a log costs: a log in memory, decided by the machine, walked and decided again.

    python -m tests.benchmarks.verify_cost [transactions]

Prints CPU seconds, since the machine may have other work. The log's tables have no files.
"""

from __future__ import annotations

import sys
import time
import uuid

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
from commitlog.protocol import outcomes_topic, transaction_key, transactions_topic
from consumers.verify import Options, verify
from tests.core_world import column

TABLES = 10
FILE_BYTES = 5_000
NODE = "127.0.0.1:1"


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


def main(count: int) -> None:
    """Generate a log and verify it in both ways."""
    started = time.process_time()
    made = Generator()
    for number in range(TABLES):
        made.run(create(f"t{number}"))
    for number in range(count):
        made.run(append_to(f"t{number % TABLES}", number + 1))
    print(f"generated {count:,} transactions in {time.process_time() - started:.1f} s of CPU")
    for name, options in (
        ("hashes, order, answers", Options(chain_only=True)),
        ("the same, and every decision", Options(log_only=True)),
    ):
        started, began = time.process_time(), time.monotonic()
        verdict = verify(made.log, 0, options)
        cpu, took = time.process_time() - started, time.monotonic() - began
        assert verdict.is_whole, verdict.problem
        per_million = cpu / verdict.outcomes * 1e6
        print(
            f"{name}: {verdict.outcomes:,} outcomes in {cpu:.1f} s of CPU ({took:.1f} s); "
            f"{per_million:.0f} s of CPU per million"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50_000)
