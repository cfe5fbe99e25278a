"""Does a replay build from the log alone what the service built, byte for byte?"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pytest

from commitlog.adapters.memory import MemoryLog
from commitlog.errors import CorruptLog, StorageFull, WrongLog
from consumers import history
from consumers.commands.exit_codes import ExitCode, exit_code
from consumers.tools.replay import replay as module
from consumers.tools.replay.replay import ReplayOptions, replay
from consumers.tools.verify import ProblemKind, state, walk
from tests.disks import small_disk
from tests.kills import Killed, killed_after
from tests.service import Service
from tests.tampering import Copy
from tests.verified import ORDERS, filled_service, place

pytestmark = pytest.mark.usefixtures("nobody_writes")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Service:
    """A service that was stopped, with its index."""
    return filled_service(tmp_path_factory.mktemp("replayed"))


@pytest.fixture
def hidden(made: Service) -> Iterator[Path]:
    """Where the old root is now: hidden from everybody who looks where it was."""
    moved = made.root.with_name("hidden")
    made.root.rename(moved)
    yield moved
    moved.rename(made.root)


def manifests(root: Path) -> dict[str, str]:
    """Return the digest of every manifest below a root's tables, by path."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (root / "tables").rglob("_versions/*.manifest")
    }


def test_manifests_are_built_again_byte_for_byte_while_the_old_root_is_hidden(
    made: Service, hidden: Path, tmp_path: Path
) -> None:
    into = tmp_path / "new"
    result = replay(made.log, 0, ReplayOptions(into))
    assert result.is_equal
    assert (result.equal_bytes, result.equal_fields) == (0, 0), "nothing to compare with is seen"
    old, new = manifests(hidden), manifests(into)
    every = {name for name in old if "/fast-" not in name}
    assert len(every) == 8
    assert {name: new[name] for name in every} == {name: old[name] for name in every}
    # Under `latest`, when there is a file depends on time; the newest is always there.
    newest = min(name for name in old if "/fast-" in name)
    assert new[newest] == old[newest]
    extra = [name for name in new if name not in old]
    assert all("/gone-" in name for name in extra), "a dropped table's files were removed"
    assert not (into / ".replay" / "0").exists()
    metadata = [path.relative_to(hidden) for path in hidden.rglob("metadata/*.json")]
    assert len(metadata) == result.metadata_files == 2
    for path in metadata:
        assert (into / path).read_bytes() == (hidden / path).read_bytes()


@pytest.mark.parametrize("size", ["64k", "256k", "1m"])
def test_a_full_disk_is_named_and_the_next_run_builds_all(
    made: Service, tmp_path: Path, size: str
) -> None:
    with small_disk(tmp_path / "disk", size) as disk:
        into = disk / "new"
        with pytest.raises(StorageFull, match=f"mounted at {disk}") as caught:
            replay(made.log, 0, ReplayOptions(into, against=made.root, save_seconds=0.0))
        assert exit_code(caught.value) is ExitCode.MACHINE
        subprocess.run(["mount", "-o", "remount,size=16m", str(disk)], check=True)
        assert replay(made.log, 0, ReplayOptions(into, against=made.root)).is_equal
        assert manifests(into)


def test_the_index_is_built_again_row_for_row(made: Service, hidden: Path, tmp_path: Path) -> None:
    into = tmp_path / "new"
    result = replay(made.log, 0, ReplayOptions(into, against=hidden))
    assert result.problems == []
    assert result.index_rows > 50
    assert result.equal_bytes > 10
    assert result.equal_fields == 0, "the registered manifest lay outside of the root"
    for ask in (history.timeline, history.conflicts, history.writers):
        assert ask(into) == ask(hidden)
    tables = "FROM tables ORDER BY table_name"
    assert history.query(into, tables) == history.query(hidden, tables)


def test_a_registered_manifest_is_equal_in_its_fields(made: Service, tmp_path: Path) -> None:
    result = replay(made.log, 0, ReplayOptions(tmp_path / "new"))
    assert result.problems == []
    assert result.equal_fields == 1


def test_tables_that_were_rebuilt_open_beside_their_data(made: Service, tmp_path: Path) -> None:
    into = tmp_path / "new"
    replay(made.log, 0, ReplayOptions(into))
    old, new = place(made.root, "orders"), into / place(made.root, "orders").relative_to(made.root)
    for folder in ("data", "_deletions"):
        shutil.copytree(old / folder, new / folder)
    for version in range(1, lance.dataset(str(old)).version + 1):
        rebuilt = lance.dataset(str(new), version=version).to_table()
        assert rebuilt == lance.dataset(str(old), version=version).to_table()


def test_every_version_under_latest_can_be_built_too(made: Service, tmp_path: Path) -> None:
    into = tmp_path / "new"
    replay(made.log, 0, ReplayOptions(into, all_versions=True))
    found = [name for name in manifests(into) if "/fast-" in name]
    assert len(found) == 7
    old = manifests(made.root)
    assert all(manifests(into)[name] == old[name] for name in found if name in old)


def test_what_differs_is_told(made: Service, hidden: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(hidden, changed)
    listed = sorted((place(changed, "orders") / "_versions").glob("*.manifest"), reverse=True)
    listed[1].write_bytes(listed[1].read_bytes()[:-20] + bytes(20))
    listed[2].unlink()
    result = replay(made.log, 0, ReplayOptions(tmp_path / "new", against=changed))
    found = {(problem.kind, problem.table, problem.version) for problem in result.problems}
    assert found == {(ProblemKind.MANIFEST, ORDERS, 2), (ProblemKind.MANIFEST, ORDERS, 3)}
    assert not result.is_equal
    json.dumps(result.to_json())


def test_an_interrupted_replay_goes_on(
    made: Service, hidden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "RECORDS_PER_POLL", 3)
    monkeypatch.setattr(state, "SAVE_SHARE", 0)
    whole = replay(made.log, 0, ReplayOptions(tmp_path / "whole", against=hidden))
    options = ReplayOptions(tmp_path / "new", against=hidden, save_seconds=0)
    for stop_at in (7, 12, 18):
        with pytest.raises(Killed):
            replay(made.log, 0, options, on_progress=killed_after(stop_at))
    result = replay(made.log, 0, options)
    assert result.resumed_at >= 10
    assert result.state_digest == whole.state_digest
    assert manifests(tmp_path / "new") == manifests(tmp_path / "whole")
    assert result == dataclasses.replace(
        whole, resumed_at=result.resumed_at, manifests=result.manifests
    )


@pytest.mark.parametrize("step", ["_write", "_write_rows", "_count"])
def test_a_replay_that_has_read_all_does_not_read_it_again(
    made: Service, hidden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    whole = replay(made.log, 0, ReplayOptions(tmp_path / "whole", against=hidden))
    options = ReplayOptions(tmp_path / "new", against=hidden)
    finish, work = module._Replay._finish, getattr(module._Replay, step)

    def dying(*arguments: Any) -> None:
        work(*arguments)
        raise Killed

    def finishing(self: Any) -> None:
        monkeypatch.setattr(module._Replay, step, dying)
        finish(self)

    monkeypatch.setattr(module._Replay, "_finish", finishing)
    with pytest.raises(Killed):
        replay(made.log, 0, options)
    monkeypatch.setattr(module._Replay, "_finish", finish)
    monkeypatch.setattr(module._Replay, step, work)
    result = replay(made.log, 0, options)
    assert result.resumed_at == whole.outcomes
    assert manifests(tmp_path / "new") == manifests(tmp_path / "whole")
    assert result == dataclasses.replace(whole, resumed_at=result.resumed_at)


def test_a_log_that_cannot_be_followed_is_refused_by_sequence(
    made: Service, tmp_path: Path
) -> None:
    copy = Copy(made.log)
    del copy.outcomes[copy.outcome_at(5)]
    with pytest.raises(CorruptLog, match="outcome 5 cannot be followed"):
        replay(copy.log, 0, ReplayOptions(tmp_path))


def test_another_log_does_not_go_into_the_same_place(made: Service, tmp_path: Path) -> None:
    replay(made.log, 0, ReplayOptions(tmp_path))
    other = MemoryLog()
    other.create(tables_root=str(tmp_path / "tables"))
    with pytest.raises(WrongLog):
        replay(other, 0, ReplayOptions(tmp_path))
