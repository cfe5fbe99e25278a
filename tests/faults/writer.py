"""A writer process: commits one thing after the other, and writes down what it asked and heard.

The journal outlives it. A line is written before a transaction is sent and one after its answer;
what a killed predecessor left open is asked for first, by id.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa

from commitlog import CommitLog, CommitLogError, OutcomeUnknown

TABLES = ("faults$a", "faults$b")
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
PAUSE_SECONDS = 0.02
ANSWER_SECONDS = 20.0
ASK_SECONDS = 120.0
LIVING_MAX = 40


class Journal:
    """Lines of JSON, one per event, appended whole."""

    def __init__(self, path: Path) -> None:
        """Go on where the last process ended, maybe in the middle of a line."""
        text = path.read_bytes() if path.exists() else b""
        self.entries: list[dict[str, Any]] = []
        for line in text.split(b"\n"):
            try:
                self.entries.append(json.loads(line))
            except ValueError:
                continue
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if text and not text.endswith(b"\n"):
            os.write(self._file, b"\n")

    def write(self, **entry: Any) -> None:
        """Write an event down; it outlives this process at once."""
        self.entries.append(entry)
        os.write(self._file, json.dumps(entry).encode() + b"\n")


class Writer:
    """Appends rows of its own to two tables, and deletes some of them again."""

    def __init__(self, client: CommitLog, name: str, journal: Journal) -> None:
        """Continue the numbers of the process before."""
        self._client, self._journal = client, journal
        asked = [entry for entry in journal.entries if "asked" in entry]
        told = {entry["told"] for entry in journal.entries if "told" in entry}
        self._open = [entry for entry in asked if entry["asked"] not in told]
        self._first = int(name[1:]) * 10_000_000
        self._made = len(asked)
        self._living: list[tuple[str, int]] = []
        self._random = random.Random(f"{name} {len(asked)}")

    def settle(self) -> None:
        """Ask what became of the transactions that the last process sent."""
        for entry in self._open:
            try:
                self._tell(self._client.outcome(entry["asked"], timeout=3.0))
            except CommitLogError:
                # Perhaps it was never sent.
                self._journal.write(given_up=entry["asked"])

    def step(self) -> None:
        """Commit one thing."""
        self._made += 1
        transaction_id = str(uuid.uuid4())
        number = self._first + self._made
        drawn = self._random.random()
        tables = TABLES if drawn < 0.2 else (self._random.choice(TABLES),)
        removes: list[tuple[str, int]] = []
        if drawn > 0.8 and self._living:
            removes = [self._living.pop(self._random.randrange(len(self._living)))]
        adds = [] if removes else [(table, number) for table in tables]
        self._journal.write(asked=transaction_id, adds=adds, removes=removes, at=time.monotonic())
        try:
            outcome = self._send(transaction_id, adds, removes)
        except OutcomeUnknown:
            outcome = self._ask(transaction_id)
        except CommitLogError as error:
            self._journal.write(failed=transaction_id, why=f"{type(error).__name__}: {error}")
            return
        if outcome is None:
            self._journal.write(given_up=transaction_id)
            return
        self._tell(outcome)
        if outcome.status == "committed":
            self._living = [*self._living, *adds][-LIVING_MAX:]

    def _send(self, transaction_id: str, adds: Any, removes: Any) -> Any:
        client = self._client
        for table, number in removes:
            return client.delete(
                table, f"id = {number}", transaction_id=transaction_id, timeout=ANSWER_SECONDS
            )
        rows = {table: pa.table({"id": [n], "n": [0]}, schema=SCHEMA) for table, n in adds}
        if len(rows) == 1:
            [(table, data)] = rows.items()
            return client.append(table, data, transaction_id=transaction_id, timeout=ANSWER_SECONDS)
        with client.transact(transaction_id=transaction_id, timeout=ANSWER_SECONDS) as both:
            for table, data in rows.items():
                both.append(table, data)
        return both.outcome

    def _ask(self, transaction_id: str) -> Any:
        deadline = time.monotonic() + ASK_SECONDS
        while time.monotonic() < deadline:
            try:
                return self._client.outcome(transaction_id, timeout=5.0)
            except CommitLogError:
                time.sleep(0.2)
        return None

    def _tell(self, outcome: Any) -> None:
        self._journal.write(
            told=outcome.transaction_id,
            status=str(outcome.status),
            sequence=outcome.sequence,
            at=time.monotonic(),
        )


def main() -> None:
    """Write until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--journal", required=True, type=Path)
    parser.add_argument("--servers", required=True)
    options = parser.parse_args()
    while True:
        try:
            client = CommitLog.connect(options.servers, **{"client.id": options.name})
            for table in TABLES:
                client.create_table(table, SCHEMA, exist_ok=True)
            break
        except CommitLogError:
            time.sleep(0.2)
    writer = Writer(client, options.name, Journal(options.journal))
    writer.settle()
    while True:
        writer.step()
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main()
