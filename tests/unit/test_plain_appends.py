"""Is a plain append, decided by a look, decided as by all checks, and read alike in both lanes?"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commitlog.core.manifest.plain_appends import read_in_python
from commitlog.core.partition.machine import Machine
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.limits import Rules
from commitlog.model.operations import CreateTable, KeyHashes, LanceCommit
from commitlog.model.records import Outcome, Status, TableVersionIs, Transaction
from consumers.tools.bench.made_log import FILE_BYTES, MadeLog, create
from consumers.tools.verify import VerifyOptions, verify
from tests.core_world import World, commit, content_hash, new_fragment
from tests.lanes import load, mutated
from tests.plain_appends import a_message, decided_both_ways, search_plain_appends

SEED, SECONDS, STEPS = 1, 2.0, 60


@pytest.mark.slow
def test_a_message_is_read_alike_in_both_lanes(native_module: Path) -> None:
    module = load(native_module)[4]
    tried, plain = search_plain_appends(
        module.read_plain_append, module.is_plain_fragment, mutated, SECONDS, SEED
    )
    assert tried // 8 < plain < tried
    for odd in (None, "", bytearray(b"x"), 1):
        assert module.read_plain_append(odd) is None
        assert not module.is_plain_fragment(odd)


def test_what_is_plain_is_what_protobuf_would_write() -> None:
    chance = random.Random(SEED)
    plain = [found for found in (read_in_python(a_message(chance)) for _ in range(300)) if found]
    assert plain
    for _, _, fragments in plain:
        for rows, _, encoded, files in fragments:
            fragment = DataFragment.FromString(encoded)
            assert fragment.physical_rows == rows
            assert [(one.path, one.file_size_bytes) for one in fragment.files] == list(files)


class Writers:
    """Writers with stale views, who make all kinds of mistakes, too."""

    def __init__(self, seed: int, protocol: int) -> None:
        self.chance = random.Random(seed)
        self.world = World(rules=Rules(protocol=protocol, history_versions=20))
        stable, keyed = self.chance.random() < 0.5, self.chance.random() < 0.3
        key = ("c0",) if keyed else ()
        self.world.create("t", columns=2, stable_row_ids=stable, primary_key=key)
        self.world.missing.add("data/missing.lance")
        self.made = 0

    def rarely(self, odd: Any, plain: Any) -> Any:
        return self.chance.choice(odd) if self.chance.random() < 0.04 else plain

    def append(self) -> Transaction:
        """Return an append, with something odd about it now and then."""
        self.made += 1
        head = self.world.state().version
        lag = self.chance.choice((0, 0, 1, 2, 5, 30))
        read_version = self.rarely((0, head + 1, -1), max(1, head - lag))
        message = LanceTransaction(
            read_version=max(0, self.rarely((1, 2), read_version)), uuid=f"0192-{self.made}"
        )
        for number in range(self.rarely((0, 2), 1)):
            path = self.rarely(("missing.lance", "x/y.lance"), f"{self.made}-{number}.lance")
            fields = self.rarely(((0,), (0, 7), ()), (0, 1))
            fragment = new_fragment(path, fields=fields, rows=self.rarely((0,), 10))
            fragment.files[0].file_size_bytes = self.rarely((99,), 100)
            fragment.files[0].file_minor_version = self.rarely((1, 9), 0)
            message.append.fragments.append(fragment)
        keys = KeyHashes((0,), bytes([self.chance.randrange(3)]) * 16)
        operation = LanceCommit(
            self.rarely((("u",),), ("t",)),
            self.rarely(("Delete",), "Append"),
            read_version,
            message.SerializeToString(deterministic=True),
            incarnation=self.rarely(("another", "i-t"), ""),
            branch=self.rarely(("b",), ""),
            inserted_keys=self.rarely((keys,), None),
        )
        by_version = (("commitlog.transaction-file", "by-version"),)
        expects = self.rarely(((TableVersionIs(("t",), head),),), ())
        return Transaction(
            f"a{self.made}",
            self.rarely(((operation, operation), ()), (operation,)),
            expects=expects,
            properties=self.rarely((by_version,), ()),
            payload_hash=content_hash(operation, expects),
        )

    def other(self) -> Outcome:
        """Commit something that isn't an append."""
        self.made += 1
        message = LanceTransaction(
            read_version=self.world.state().version, uuid=f"0192-{self.made}"
        )
        if self.chance.random() < 0.5:
            message.update_config.config_updates.update_entries.add(key="k", value=str(self.made))
        else:
            message.reserve_fragments.num_fragments = 2
        return self.world.ask(f"o{self.made}", commit(message))


@pytest.mark.slow
@pytest.mark.parametrize("protocol", range(1, 7))
def test_each_append_is_decided_alike_both_ways(protocol: int) -> None:
    statuses = set()
    with decided_both_ways() as counted:
        for seed in range(SEED, SEED + 5):
            writers = Writers(seed, protocol)
            world = writers.world
            for _ in range(STEPS):
                if writers.chance.random() < 0.1:
                    writers.other()
                else:
                    statuses.add(world.run(writers.append()).status)
            assert world.replayed().digest() == world.machine.digest(), seed
            assert _features(world.replayed()) == _features(world.machine) == {}, seed
    assert counted[0] > STEPS, "a look was enough for many"
    assert {Status.COMMITTED, Status.REJECTED} <= statuses


@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize(("fragments", "version"), [(1, 3), (3, 2), (5, 1)])
def test_row_ids_come_to_an_end(is_plain: bool, fragments: int, version: int) -> None:
    made = MadeLog()
    [table] = create("t").operations
    assert isinstance(table, CreateTable)
    made.run(Transaction("created", (replace(table, stable_row_ids=True),)))
    for number in range(4):
        message = LanceTransaction(uuid=f"0192-{number}", read_version=1 + number)
        for at in range(fragments):
            fragment = new_fragment(f"{number}-{at}.lance", fields=(0, 1, 2), rows=2**62)
            fragment.files[0].file_size_bytes = FILE_BYTES
            message.append.fragments.append(fragment)
        if not is_plain:
            message.append.fragments[0].id = 7
        made.run(Transaction(f"a{number}", (commit(message),)))
    table_now = made.machine.tables[("t",)]
    assert table_now.version == version, "later ones had no ids left"
    made.machine.digest()
    assert verify(made.log, 0, VerifyOptions(log_only=True)).is_whole


def _features(machine: Machine) -> dict[int, int]:
    manifest = machine.tables[("t",)].manifest
    assert manifest is not None
    return dict(manifest.fragments.features_by_id())
