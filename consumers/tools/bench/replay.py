"""`commitlog bench replay`: what reading a log costs, and how fast it can be decided.

A generated log (see `made_log`: real records and decisions, in memory, tables without files) is
walked twice as `commitlog verify` walks it: hashes, order and answers alone, and with every outcome
decided again. Then the state at its end is saved as a checkpoint and a committer's session begins
there, up to a valid term of its own: a takeover. At last the bare machine: decide and apply, with
nothing encoded and no writer answered. Kafka is in none of it; CPU time stands beside time, since
other programs change only the one.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from commitlog.adapters.memory import MemoryLog
from commitlog.core.decisions import Decision
from commitlog.core.partition.machine import Machine
from commitlog.model.records import Submitted, Transaction
from consumers.partition.checkpoints.checkpoint import Checkpoint, Checkpoints
from consumers.partition.session import Session
from consumers.runtime.process import GARBAGE_THRESHOLDS
from consumers.tools.bench.made_log import NODE, MadeLog, append_to, create, decide, look
from consumers.tools.bench.measure import Report
from consumers.tools.verify import VerifyOptions, verify

TRANSACTIONS = 1_000_000
DECISIONS = 50_000
DECISION_ROUNDS = 5
TABLES = 10
BEHIND = 3
"""So many versions each append had not read."""
LEFT = 1_000
"""Transactions after the checkpoint, which a takeover reads."""


@dataclass(slots=True)
class Spent:
    """Time of one piece of work."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def rates(self, count: int) -> dict[str, float]:
        """Return it with how many of `count` that is per second."""
        return {
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "per_second": count / max(self.seconds, 1e-9),
            "per_cpu_second": count / max(self.cpu_seconds, 1e-9),
        }


@contextmanager
def spending() -> Iterator[Spent]:
    """Measure the block."""
    spent, before, cpu_before = Spent(), time.perf_counter(), time.process_time()
    yield spent
    spent.seconds = time.perf_counter() - before
    spent.cpu_seconds = time.process_time() - cpu_before


def run(
    *,
    transactions: int = TRANSACTIONS,
    decisions: int = DECISIONS,
    rounds: int = DECISION_ROUNDS,
    report: Report = print,
) -> dict[str, Any]:
    """Measure and return a JSON-able report; `transactions` is the length of the log."""
    thresholds = gc.get_threshold()
    gc.set_threshold(*GARBAGE_THRESHOLDS)  # as every process of the service has them
    try:
        decided = decision_rates(decisions, rounds)
        middle = sorted(decided, key=lambda one: one["per_cpu_second"])[len(decided) // 2]
        report(
            f"bare decisions: {middle['per_cpu_second']:,.0f} per second of CPU"
            f" ({middle['decide_us']:.1f} us to decide, {middle['apply_us']:.1f} to apply)"
        )
        made = MadeLog()
        with spending() as spent:
            _fill(made, transactions, report)
        found: dict[str, Any] = {
            "transactions": transactions,
            "tables": TABLES,
            "decision": {"transactions": decisions, "rounds": decided, **middle},
            "generated": {
                **spent.rates(transactions),
                "transaction_bytes": made.bytes["transactions"] / transactions,
                "outcome_bytes": made.bytes["outcomes"] / transactions,
            },
        }
        for name, options in (
            ("chain", VerifyOptions(chain_only=True)),
            ("decided_again", VerifyOptions(log_only=True)),
        ):
            found[name] = _verified(made, options)
            report(f"{name}: {found[name]['per_second']:,.0f} outcomes/s")
        found["takeover"] = _takeover(made, transactions)
        report(f"takeover: {found['takeover']['seconds']:.2f} s")
    finally:
        gc.set_threshold(*thresholds)
    works = {
        "decided and applied, nothing else": "decision",
        "decided, encoded and chained": "generated",
        "hashes, order and answers verified": "chain",
        "the same, and every outcome decided again": "decided_again",
    }
    return {**found, "works": [{"work": work, **found[name]} for work, name in works.items()]}


def _fill(made: MadeLog, transactions: int, report: Report) -> None:
    for number in range(TABLES):
        made.run(create(f"t{number}"))
    said = time.monotonic()
    for number in range(transactions):
        made.run(_append(number))
        if time.monotonic() - said > 10:
            said = time.monotonic()
            report(f"generated {number + 1:,} of {transactions:,} transactions")


def _append(number: int) -> Transaction:
    """Return the log's next append, of a writer that read a version a little behind the head."""
    read_version = max(1, 1 + number // TABLES - BEHIND)
    return append_to(f"t{number % TABLES}", number + 1, read_version=read_version)


def _verified(made: MadeLog, options: VerifyOptions) -> dict[str, Any]:
    with spending() as spent:
        verdict = verify(made.log, 0, options)
    if not verdict.is_whole:
        raise RuntimeError(f"the generated log is not whole: {verdict.problem}")
    return {"outcomes": verdict.outcomes, **spent.rates(verdict.outcomes)}


def _takeover(made: MadeLog, transactions: int) -> dict[str, Any]:
    """Save the state, let the log continue a little, and begin a term from what was saved."""
    log, genesis = made.log, made.log.genesis(0)
    with tempfile.TemporaryDirectory(prefix="commitlog-bench-") as folder:
        root = Path(folder)
        replica = made.replica
        # Readers start at the checkpoint, after what the generator decided.
        offset = log.read_transactions(0).end_offset()
        checkpoint = Checkpoint(
            machine=made.machine,
            chain=replica.chain,
            transactions_position=offset,
            decided_beyond=(),
            outcomes_position=(end := log.read_outcomes(0).end_offset()),
            outcome_offset=end - 1,
        )
        with spending() as saving:
            Checkpoints(root, log.identity(), genesis).save(checkpoint)
        size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
        left = min(LEFT, transactions)
        for number in range(left):
            made.run(_append(transactions + number))
        gc.collect()
        with spending() as spent:
            checkpoints = Checkpoints(root, log.identity(), genesis)
            session = Session(log, genesis, checkpoints)
            with spending() as following:
                session.catch_up()
            epoch = session.campaign(NODE, 0)
        if not epoch or session.follower.machine.digest() != made.machine.digest():
            raise RuntimeError("the takeover did not come to the state that the log makes")
        session.follower.close()
    return {
        "behind_checkpoint": transactions + TABLES + 1,
        "after_checkpoint": left,
        "checkpoint_bytes": size,
        "save_seconds": saving.seconds,
        "follow_seconds": following.seconds,
        "seconds": spent.seconds,
        "cpu_seconds": spent.cpu_seconds,
    }


def decision_rates(count: int, rounds: int) -> list[dict[str, float]]:
    """Decide and apply `count` appends in each round, on one core; return the rates.

    Each round is a machine of its own; no record was looked at before. Naming what a decision will
    look at (`prefetch`) is timed too, and not counted: a leader does it while it waits for files.
    """
    found = []
    for _ in range(rounds):
        machine, submitted = _decision_work(count)
        gc.collect()
        now, prefetching, deciding, applying = time.process_time, 0.0, 0.0, 0.0
        for one in submitted:
            started = now()
            wanted = machine.prefetch(one)
            prefetched = now()
            seen = {file: look(file) for file in wanted}
            begun = now()
            decision = machine.decide(one, seen)
            assert isinstance(decision, Decision)
            decided = now()
            machine.apply(one, decision.outcome, changes=decision.changes)
            applying += now() - decided
            deciding += decided - begun
            prefetching += prefetched - started
        if machine.tables[("t0",)].version != (count + TABLES - 1) // TABLES + 1:
            raise RuntimeError("an append was refused")
        microseconds = {"prefetch": prefetching, "decide": deciding, "apply": applying}
        found.append(
            {
                "per_cpu_second": count / max(deciding + applying, 1e-9),
                **{f"{name}_us": spent / count * 1e6 for name, spent in microseconds.items()},
            }
        )
    return found


def _decision_work(count: int) -> tuple[Machine, list[Submitted]]:
    log = MemoryLog()
    machine = Machine(log.create(tables_root="/tables"))
    first = log.read_transactions(0).poll()

    def submitted(transaction: Transaction, at: int) -> Submitted:
        hashed = replace(transaction, payload_hash=transaction.transaction_id.encode()[:32])
        return Submitted(0, at, at, hashed)

    created = [submitted(create(f"t{n}"), len(first) + n) for n in range(TABLES)]
    for one in (*first, *created):
        machine.apply(one, decide(machine, one).outcome)
    start = len(first) + TABLES
    work = [submitted(_append(n), start + n) for n in range(count)]
    return machine, work
