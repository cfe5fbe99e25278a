"""Random clients of one Iceberg table, all of them late: which rows does each snapshot have?

Every append is to commit at its first try, every row is to be there once in every snapshot since,
and a compaction, whether it commits or not, changes no row.
"""

from __future__ import annotations

import io
import random
from collections import Counter
from typing import Any

import fastavro
import pytest

from commitlog.model.records import Status
from tests.core_world import ROOT
from tests.unit.test_iceberg_rebase import Commit, Writers

_STEPS = 60
_EXISTING, _ADDED, _DELETED = 0, 1, 2
_ENTRY = {
    "type": "record",
    "name": "manifest_entry",
    "fields": [
        {"name": "status", "type": "int"},
        {"name": "file", "type": "string"},
        {"name": "rows", "type": {"type": "array", "items": "int"}},
    ],
}


class History(Writers):
    """Its manifests say which rows their files have."""

    def put(self, commit: Commit, entries: list[dict[str, Any]]) -> None:
        """Write the manifest of a commit."""
        out = io.BytesIO()
        fastavro.writer(out, _ENTRY, entries, codec="deflate")
        self.files[commit.manifest] = out.getvalue()

    def entries(self, manifest: str) -> list[Any]:
        """The files of a manifest that live."""
        found: list[Any] = list(fastavro.reader(io.BytesIO(self.files[manifest])))
        return [one for one in found if one["status"] != _DELETED]

    def rows(self, snapshot_id: int | None) -> Counter[int]:
        """How often each row is in a snapshot."""
        return Counter(
            row
            for manifest in self.paths(snapshot_id)
            for entry in self.entries(manifest)
            for row in entry["rows"]
        )


@pytest.mark.slow
@pytest.mark.parametrize("format_version", [1, 2, 3])
@pytest.mark.parametrize("offset", range(4))
def test_every_row_is_there_once(format_version: int, offset: int) -> None:
    seed = random.SystemRandom().randrange(2**32) + offset
    print(f"seed {seed}")
    choose = random.Random(seed)
    world = History(format_version=format_version)
    seen: list[int] = []
    expected: dict[int, Counter[int]] = {}
    done: Counter[str] = Counter()
    for step in range(_STEPS):
        over = choose.choice(seen[-8:]) if seen else None
        kind = choose.choice(["append", "append", "merge", "replace"]) if seen else "append"
        commit = _write(world, choose, kind, over, step)
        before = Counter(expected[seen[-1]]) if seen else Counter[int]()
        outcome = world.commit(commit)
        if outcome.status is not Status.COMMITTED:
            assert kind == "replace", (seed, kind, outcome.message)
            done["refused"] += 1
            continue
        done[kind] += 1
        after = before if kind == "replace" else before + Counter([step])
        expected[commit.snapshot_id] = after
        seen.append(commit.snapshot_id)
        assert world.head() == commit.snapshot_id
        assert world.rows(commit.snapshot_id) == after, (seed, kind, step)
        if choose.random() < 0.1:
            world.lists = type(world.lists)()  # another leader knows no list
    for snapshot_id, rows in expected.items():
        assert world.rows(snapshot_id) == rows, seed
    assert min(done["append"], done["merge"]) > 0, seed
    world.check()


def _write(world: History, choose: random.Random, kind: str, over: int | None, step: int) -> Commit:
    read = sorted(world.paths(over))
    picked = tuple(choose.sample(read, k=min(len(read), choose.randint(1, 3))))
    mine = {"status": _ADDED, "file": f"{ROOT}/f{step}", "rows": [step]}
    if kind == "append":
        commit = world.written(over=over)
        world.put(commit, [mine])
        return commit
    old = [entry for manifest in picked for entry in world.entries(manifest)]
    if kind == "merge":
        commit = world.written(over=over, without=picked, existing_files_count=len(old))
        world.put(commit, [mine, *({**one, "status": _EXISTING} for one in old)])
        return commit
    commit = world.written(
        over=over, operation="replace", without=picked, deleted_files_count=len(old)
    )
    rows = [row for one in old for row in one["rows"]]
    new = {**mine, "rows": rows}
    world.put(commit, [new, *({**one, "status": _DELETED} for one in old)])
    return commit
