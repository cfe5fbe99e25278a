"""Are old versions deleted by a record that the log can prove, whoever asks for it?"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import lance
import pytest

from commitlog.errors import InvalidTransaction, NoSuchVersion
from consumers.tools.replay import ReplayOptions, replay
from tests.operations_world import T, decided_again_alike, opened, three_fragments
from tests.service import Service, rows


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
