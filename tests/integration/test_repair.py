"""Manifests that a machine lost, or a stranger deleted, are made again from the log."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import lance
import pytest

from commitlog.adapters.lance_refs import versions_with_files
from commitlog.adapters.storage import LocalStore
from commitlog.client.leader.valid_outcomes import Valid
from commitlog.codecs.manifest_file import (
    decode_manifest,
    encode_manifest,
    manifest_name,
    transaction_path_in,
)
from commitlog.core.log.chain import ChainPlace
from commitlog.errors import NoSuchVersion
from consumers.partition import session
from consumers.partition.files import offset_index, past_outcomes
from consumers.partition.files.past_outcomes import PastOutcomes
from consumers.partition.files.repair import missing_versions, restore_transactions
from consumers.tools.maintenance import table_acts
from consumers.tools.maintenance.maintenance import Maintenance
from consumers.tools.verify import VerifyOptions, verify
from tests.service import SCHEMA, Service, ids_of, rows, service


@pytest.mark.parametrize("policy", ["every", "latest"])
@pytest.mark.parametrize("damage", ["empty", "torn", "zeros", "lost"])
def test_a_head_that_was_lost_is_made_again(tmp_path: Path, policy: str, damage: str) -> None:
    with service(tmp_path) as running:
        running.client.create_table("t", SCHEMA, policy=policy)
        for number in range(4):
            running.client.append("t", rows(number))
        location = running.location("t")
        running.running.pop().stop()
        newest = sorted(location.glob("_versions/*.manifest"))
        before = [path.read_bytes() for path in newest]
        for path in newest[: 2 if policy == "every" else 1]:
            whole = path.read_bytes()
            left = {"empty": b"", "torn": whole[: len(whole) // 2], "zeros": bytes(len(whole))}
            path.unlink()
            if damage != "lost":
                path.write_bytes(left[damage])
        running.start().await_leading()
        assert ids_of(lance.dataset(location)) == [0, 1, 2, 3]
        assert newest[0].read_bytes() == before[0]
        running.client.append("t", rows(9))
        assert ids_of(running.client.open("t")) == [0, 1, 2, 3, 9]
        assert ids_of(running.client.open("t", 4)) == [0, 1, 2]
        assert not list(location.glob("_quarantine/*"))


def test_a_strangers_file_stands_for_no_version_that_latest_passed_over(tmp_path: Path) -> None:
    with service(tmp_path) as running:
        client = running.client
        client.create_table("t", SCHEMA, policy="latest")
        for number in range(5):
            client.append("t", rows(number))
        location = running.location("t")
        files = {v: location / name for v, name in versions_with_files(str(location)).items()}
        stranger = files[3].read_bytes()
        files[4].write_bytes(stranger)
        files[5].unlink()
        assert ids_of(client.open("t", 5)) == [0, 1, 2, 3], "made on what is the log's"
        assert ids_of(client.open("t", 4)) == [0, 1, 2]
        kept = location.glob("_quarantine/*")
        assert [path.read_bytes() for path in kept] == [stranger]
        assert ids_of(client.open("t", 3)) == [0, 1]


def test_versions_before_the_registered_one_that_have_no_file_are_none(tmp_path: Path) -> None:
    """Lance keeps a version that a tag names, and cleans up those after it."""
    place = tmp_path / "given.lance"
    for number in range(4):
        lance.write_dataset(rows(number), place, mode="append" if number else "create")
    files = versions_with_files(str(place))
    for version in (2, 3):
        (place / files[version]).unlink()
    with service(tmp_path) as running:
        running.client.register_table("t", str(place))
        running.client.append("t", rows(9))
        assert ids_of(running.client.open("t", 1)) == [0]
        for version in (2, 3):
            with pytest.raises(NoSuchVersion, match=f"has no version {version}"):
                running.client.open("t", version)


def look_around(running: Service) -> list[str]:
    """Have the leader look at its tables once; return what it noted."""
    committer = running.running[-1].committer
    session, checks = committer._session, committer._checks
    assert session is not None
    checks.scan(session, threading.Event())
    return [incident.message for incident in checks.incidents]


def contents(location: Path) -> dict[str, bytes]:
    files = [*(location / "_versions").iterdir(), *(location / "_transactions").iterdir()]
    return {path.name: path.read_bytes() for path in files if path.suffix != ".json"}


def test_what_a_cleanup_by_path_deletes_is_made_again_and_what_a_record_deleted_is_not(
    tmp_path: Path,
) -> None:
    with service(tmp_path) as running:
        client = running.client
        lance.write_dataset(rows(1), tmp_path / "tables" / "taken")
        for number in range(2):
            lance.write_dataset(rows(number), tmp_path / "tables" / "taken", mode="append")
        client.register_table("taken", str(tmp_path / "tables" / "taken"))
        client.create_table("t", SCHEMA)
        for number in range(6):
            client.append("t", rows(number))
            client.append("taken", rows(number))
        client.expire_versions("t", retain_versions=5)
        before = contents(running.location("t"))
        for name in ("t", "taken"):
            cleaned = lance.dataset(running.location(name)).cleanup_old_versions(timedelta(0))
            assert cleaned.old_versions
        assert len(contents(running.location("t"))) < len(before)
        assert [text for text in look_around(running) if "[3, 4, 5, 6] of t " in text]
        assert contents(running.location("t")) == before
        with pytest.raises(NoSuchVersion, match="was deleted"):
            client.open("t", 2)
        assert ids_of(client.open("t", 4)) == [0, 1, 2]
        assert [v["version"] for v in lance.dataset(running.location("taken")).versions()] == [
            *range(3, 10)
        ]
        with pytest.raises(NoSuchVersion, match="it has 3 to 9"):
            client.open("taken", 2)
        told = len(look_around(running))
        assert len(look_around(running)) == told, "nothing is left to do"


def test_a_table_of_many_years_is_looked_at_as_fast_as_a_young_one(tmp_path: Path) -> None:
    lance.write_dataset(rows(1), tmp_path / "t")
    newest = 10**12
    assert missing_versions(str(tmp_path / "t"), 1, newest, ((2, newest - 3),)) == [
        newest - 2,
        newest - 1,
        newest,
    ]


def test_a_transaction_file_that_somebody_deleted_is_written_again(tmp_path: Path) -> None:
    with service(tmp_path) as running:
        running.client.create_table("t", SCHEMA, policy="latest")
        for number in range(3):
            running.client.append("t", rows(number))
        before = contents(running.location("t"))
        for path in (running.location("t") / "_transactions").iterdir():
            path.unlink()
        assert any("transaction files" in text for text in look_around(running))
        assert contents(running.location("t")) == before
        for path in (running.location("t") / "_versions").glob("*.manifest"):
            path.unlink()
        assert ids_of(running.client.open("t", 3)) == [0, 1], "of nothing but the log"


def test_a_look_for_deleted_transactions_takes_no_new_version_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service(tmp_path) as running:
        running.client.create_table("t", SCHEMA)
        location = str(running.location("t"))
        names, listed = LocalStore.names, versions_with_files

        def names_then_commit(store: LocalStore, folder: str) -> Iterator[str]:
            found = list(names(store, folder))
            running.client.append("t", rows(1))
            return iter(found)

        def versions_then_commit(place: str) -> dict[int, str]:
            found = listed(place)
            running.client.append("t", rows(2))
            return found

        with monkeypatch.context() as patched:
            patched.setattr(LocalStore, "names", names_then_commit)
            assert restore_transactions(location, 100) == []
        with monkeypatch.context() as patched:
            patched.setattr(
                "consumers.partition.files.repair.versions_with_files", versions_then_commit
            )
            assert restore_transactions(location, 100) == []


def test_manifests_of_a_table_at_rest_are_read_once_to_look_for_their_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, whole, reads = LocalStore.read, dict[str, int](), list[str]()

    def noting(store: LocalStore, path: str) -> bytes:
        reads.append(path)
        return read(store, path)

    def look() -> tuple[list[int], int]:
        reads.clear()
        return restore_transactions(location, 100, whole), len(reads)

    with service(tmp_path) as running:
        running.client.create_table("t", SCHEMA)
        running.client.append("t", rows(1))
        location = str(running.location("t"))
        monkeypatch.setattr(LocalStore, "read", noting)
        assert [look() for _ in range(3)] == [([], 2), ([], 0), ([], 0)]
        next(running.location("t").glob("_transactions/1-*")).unlink()
        assert [look() for _ in range(3)] == [([2], 2), ([], 0), ([], 0)]
        running.client.append("t", rows(2))
        assert [look() for _ in range(2)] == [([], 3), ([], 0)]


def test_thinning_deletes_no_transaction_that_a_leader_would_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_acts, "YOUNG_MS", -60_000)
    policy = {
        "commitlog.maintain.keep-manifests": "3",
        "commitlog.maintain.small-fragments": "1000",
    }
    with service(tmp_path) as running:
        running.client.create_table("t", SCHEMA, policy="latest", properties=policy)
        for number in range(12):
            running.client.append("t", rows(number))
        location, restored = str(running.location("t")), list[int]()
        read, delete = LocalStore.read, LocalStore.delete

        def delete_then_look(store: LocalStore, path: str) -> None:
            delete(store, path)
            restored.extend(restore_transactions(location, 100))

        def read_then_delete(store: LocalStore, path: str) -> bytes:
            found = read(store, path)
            if "manifest" in path and len(list(store.names("_versions"))) > 4:
                beside = transaction_path_in(found)
                delete(store, path)
                delete(store, beside)
            return found

        monkeypatch.setattr(LocalStore, "delete", delete_then_look)
        assert [act.kind for act in Maintenance(running.client).look()] == ["thin"]
        assert restored == []
        for number in range(12, 20):
            running.client.append("t", rows(number))
        monkeypatch.setattr(LocalStore, "read", read_then_delete)
        assert restore_transactions(location, 100) == [], "thinned between a list and a look"


def test_an_old_version_that_has_its_file_is_opened_without_reading_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, from_place = list[ChainPlace](), PastOutcomes.read_from

    def noting(past: PastOutcomes, place: ChainPlace) -> Iterator[Valid]:
        read.append(place)
        return from_place(past, place)

    monkeypatch.setattr(PastOutcomes, "read_from", noting)
    with service(tmp_path) as running:
        running.client.create_table("t", SCHEMA, policy="latest")
        for number in range(4):
            running.client.append("t", rows(number))
        leading = running.running[0].committer._session
        assert leading is not None
        ids = leading.follower.machine.deduplication
        monkeypatch.setattr(ids, "get", lambda transaction_id: None)  # it was days ago
        for version in (2, 3):
            assert running.client.open("t", version=version).count_rows() == version - 1
        assert read == []
        # What has another's name is asked for.
        place = running.location("t") / "_versions"
        (place / manifest_name(4)).write_bytes((place / manifest_name(3)).read_bytes())
        assert running.client.open("t", version=4).count_rows() == 3
        assert read


@pytest.mark.parametrize("of_the_writer", ["", "later", "earlier"])
def test_a_version_whose_id_was_forgotten_is_found_by_the_time_of_the_manifest_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_the_writer: str
) -> None:
    for module in (offset_index, past_outcomes, session):
        monkeypatch.setattr(module, "EVERY", 5)
    began, from_place = list[int](), PastOutcomes.read_from

    def noting(past: PastOutcomes, place: ChainPlace) -> Iterator[Valid]:
        for valid in from_place(past, place):
            began.append(valid.outcome.sequence)
            yield valid

    with service(tmp_path) as running:
        client = running.client
        for name in ("t", "other"):
            client.create_table(name, SCHEMA, policy="latest")
        for number in range(60):
            client.append("other" if number % 4 else "t", rows(number))
        versions = running.location("t") / "_versions"
        for version in (10, 11, 12):
            (versions / manifest_name(version)).unlink()
        base = versions / manifest_name(9)
        state, message = decode_manifest(base.read_bytes())
        # A manifest that a writer staged has its writer's time.
        days = {"": 0, "later": 1, "earlier": -1}[of_the_writer]
        state.timestamp_nanos += days * 86_400 * 10**9
        base.write_bytes(encode_manifest(state, message))
        leading = running.running[0].committer._session
        assert leading is not None
        ids = leading.follower.machine.deduplication
        monkeypatch.setattr(ids, "get", lambda transaction_id: None)  # it was days ago
        monkeypatch.setattr(PastOutcomes, "read_from", noting)
        assert ids_of(client.open("t", version=12)) == list(range(0, 44, 4))
        if not of_the_writer:
            assert 1 not in began, "it isn't read from the beginning"
            assert len(began) < 30


def test_verify_names_what_is_gone_with_the_versions_that_need_it_and_what_expired(
    tmp_path: Path,
) -> None:
    with service(tmp_path) as running:
        client = running.client
        client.create_table("t", SCHEMA)
        client.append("t", rows(1, 2))
        first = set((running.location("t") / "data").iterdir())
        client.append("t", rows(3, 4))
        (gone,) = set((running.location("t") / "data").iterdir()) - first
        client.delete("t", "id = 3")
        client.delete("t", "id = 4")
        client.append("t", rows(5))
        options = VerifyOptions(running.root, contents=True)
        assert verify(running.log, 0, options).problems == []
        gone.unlink()
        newest = min((running.location("t") / "_versions").glob("*.manifest"))
        beside = decode_manifest(newest.read_bytes())[0].transaction_file
        (running.location("t") / "_transactions" / beside).unlink()
        data, transaction = verify(running.log, 0, options).problems
        assert (data.kind, data.version, data.hurts) == ("file", 3, "3 to 4")
        assert "versions 3 to 4 can't be read without it" in data.message
        assert transaction.version == 6
        assert "a leader makes it again" in transaction.message
        outcome = client.expire_versions("t", retain_versions=3)
        assert outcome is not None
        look_around(running)
        verdict = verify(running.log, 0, options)
        assert [problem.hurts for problem in verdict.problems] == ["4"]
        (expiry,) = verdict.expired.newest
        assert (verdict.expired.versions, expiry.sequence) == (3, outcome.sequence)
        assert "versions 1 to 3 of t were deleted" in str(expiry)
        client.expire_versions("t", retain_versions=2)
        assert verify(running.log, 0, options).problems == []
