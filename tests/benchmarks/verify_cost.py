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
from collections.abc import Iterable, Iterator
from pathlib import Path

from commitlog.adapters.kafka import KafkaLog
from commitlog.model.records import Transaction
from commitlog.ports import Log
from consumers.broker.embedded import EmbeddedBroker
from consumers.tools.bench.made_log import MadeLog, append_to, create
from consumers.tools.verify import VerifyOptions, verify

TABLES = 10
CHUNK = 5_000
WAIT_SECONDS = 600.0
IN_BULK = {"linger.ms": 20, "message.timeout.ms": 1000 * int(WAIT_SECONDS)}
"""Settings of Kafka's clients, also on a machine that may be busy."""


class BrokerLog(MadeLog):
    """Writes the same log to Kafka, many records at once."""

    def __init__(self, log: KafkaLog) -> None:
        """Begin a term on an empty log."""
        genesis = log.create(tables_root="/tables")
        self._asked, self._told = log.transactions_writer(), log.outcomes_writer(0)
        self._undelivered = 0
        self._forge_at = 0
        self._begin(log, genesis)
        self._reader = log.read_transactions(0)
        self._decide_to_the_end()

    def run_all(self, transactions: Iterable[Transaction], forge_at: int = 0) -> None:
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
        ("hashes, order, answers", VerifyOptions(chain_only=True)),
        ("the same, and every decision", VerifyOptions(log_only=True)),
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
        in_memory = MadeLog()
        for transaction in transactions(options.count):
            in_memory.run(transaction)
        made()
        measure(in_memory.log, 0)
        return
    with tempfile.TemporaryDirectory(prefix="verify-cost-") as folder:
        broker = EmbeddedBroker.start(Path(folder))
        log = KafkaLog.connect(broker.bootstrap_servers, "commitlog", IN_BULK)
        try:
            on_kafka = BrokerLog(log)
            on_kafka.run_all(transactions(options.count), options.damage)
            on_kafka.close()
            made()
            measure(log, options.damage)
        finally:
            log.close()
            broker.stop()


if __name__ == "__main__":
    main()
