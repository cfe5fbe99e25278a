"""Is work on a private version what pylance would commit, however many fragments there are?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.optimize import Compaction

from commitlog.adapters.lance_private import as_read_privately, captured
from commitlog.codecs.manifest_file import VERSIONS_DIRECTORY, manifest_name
from commitlog.core.manifest import encoded_fragments
from consumers.tools.maintenance import table_acts

FRAGMENTS = 6


@pytest.fixture
def dataset(tmp_path: Path) -> lance.LanceDataset:
    rows = pa.table({"id": range(FRAGMENTS)})
    return lance.write_dataset(rows, tmp_path / "t.lance", max_rows_per_file=1)


def _path(dataset: lance.LanceDataset) -> str:
    return f"{VERSIONS_DIRECTORY}/{manifest_name(dataset.version)}"


def test_a_compaction_takes_no_fragment_apart(
    dataset: lance.LanceDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def split(message: bytes, number: int) -> object:
        raise AssertionError("all fragments of a table are taken apart for one commit of many")

    monkeypatch.setattr(encoded_fragments, "split", split)
    tasks = Compaction.plan(dataset, {}).tasks
    results = [task.execute(dataset) for task in tasks]
    message, metrics = captured(
        dataset.uri,
        dataset.version,
        _path(dataset),
        lambda private: Compaction.commit(private, as_read_privately(private, results)),
        first_free_id=70,
    )
    assert message is not None
    [group] = message.rewrite.groups
    assert [one.id for one in group.old_fragments] == list(range(FRAGMENTS))
    assert [one.id for one in group.new_fragments] == [70]
    assert (message.read_version, metrics.fragments_removed) == (dataset.version, FRAGMENTS)
    assert lance.dataset(dataset.uri).version == dataset.version


def test_a_private_version_may_have_some_of_the_fragments(dataset: lance.LanceDataset) -> None:
    message, _ = captured(
        dataset.uri, dataset.version, _path(dataset), lambda one: one.delete("id > 0"), only=[1, 4]
    )
    assert message is not None
    assert list(message.delete.deleted_fragment_ids) == [1, 4]


def test_a_turn_looks_into_no_more_groups_than_it_takes(
    dataset: lance.LanceDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = {"a": 400, "b": 100, "c": 1, "d": 1}
    looked: list[str] = []

    def fragments_of(task: str) -> range:
        looked.append(task)
        return range(groups[task])

    def rewrite_here(info: object, dataset: object, tasks: Sequence[str], end: float) -> list[str]:
        return list(tasks)

    monkeypatch.setattr(table_acts, "fragments_of", fragments_of)
    monkeypatch.setattr(table_acts, "rewrite_here", rewrite_here)
    taken = table_acts.rewrite_for_a_turn(None, dataset, list(groups), 0.0)  # type: ignore[arg-type]
    assert taken == ["a", "b", "c"]  # type: ignore[comparison-overlap]
    assert looked == ["a", "b", "c"]
