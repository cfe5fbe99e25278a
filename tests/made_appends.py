"""Logs of appends by many writers, as real bytes in memory: plain ones mostly, and odd ones."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace
from typing import Any

from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.limits import (
    CONFIRMED_CLOCK_SINCE,
    LANCE_RELEASE_AT_FIRST,
    PROTOCOL_SUPPORTED,
)
from commitlog.model.operations import CreateTable, KeyHashes, LanceCommit, Summary
from commitlog.model.records import Application, ProtocolVersion, TableVersionIs, Transaction
from consumers.tools.bench.made_log import FILE_BYTES, MadeLog, configure, create
from consumers.tools.erasure.acts import ERASURE

HOUR_MS = 3600 * 1000
TABLES = ("t0", "t1", "t2", "é", 'a"b')
UPGRADED_AT = 40
"""The log begins under the last protocol that decides appends otherwise, for so many records."""


class OddWriters:
    """Writers with stale views, resends, clocks that are wrong, and mistakes."""

    def __init__(self, seed: int) -> None:
        """Make the tables."""
        self.chance = random.Random(seed)
        self.now_ms = 1_800_000_000_000
        self.made = MadeLog()
        self.broker_ahead_ms = 0
        self.made.log.cluster.now_ms = lambda: self.now_ms + self.broker_ahead_ms
        self.limits = self.chance.choice((20, 1_000)), self.chance.choice((24, 2_400)) * HOUR_MS
        self._run_rules(CONFIRMED_CLOCK_SINCE - 1)
        for number, table in enumerate(TABLES):
            [operation] = create(table, location=f"/tables/{number}").operations
            assert isinstance(operation, CreateTable)
            key = ("c0",) if number == 2 and self.chance.random() < 0.5 else ()
            stable = self.chance.random() < 0.5
            name = str(uuid.UUID(int=number))
            made = replace(operation, incarnation=name, stable_row_ids=stable, primary_key=key)
            self.made.run(Transaction(name, (made,)))
        self.sent: list[Transaction] = []

    def _run_rules(self, protocol: int) -> None:
        name, (history_versions, horizon_ms) = LANCE_RELEASE_AT_FIRST, self.limits
        rules = ProtocolVersion(
            str(uuid.UUID(int=99 + protocol)), protocol, horizon_ms, history_versions, 10, name
        )
        self.made.log.transactions_writer().append(rules, partition=0)
        reader = self.made.log.read_transactions(
            0, self.made.log.read_transactions(0).end_offset() - 1
        )
        [submitted] = reader.poll()
        self.made.decide(submitted)

    def rarely(self, odd: Any, plain: Any) -> Any:
        """Return one of some odd values, now and then."""
        return self.chance.choice(odd) if self.chance.random() < 0.02 else plain

    def step(self) -> None:
        """Have somebody write."""
        self.now_ms += self.rarely((HOUR_MS, 30 * HOUR_MS, -HOUR_MS), self.chance.randrange(20))
        self.broker_ahead_ms += self.rarely((HOUR_MS, 30 * HOUR_MS), 0)
        number, act = len(self.sent), self.chance.random()
        if number == UPGRADED_AT:
            self._run_rules(PROTOCOL_SUPPORTED)
        if act < 0.03:
            made = configure("t0", number + 1)
        elif act < 0.06 and self.sent:
            made = self.chance.choice(self.sent)
            made = replace(made, attempt=made.attempt + self.chance.choice((0, 0, 1)))
        else:
            made = self._append(number)
        self.sent.append(made)
        self.made.run(made)

    def _id(self) -> str:
        born = self.now_ms + self.rarely((-50 * HOUR_MS, 3 * HOUR_MS), 0)
        version7 = f"{born:012x}"
        random_id = str(uuid.UUID(int=self.chance.getrandbits(128)))
        usual = f"{version7[:8]}-{version7[8:]}-7{random_id[15:]}"
        odd = (f"{version7[:8]}-_{version7[9:]}-7{random_id[15:]}", 'a"b', "a\\b", "x" * 128)
        return str(self.rarely(odd, self.chance.choice((usual, random_id))))

    def _append(self, number: int) -> Transaction:
        table = self.rarely((("nothing",), (TABLES[3],), (TABLES[4],)), (f"t{number % 3}",))
        known = self.made.machine.tables.get(table)
        head = known.version if known is not None else 1
        read_version = max(1, head - self.chance.choice((0, 0, 1, 3, 30)))
        read_version = self.rarely((0, head + 1, -1), read_version)
        message = LanceTransaction(
            uuid=self.rarely(("", "é", "u_"), f"0192-{number}"),
            read_version=max(0, self.rarely((1,), read_version)),
        )
        for at in range(self.rarely((0, 2, 70), 1)):
            fragment = message.append.fragments.add(physical_rows=self.rarely((1, 2**40), 10))
            for k in range(self.rarely((0, 2), 1)):
                fragment.files.add(
                    path=self.rarely(("same.lance", "x/y.lance"), f"{number}-{at}-{k}.lance"),
                    fields=self.rarely(((0,), (0, 9), ()), (0, 1, 2)),
                    column_indices=range(3),
                    file_major_version=2,
                    file_minor_version=self.rarely((1, 9), 0),
                    file_size_bytes=self.rarely((1, FILE_BYTES + 1), FILE_BYTES),
                )
        incarnation = known.incarnation if known is not None else "another"
        operation = LanceCommit(
            table,
            self.rarely(("Delete",), "Append"),
            read_version,
            message.SerializeToString(deterministic=True),
            incarnation=self.rarely((incarnation, "another"), ""),
            branch=self.rarely(("b",), ""),
            schema_metadata=self.rarely(((("k", b"v"),), ()), None),
            inserted_keys=self.rarely((KeyHashes((0,), bytes(16)),), None)
            if number > 200
            else None,
            summary=Summary(rows_added=10),
        )
        by_version = (("commitlog.transaction-file", "by-version"),)
        properties = self.rarely((by_version, ((ERASURE, "{}"),)), (("note", "n"),))
        return Transaction(
            self._id(),
            self.rarely(((operation, operation), ()), (operation,)),
            attempt=self.rarely((1, 2**40), 0),
            principal=self.rarely(("", "é"), "writer"),
            submitted_at_ms=self.rarely((self.now_ms, self.now_ms + 9 * HOUR_MS, -1), 0),
            application=self.rarely((Application("a", number),), None),
            properties=properties,
            expects=self.rarely(((TableVersionIs(table, head),),), ()),
        )


def odd_appends(seed: int, steps: int) -> MadeLog:
    """Return what such writers write in so many steps."""
    writers = OddWriters(seed)
    for _ in range(steps):
        writers.step()
    return writers.made
