"""The steps of a commit with an external manifest store, and a crash between each two of them.

Stage the manifest, append the outcome, give it its own name, remove what was staged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pytest
from lance import LanceOperation
from lance.fragment import write_fragments

from commitlog.adapters.lance_namespace import StagingNamespace
from commitlog.adapters.storage import LocalStore
from commitlog.codecs.manifest_file import manifest_name
from commitlog.errors import OutcomeUnknown
from commitlog.model.records import Status
from consumers.tools.verify import VerifyOptions, verify
from tests.operations_world import T, committed, opened, three_fragments
from tests.service import SCHEMA, Service, ids_of, rows
from tests.waiting import wait_until


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Service]:
    """Make a table of three fragments; its head is version 4."""
    with three_fragments(tmp_path, stable_row_ids=False) as made:
        yield made


class Crashes:
    """A store's primitive that fails while `is_down` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, where: str) -> None:
        """Fail `name` of paths that begin with `where`."""
        self.is_down = threading.Event()
        original: Callable[..., Any] = getattr(LocalStore, name)

        def primitive(store: LocalStore, path: str, *rest: Any) -> Any:
            if self.is_down.is_set() and path.startswith(where):
                raise OSError(f"{name} of {path} fails on purpose")
            return original(store, path, *rest)

        monkeypatch.setattr(LocalStore, name, primitive)


def restarted(running: Service) -> None:
    """End the committer, and start another one that knows its checkpoints."""
    running.running[-1].stop()
    running.start().await_leading()


def awaited(running: Service, version: int) -> lance.LanceDataset:
    """Open the table by path once a version stands there."""
    wait_until(lambda: opened(running).version >= version, f"version {version}")
    return opened(running)


def append(running: Service, number: int) -> LanceOperation.Append:
    """Return an Append of one row."""
    location = str(running.location(T))
    return LanceOperation.Append(list(write_fragments(rows(number), location, schema=SCHEMA)))


def staged(running: Service) -> list[str]:
    """Return the names of manifests that are only staged."""
    names = [path.name for path in (running.location(T) / "_versions").iterdir()]
    return [name for name in names if ".manifest-" in name]


def test_what_was_staged_before_a_crash_is_nobodys_version(running: Service) -> None:
    location = str(running.location(T))
    lance.LanceDataset.commit(
        location,
        append(running, 100),
        read_version=4,
        namespace_client=StagingNamespace(location, 4),
        table_id=["t"],
        namespace_client_managed_versioning=True,
    )
    assert staged(running)
    restarted(running)
    assert opened(running).version == 4
    assert committed(running, LanceOperation.Restore(3)).version == 5
    assert ids_of(opened(running)) == list(range(8))


@pytest.mark.parametrize("kind", ["direct", "built"])
def test_a_crash_behind_the_outcome_is_rolled_forward(
    running: Service, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashes = Crashes(monkeypatch, "create", f"_versions/{manifest_name(5)}")
    operation = append(running, 100) if kind == "direct" else LanceOperation.Restore(3)
    crashes.is_down.set()
    ticket = running.client.submit(T, operation)
    outcome = ticket.result(wait="committed")
    assert (outcome.status, outcome.version) == (Status.COMMITTED, 5)
    with pytest.raises(OutcomeUnknown):
        ticket.result(timeout=0.2, wait="readable")
    assert opened(running).version == 4, "a reader by path is one commit behind"
    restarted(running)
    assert opened(running).version == 4
    crashes.is_down.clear()
    expected = [*range(12), 100] if kind == "direct" else list(range(8))
    assert ids_of(awaited(running, 5)) == expected
    assert running.client.append(T, rows(200)).version == 6
    assert ids_of(opened(running)) == [*expected, 200]


def test_a_crash_behind_the_manifest_leaves_only_what_was_staged(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashes = Crashes(monkeypatch, "delete", "_versions/")
    crashes.is_down.set()
    committed(running, LanceOperation.Restore(3))
    path = running.location(T) / "_versions" / manifest_name(5)
    before = path.read_bytes()
    assert staged(running)
    restarted(running)
    assert path.read_bytes() == before
    assert ids_of(opened(running)) == list(range(8))
    crashes.is_down.clear()
    assert running.client.append(T, rows(200)).version == 6
    assert ids_of(opened(running)) == [*range(8), 200]


def test_a_manifest_is_written_again_byte_for_byte(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: dict[str, list[bytes]] = {}
    original = LocalStore.create

    def create(store: LocalStore, path: str, data: bytes) -> bool:
        written.setdefault(path, []).append(bytes(data))
        return original(store, path, data)

    monkeypatch.setattr(LocalStore, "create", create)
    committed(running, append(running, 100))
    running.running[-1].stop()
    running.start(running.root / "again").await_leading()
    name = f"_versions/{manifest_name(5)}"
    wait_until(lambda: len(written[name]) >= 2, f"the second {name}", state=lambda: set(written))
    assert len(set(written[name])) == 1


@pytest.mark.parametrize("policy", ["every", "latest"])
def test_later_versions_are_named_as_a_migration_left_the_others(
    running: Service, policy: str
) -> None:
    place = running.root / "tables" / "old.lance"
    lance.write_dataset(rows(1), str(place), schema=SCHEMA, enable_v2_manifest_paths=False)
    running.client.register_table("ns$old", place, policy=policy)
    running.client.append("ns$old", rows(2))
    assert (place / "_versions" / manifest_name(2, "V1")).exists()
    running.client.open("ns$old").migrate_manifest_paths_v2()  # type: ignore[no-untyped-call]
    for version in (3, 4):
        running.client.append("ns$old", rows(version))
        assert ids_of(lance.dataset(str(place))) == list(range(1, version + 1))
    assert {len(path.name) for path in (place / "_versions").glob("*.manifest")} == {
        len(manifest_name(1))
    }
    assert verify(running.log, 0, VerifyOptions(running.root)).problems == []
