"""Whatever record Kafka accepts gets an outcome that Kafka accepts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from unittest.mock import patch
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.adapters import log_records, log_start
from commitlog.codecs.avro import encode_transaction, seal_outcome
from commitlog.core.decisions import BuildWanted, Found
from commitlog.core.log import outcomes
from commitlog.core.manifest.header import ManifestHeader
from commitlog.errors import TransactionRejected
from commitlog.lancepb.table_pb2 import Manifest
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.limits import OUTCOME_INLINE_SUM_MAX, RECORD_BYTES_MAX, Rules
from commitlog.model.operations import (
    AlterProperties,
    CreateNamespace,
    CreateTable,
    DeclareTable,
    DropTable,
    IcebergChange,
    LanceCommit,
    Operation,
    RenameTable,
)
from commitlog.model.records import (
    Application,
    Code,
    Expect,
    Observation,
    Outcome,
    PredicateUnchanged,
    Status,
    TableAbsent,
    TableVersionIs,
    Transaction,
)
from tests.core_world import World, column, new_fragment
from tests.service import SCHEMA, rows, service

PROTOCOLS = (3, 4)
ID = "0199a000-0000-7000-8000-{:012}"


def record_of(outcome: Outcome) -> bytes:
    _, record = seal_outcome(outcome, previous_hash=bytes(32), epoch=2**40, node="n" * 300)
    return record


def assert_appendable(outcome: Outcome) -> None:
    assert len(record_of(outcome)) <= RECORD_BYTES_MAX + 1_000


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_refusal_of_a_huge_name_is_small(protocol: int) -> None:
    world = World(rules=Rules(protocol))
    world.create("t")
    message = LanceTransaction(read_version=1, uuid=ID.format(1))
    message.append.fragments.append(new_fragment("a.lance"))
    branch = "\x01" * 6_000_000
    operation = LanceCommit(("t",), "Append", 1, message.SerializeToString(), branch=branch)
    record = Transaction(ID.format(2), (operation,))
    assert len(encode_transaction(record)) < RECORD_BYTES_MAX
    outcome = world.run(record)
    assert outcome.status is Status.REJECTED
    assert_appendable(outcome)
    if protocol >= 4:
        assert outcome.code is Code.UNSUPPORTED_OPERATION
        assert len(record_of(outcome)) < 2_000
        assert "6000000 characters" in outcome.message
    else:
        assert "its outcome would have 24" in outcome.message
    assert world.ask(ID.format(3), operation).status is Status.REJECTED
    assert world.create("next").status is Status.COMMITTED


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_leader_goes_on_behind_it(protocol: int, tmp_path: Path) -> None:
    with patch.object(log_start, "PROTOCOL_SUPPORTED", protocol), service(tmp_path) as running:
        running.client.create_table("t", SCHEMA)
        operation = DropTable(("t",), "\x01" * 6_000_000)
        record = Transaction(str(uuid4()), (operation,))
        running.log.transactions_writer().append(record, partition=0)
        running.client.append("t", rows(1))
        outcome = running.client.outcome(record.transaction_id)
        assert outcome.code is Code.TABLE_REPLACED
        assert_appendable(outcome)


def test_a_leader_refuses_whose_outcome_cannot_be_appended_and_goes_on(tmp_path: Path) -> None:
    tables = [f"t{number}" for number in range(24)]
    topic = patch.object(log_records, "OUTCOME_HEAD_BYTES_MAX", 1_500 - RECORD_BYTES_MAX)
    with service(tmp_path) as running:
        for name in tables:
            running.client.create_table(name, SCHEMA)
        epoch = running.client.append("t0", rows(1)).epoch
        with topic, patch.object(outcomes, "RECORD_BYTES_MAX", 1_000):
            with ExitStack() as stack:
                refused = stack.enter_context(pytest.raises(TransactionRejected))
                many = stack.enter_context(running.client.transact())
                for name in tables:
                    many.append(name, rows(2))
            after = running.client.append("t0", rows(3))
        outcome = refused.value.outcome
        assert outcome.code is Code.INVALID_OPERATION
        assert "split the transaction" in outcome.message
        assert (after.version, after.epoch) == (3, epoch)


class Building(World):
    """Everything is built by somebody else, as a manifest with much in its config."""

    def build(self, wanted: BuildWanted) -> Found:
        state = super().build(wanted).state
        assert state is not None
        manifest = Manifest.FromString(state.header.encoded)
        manifest.config["noise"] = hashlib.sha256(wanted.message).hexdigest() * 3_900
        state.header = ManifestHeader.of(manifest)
        return Found(Observation("", -1), state=state)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_deltas_that_are_large_together_do_not_go_into_the_outcome(protocol: int) -> None:
    world = Building(rules=Rules(protocol))
    operations = []
    for number in range(70):
        world.create(f"t{number}")
        message = LanceTransaction(read_version=1, uuid=ID.format(number))
        message.overwrite.fragments.append(new_fragment("a.lance"))
        message.overwrite.schema.add().MergeFromString(column("a", 0))
        encoded = message.SerializeToString(deterministic=True)
        operations.append(LanceCommit((f"t{number}",), "Overwrite", 1, encoded))
    outcome = world.ask(ID.format(1_000), *operations)
    assert_appendable(outcome)
    if protocol >= 4:
        assert outcome.status is Status.COMMITTED
        inline = [r.delta.inline for r in outcome.results if r.delta and r.delta.inline]
        assert 0 < sum(map(len, inline)) <= OUTCOME_INLINE_SUM_MAX
        assert len(inline) + len(world.recordings) == 70
        assert world.replayed().digest() == world.machine.digest()
    else:
        assert outcome.code is Code.INVALID_OPERATION
        assert "split the transaction" in outcome.message
    assert world.create("next").status is Status.COMMITTED


LENGTHS = (0, 1, 200, 255, 300, 70_000, 3_000_000, 9_000_000)
CHARACTERS = ("a", "\x01", "\u20ac", "\U0001f600", '"', "\\", "/", "x\n")


class Requests:
    """Requests with texts of all lengths where a record has texts."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def text(self) -> str:
        one = self._random.choice(CHARACTERS)
        return one * (self._random.choice(LENGTHS) // len(one.encode()))

    def name(self) -> tuple[str, ...]:
        known: list[Callable[[], tuple[str, ...]]] = [
            lambda: ("t",),
            lambda: ("ice",),
            lambda: (self.text(),),
            lambda: (self.text(),) * self._random.choice((2, 30)),
        ]
        return self._random.choice(known)()

    def append(self) -> bytes:
        message = LanceTransaction(read_version=1, uuid=self._random.choice((ID.format(9), "x")))
        ids = [self._random.randrange(3) for _ in range(self._random.randrange(3))]
        message.append.fragments.append(new_fragment(self.text(), fields=ids))
        encoded: bytes = message.SerializeToString(deterministic=True)
        return encoded

    def operation(self) -> Operation:
        name, text = self.name(), self.text()
        kind = self._random.choice(("Append", text))
        requirement = self._random.choice(("assert-create", "assert-table-uuid", "x" * 500_000))
        count = self._random.choice((1, 20))
        requirements = [{"type": requirement, "uuid": text}] * count
        # Only what is chosen is made: it may be large.
        made: list[Callable[[], Operation]] = [
            lambda: LanceCommit(name, kind, self._random.randrange(3), self.append()),
            lambda: LanceCommit(name, "Append", 1, self.append(), text, branch=self.text()),
            lambda: CreateTable(name, text, self.text(), (), primary_key=(text, self.text())),
            lambda: DeclareTable(name, text, self.text()),
            lambda: DropTable(name, text),
            lambda: RenameTable(name, self.name()),
            lambda: CreateNamespace(name),
            lambda: AlterProperties(name, is_namespace=self._random.random() < 0.5),
            lambda: IcebergChange(name, text, self.text()),
            lambda: IcebergChange(name, json.dumps(requirements), "[]"),
        ]
        return self._random.choice(made)()

    def expect(self) -> Expect:
        name, version = self.name(), self._random.randrange(3)
        made: list[Expect] = [
            TableAbsent(name),
            TableVersionIs(name, version),
            PredicateUnchanged(name, self.text(), b"", version),
        ]
        return self._random.choice(made)

    def record(self) -> Transaction:
        application = Application(self.text(), 3, self.text())
        return Transaction(
            ID.format(7),
            tuple(self.operation() for _ in range(self._random.choice((1, 1, 2, 3)))),
            application=self._random.choice((None, application)),
            expects=tuple(self.expect() for _ in range(self._random.choice((0, 0, 1, 2)))),
        )


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_record_gets_an_outcome_that_can_be_appended(protocol: int, seed: int) -> None:
    record = Requests(seed).record()
    if len(encode_transaction(record)) > RECORD_BYTES_MAX:
        return
    world = World(rules=Rules(protocol))
    world.create("t")
    first = world.run(record)
    again = world.run(replace(record, operations=(DropTable(("t",)),)))
    for outcome in (first, again):
        assert_appendable(outcome)
    if protocol >= 4 and first.status is not Status.COMMITTED:
        observed = sum(len(one.path) for one in first.observed)
        assert len(record_of(first)) < 300_000 + 4 * observed
    assert world.replayed().digest() == world.machine.digest()
