"""Are old versions deleted by a record that the log can prove, whoever asks for it?"""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock

import lance
import pytest

from commitlog.adapters.memory import MemoryLog
from commitlog.client.leader.runtime import Runtime
from commitlog.errors import InvalidTransaction, NoSuchVersion
from commitlog.model.maintenance_policy import PREFIX
from commitlog.model.table import TableId
from consumers.tools.maintenance import maintenance as maintenance_module
from consumers.tools.maintenance.cleaning import clean
from consumers.tools.maintenance.maintenance import Maintenance
from consumers.tools.replay.replay import ReplayOptions, replay
from consumers.tools.verify import VerifyOptions, files, verify
from consumers.tools.verify.walk import Walk
from tests.operations_world import T, decided_again_alike, opened, three_fragments
from tests.service import SCHEMA, Service, rows, service


def files_of_versions(running: Service) -> list[int]:
    return sorted(version["version"] for version in opened(running).versions())


def test_versions_behind_the_newest_ones_expire(tmp_path: Path) -> None:
    with three_fragments(tmp_path / "root", stable_row_ids=False) as made:
        outcome = made.client.expire_versions(T, retain_versions=2)
        assert outcome is not None
        assert files_of_versions(made) == [3, 4]
        assert made.client.open(T).count_rows() == 12
        record = f"by record {outcome.sequence} .{outcome.transaction_id}."
        with pytest.raises(NoSuchVersion, match=record):
            made.client.open(T, 2)
        assert made.client.expire_versions(T, retain_versions=2) is None
        made.client.append(T, rows(20))
        decided_again_alike(made)
        rebuilt = replay(made.log, 0, ReplayOptions(into=tmp_path / "rebuilt"))
        assert (rebuilt.expired.versions, rebuilt.expired.records) == (2, 1)
        [expiry] = rebuilt.expired.newest
        assert str(expiry).startswith(f"versions 1 to 2 of {T} were deleted")
        assert str(expiry).endswith(f"UTC, by record {outcome.sequence}")


def test_what_is_young_or_tagged_stays(tmp_path: Path) -> None:
    with three_fragments(tmp_path / "root", stable_row_ids=False) as made:
        assert made.client.expire_versions(T) is None, "two weeks"
        assert made.client.expire_versions(T, older_than=timedelta(hours=1)) is None
        opened(made).tags.create("kept", 2)
        made.client.expire_versions(T, older_than=timedelta(0), retain_versions=1)
        assert files_of_versions(made) == [2, 4]
        assert lance.dataset(str(made.location(T)), version="kept").count_rows() == 4


def test_the_cleanup_of_an_opened_dataset_is_a_record_of_the_log(tmp_path: Path) -> None:
    with three_fragments(tmp_path / "root", stable_row_ids=False) as made:
        dataset = made.client.open(T)
        removed = dataset.cleanup_old_versions(
            retain_versions=1, error_if_tagged_old_versions=False
        )
        assert (removed.old_versions, removed.data_files_removed) == (3, 0)
        assert files_of_versions(made) == [4]
        assert made.client.table(T).deleted == ((1, 3),)
        decided_again_alike(made)
        with pytest.raises(InvalidTransaction, match="delete_unverified"):
            dataset.cleanup_old_versions(timedelta(days=1), delete_unverified=True)


def test_a_table_cannot_lose_its_newest_version(tmp_path: Path) -> None:
    with (
        three_fragments(tmp_path / "root", stable_row_ids=False) as made,
        pytest.raises(InvalidTransaction, match="at least 1"),
    ):
        made.client.expire_versions(T, retain_versions=0)


@pytest.mark.parametrize(("policy", "churned"), [("latest", 1), ("every", 1), ("latest", 100)])
def test_verify_reads_on_before_it_misses_what_expires_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, churned: int
) -> None:
    monkeypatch.setattr(files, "SETTLE_SECONDS", 0.0)
    extend, left = Walk.extend, churned
    with service(tmp_path / "root") as made:
        client = made.client
        client.create_table(T, SCHEMA, policy=policy)
        client.append(T, rows(1))

        def beside(walk: Walk) -> None:
            """Between the end that verify reads to and the files, all that it read of goes."""
            nonlocal left
            left -= 1
            if left >= 0:
                client.append(T, rows(2))
            extend(walk)
            if left >= 0:
                client.delete(T, "id >= 0").raise_for_conflict()
                client.append(T, rows(3))
                client.expire_versions(T, retain_versions=1)
                clean(MemoryLog(made.cluster), T, 0, client)

        monkeypatch.setattr(Walk, "extend", beside)
        options = VerifyOptions(root=tmp_path / "root", contents=True)
        log = MemoryLog(made.cluster)
        assert verify(log, 0, options).problems == []
        assert left <= churned - 2, "it looked again"
        for path in (made.location(T) / "data").iterdir():
            path.unlink()
        left = 0
        found = verify(log, 0, options).problems
        assert [one.kind.value for one in found] == ["file", "rows"]


def test_versions_of_a_table_at_rest_expire_once_they_are_old_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = 0.0
    clock = Mock(wraps=time)
    clock.monotonic.side_effect = lambda: time.monotonic() + later
    with service(tmp_path / "root") as made:
        made.client.create_table(T, SCHEMA, properties={PREFIX + "expire-days": "30"})
        for number in range(3):
            made.client.append(T, rows(number))
        right = Runtime.leader_time_ms

        def leader_time_ms(runtime: Runtime, table: TableId) -> int:
            return right(runtime, table) + int(later * 1000)

        monkeypatch.setattr(Runtime, "leader_time_ms", leader_time_ms)
        monkeypatch.setattr(maintenance_module, "time", clock)
        maintenance = Maintenance(made.client)
        assert maintenance.look() == []
        later = 31 * 86_400.0
        assert [act.kind for act in maintenance.look()] == ["expire"]
        assert made.client.table(T).deleted == ((1, 3),)
        looks = Mock(wraps=maintenance._acts.due)
        monkeypatch.setattr(maintenance._acts, "due", looks)
        assert maintenance.look() == []
        assert maintenance.look() == []
        assert looks.call_count == 1  # after what it did itself, and then no more
