"""What a thousand updates of an Iceberg table cost, counted: what it has is copied once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from commitlog.core.iceberg.metadata_draft import MetadataDraft
from tests.unit.iceberg_examples import table, updated

COUNT = 40
HEAD = COUNT + 1
REFS = {f"t{n}": {"snapshot-id": n, "type": "tag"} for n in range(1, HEAD)}


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often a draft gets another value of a member."""
    counts: Counter[str] = Counter()
    change = MetadataDraft.change

    def counted(draft: MetadataDraft, **members: Any) -> None:
        counts.update(list(members))
        change(draft, **members)

    monkeypatch.setattr(MetadataDraft, "change", counted)
    return counts


def tag(name: str) -> dict[str, Any]:
    return {"action": "set-snapshot-ref", "ref-name": name, "type": "tag", "snapshot-id": HEAD}


def untag(name: str) -> dict[str, Any]:
    return {"action": "remove-snapshot-ref", "ref-name": name}


def removal(*snapshot_ids: int) -> dict[str, Any]:
    return {"action": "remove-snapshots", "snapshot-ids": list(snapshot_ids)}


@pytest.mark.parametrize(
    ("updates", "left"),
    [
        ([tag(f"u{n}") for n in range(COUNT)], 2 * COUNT + 1),
        ([untag(f"t{n}") for n in range(COUNT)], 2),
        ([removal(*range(1, HEAD))], 1),
        ([removal(n) for n in range(1, HEAD)], 1),
        ([removal(1), tag("t2"), removal(2, 3)], COUNT - 1),
        ([removal(1), untag("t2"), removal(2), tag("t1")], COUNT),
    ],
)
def test_branches_and_tags_are_copied_once(
    updates: list[dict[str, Any]], left: int, changed: Counter[str]
) -> None:
    refs = {**REFS, "main": {"snapshot-id": HEAD, "type": "branch"}}
    after = updated(replace(table(snapshots=HEAD), refs=refs), *updates)
    assert len(refs) == COUNT + 1, "the table before is as it was"
    assert len(after.refs) == left
    assert changed["refs"] == 1
    assert all(ref["snapshot-id"] in after.snapshots for ref in after.refs.values())


def test_encryption_keys_are_copied_once(changed: Counter[str]) -> None:
    key = {"key-id": "", "encrypted-key-metadata": "YQ=="}
    known = {f"k{n}": {**key, "key-id": f"k{n}"} for n in range(COUNT)}
    added = [
        {"action": "add-encryption-key", "encryption-key": {**key, "key-id": f"n{n}"}}
        for n in range(COUNT)
    ]
    gone = [{"action": "remove-encryption-key", "key-id": name} for name in [*known, "none"]]
    after = updated(replace(table(), encryption_keys=known), *added, *gone)
    assert list(after.encryption_keys) == [f"n{n}" for n in range(COUNT)]
    assert len(known) == COUNT
    assert changed["encryption_keys"] == 1
