"""Does `verify` find any damage to a log or to what follows from it, and name where it begins?"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import lance
import pytest

from commitlog import CommitLog
from commitlog.adapters.memory import MemoryLog
from commitlog.codecs.avro import decode_log_record, encode_transaction
from commitlog.core.log.attribution import PRINCIPAL_PROPERTY
from commitlog.errors import NoSuchTable
from commitlog.model.records import Outcome, Status, Transaction
from consumers.partition.checkpoints.checkpoint_heads import HEAD
from consumers.partition.checkpoints.table_places import find_roots
from consumers.partition.files.folders import DiskFolder, break_seal, encode_sealed
from consumers.tools.verify import (
    PartitionFindings,
    ProblemKind,
    VerifyOptions,
    state,
    verify,
    walk,
)
from consumers.tools.verify.files import PartitionFiles
from consumers.tools.verify.witnesses import Witness
from consumers.views.version_index import comparison
from tests.kills import Killed, killed_after
from tests.service import SCHEMA, Service, rows, service
from tests.tampering import Copy, flip, swap, with_value
from tests.unlistable import refuse_to_list
from tests.verified import ORDERS, filled_service, place

pytestmark = pytest.mark.usefixtures("nobody_writes")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Service:
    """A service that was stopped in its second term, with its index."""
    return filled_service(tmp_path_factory.mktemp("verified"))


@pytest.fixture
def copy(made: Service) -> Copy:
    return Copy(made.log)


@pytest.fixture
def root(made: Service, tmp_path: Path) -> Iterator[Path]:
    """The service's root, put back as it was after the test."""
    kept = tmp_path / "kept"
    shutil.copytree(made.root, kept, symlinks=True)
    yield made.root
    shutil.rmtree(made.root)
    shutil.copytree(kept, made.root, symlinks=True)


def log_of(copy: Copy) -> PartitionFindings:
    """Verify what is in the log alone."""
    return verify(copy.log, 0, VerifyOptions(log_only=True))


def last_sequence(copy: Copy) -> int:
    """Return how many outcomes a log has."""
    return log_of(copy).outcomes


def test_a_whole_service_is_whole(made: Service, tmp_path: Path) -> None:
    options = VerifyOptions(root=made.root, contents=True, state=tmp_path)
    verdict = verify(made.log, 0, options)
    assert verdict.problems == []
    assert verdict.is_whole
    assert verdict.outcomes == verdict.decided_again > 18
    assert (verdict.not_decided_again, verdict.undecided, verdict.terms) == (0, 0, 2)
    assert verdict.versions > 15
    assert verdict.files > 10
    assert verdict.rows > 15
    assert verdict.index_rows > 50
    kept = [one for one in tmp_path.rglob("*") if not one.is_dir()]
    assert kept == [], "what was kept for going on is gone, the index that was built too"


def test_a_dropped_outcome_is_named(made: Service) -> None:
    for sequence in range(1, last_sequence(Copy(made.log))):
        copy = Copy(made.log)
        del copy.outcomes[copy.outcome_at(sequence)]
        assert log_of(copy).first_bad_sequence == sequence


def test_an_edited_outcome_is_named(made: Service, seed: int) -> None:
    choices = random.Random(seed)
    for sequence in range(1, last_sequence(Copy(made.log)) + 1):
        copy = Copy(made.log)
        place = copy.outcome_at(sequence)
        value = copy.outcomes[place].value
        assert value is not None
        copy.outcomes[place] = flip(copy.outcomes[place], choices.randrange(len(value)))
        assert log_of(copy).first_bad_sequence == sequence


def test_swapped_outcomes_are_named(made: Service) -> None:
    for sequence in range(1, last_sequence(Copy(made.log))):
        copy = Copy(made.log)
        swap(copy.outcomes, copy.outcome_at(sequence), copy.outcome_at(sequence + 1))
        assert log_of(copy).first_bad_sequence == sequence


def test_a_dropped_edited_or_swapped_transaction_is_named(made: Service, seed: int) -> None:
    choices = random.Random(seed)
    count = last_sequence(Copy(made.log))
    for sequence in range(1, count + 1):
        dropped = Copy(made.log)
        del dropped.transactions[dropped.transaction_of(sequence)]
        assert log_of(dropped).first_bad_sequence == sequence
        if sequence > 1:  # what the log's first record says is in no hash
            edited = Copy(made.log)
            at = edited.transaction_of(sequence)
            value = edited.transactions[at].value
            assert value is not None
            # The content is the record's tail; what is before it names id, attempt and writer.
            edited.transactions[at] = flip(
                edited.transactions[at], choices.randrange(len(value) // 2, len(value))
            )
            assert log_of(edited).first_bad_sequence == sequence
        if sequence < count:
            swapped = Copy(made.log)
            one, other = swapped.transaction_of(sequence), swapped.transaction_of(sequence + 1)
            swap(swapped.transactions, one, other)
            assert log_of(swapped).first_bad_sequence == sequence


def test_a_start_of_a_term_that_is_missing_is_noticed(copy: Copy) -> None:
    starts = [n for n, r in enumerate(copy.outcomes) if (r.key or b"").startswith(b"leader/")]
    end = last_sequence(copy)
    assert (len(starts), copy.outcome_at(end) > starts[1] > copy.outcome_at(end - 1)) == (2, True)
    del copy.outcomes[starts[1]]
    verdict = log_of(copy)
    assert verdict.first_bad_sequence == end
    assert "term is missing" in verdict.problem


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Service:
    """A log of which Alice committed outcomes 2 and 3, and somebody without a name outcome 4."""
    with service(tmp_path_factory.mktemp("signed")) as running:
        with CommitLog(lambda: MemoryLog(running.cluster), principal="alice") as alice:
            alice.create_table("t", SCHEMA)
            alice.append("t", rows(1))
        running.client.append("t", rows(2))
    return running


def with_record(copied: Copy, sequence: int, **changes: Any) -> Copy:
    """Change a transaction's record and nothing else."""
    at = copied.transaction_of(sequence)
    stored = copied.transactions[at]
    record = decode_log_record(stored.key, stored.value or b"")
    assert isinstance(record, Transaction)
    copied.transactions[at] = with_value(stored, encode_transaction(replace(record, **changes)))
    return copied


@pytest.mark.parametrize("sequence", [2, 3])
@pytest.mark.parametrize("name", ["mallory", "", "Alice"])
def test_an_edited_principal_is_named(signed: Service, sequence: int, name: str) -> None:
    verdict = log_of(with_record(Copy(signed.log), sequence, principal=name))
    [problem] = verdict.problems
    assert (problem.kind, verdict.first_bad_sequence) == (ProblemKind.TRANSACTION, sequence)
    assert f"{name!r} submitted it" in problem.message
    assert "that 'alice' did" in problem.message


def test_a_principal_is_edited_with_its_content_in_vain(signed: Service) -> None:
    named = ((PRINCIPAL_PROPERTY, "mallory"),)
    for properties in (named, ()):
        edited = with_record(Copy(signed.log), 3, principal="mallory", properties=properties)
        assert log_of(edited).first_bad_sequence == 3


def test_what_names_a_principal_outside_of_its_content_only_is_counted(signed: Service) -> None:
    whole = log_of(Copy(signed.log))
    assert (whole.problems, whole.unattributed) == ([], 0)
    made_up = log_of(with_record(Copy(signed.log), 4, principal="mallory"))
    assert (made_up.problems, made_up.unattributed) == ([], 1)


def test_a_lost_tail_of_transactions_is_named(copy: Copy) -> None:
    copy.truncate(copy.transactions, copy.transaction_of(7))
    assert log_of(copy).first_bad_sequence == 7


def test_a_lost_tail_of_outcomes_is_known_from_the_index_and_the_checkpoint(
    copy: Copy, made: Service
) -> None:
    end = last_sequence(copy)
    copy.truncate(copy.outcomes, copy.outcome_at(end - 2))
    assert log_of(copy).is_whole, "by itself a log that lost its tail is whole"
    verdict = verify(copy.log, 0, VerifyOptions(root=made.root, log_only=True))
    assert verdict.first_bad_sequence == end - 2
    assert {problem.kind for problem in verdict.problems} == {ProblemKind.END}
    assert len(verdict.problems) == 2, "checkpoint and index each say so"


def test_a_head_that_was_noted_down_must_still_be_there(copy: Copy) -> None:
    whole = log_of(copy)
    noted = Witness("a note", whole.outcomes, whole.head[:12])

    def heard(copied: Copy, witness: Witness) -> PartitionFindings:
        return verify(copied.log, 0, VerifyOptions(log_only=True, expected_head=witness))

    assert heard(copy, noted).is_whole
    other = dataclasses.replace(noted, hash="0" * 12)
    assert heard(copy, other).first_bad_sequence == noted.sequence
    copy.truncate(copy.outcomes, copy.outcome_at(noted.sequence))
    assert heard(copy, noted).first_bad_sequence == noted.sequence


FORGERIES: dict[str, Callable[[Outcome], Outcome]] = {
    "a refusal becomes a commit": lambda o: (
        dataclasses.replace(o, status=Status.REJECTED, results=())
        if o.status is Status.COMMITTED and o.sequence > 12
        else o
    ),
    "a version is moved": lambda o: dataclasses.replace(
        o, results=tuple(dataclasses.replace(r, first_fragment_id=77) for r in o.results)
    ),
    "a conflict names another winner": lambda o: (
        dataclasses.replace(o, conflict=dataclasses.replace(o.conflict, version=1))
        if o.conflict
        else o
    ),
    "a time is moved": lambda o: dataclasses.replace(o, time_ms=o.time_ms + 1),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_chain_is_found_by_deciding_again(copy: Copy, forgery: str) -> None:
    first: list[int] = []

    def change(outcome: Outcome) -> Outcome:
        changed = FORGERIES[forgery](outcome)
        if changed != outcome:
            first.append(outcome.sequence)
        return changed

    copy.chain_again(change)
    assert verify(copy.log, 0, VerifyOptions(chain_only=True)).is_whole, "all hashes fit"
    verdict = log_of(copy)
    assert verdict.first_bad_sequence == first[0]
    assert verdict.problems[0].kind is ProblemKind.DECISION


def files_of(
    made: Service, copy: Copy, **options: object
) -> list[tuple[ProblemKind, str, int | None]]:
    """Verify the tables; return what is wrong with them."""
    found = verify(copy.log, 0, VerifyOptions(**options)).problems  # type: ignore[arg-type]
    return [(problem.kind, problem.table, problem.version) for problem in found]


def test_changed_and_missing_manifests_are_found(root: Path, copy: Copy, made: Service) -> None:
    listed = sorted((place(root, "orders") / "_versions").glob("*.manifest"), reverse=True)
    changed = bytearray(listed[2].read_bytes())
    changed[40] ^= 1
    listed[2].write_bytes(bytes(changed))
    listed[4].unlink()
    newest = min((place(root, "fast") / "_versions").glob("*.manifest"))
    newest.unlink()
    found = files_of(made, copy)
    assert (ProblemKind.MANIFEST, ORDERS, 3) in found
    assert (ProblemKind.MANIFEST, ORDERS, 5) in found
    assert [one for one in found if one[1] == "fast"] == [(ProblemKind.MANIFEST, "fast", 7)]
    assert len(found) == 3
    assert files_of(made, copy, table="fast") == [(ProblemKind.MANIFEST, "fast", 7)]


def test_iceberg_metadata_is_compared(root: Path, copy: Copy, made: Service) -> None:
    newest = max((root / "tables" / "shop.ns" / "ice" / "metadata").glob("*.json"))
    newest.write_text(newest.read_text().replace('"step":"1"', '"step":"2"'))
    assert files_of(made, copy) == [(ProblemKind.MANIFEST, "shop$ice", None)]
    newest.unlink()
    assert files_of(made, copy, table="shop$ice") == [(ProblemKind.MANIFEST, "shop$ice", None)]
    assert files_of(made, copy, table="fast") == []


def test_a_version_that_the_log_does_not_know_is_found(
    root: Path, copy: Copy, made: Service
) -> None:
    lance.write_dataset(rows(666), str(place(root, "orders")), mode="append")
    [(kind, table, version)] = files_of(made, copy)
    assert (kind, table) == (ProblemKind.BYPASS, ORDERS)
    assert version == len(list((place(root, "orders") / "_versions").glob("*.manifest")))


@pytest.mark.parametrize("table", [ORDERS, "fast"])
def test_a_table_whose_manifests_cannot_be_listed_holds_up_no_other(
    copy: Copy, made: Service, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    folder = f"{place(made.root, table.removeprefix('shop$'))}/_versions"
    refuse_to_list(monkeypatch, folder, errno.EIO)
    verdict = verify(copy.log, 0, VerifyOptions(root=made.root))
    assert verdict.decided_again == verdict.outcomes
    assert {one.table for one in verdict.problems} == {table}
    assert {one.kind for one in verdict.problems} == {ProblemKind.FILE}
    assert f"Input/output error: '{folder}'" in verdict.problems[-1].message


def test_a_table_that_cannot_be_looked_at_a_second_time_holds_up_no_other(
    root: Path, copy: Copy, made: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (place(root, "orders") / "_versions").glob("*.manifest"):
        path.unlink()
    stat, listed_again = os.stat, PartitionFiles.list_again

    def refusing(path: Any, **options: Any) -> os.stat_result:
        if "/orders-" in str(path):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return stat(path, **options)

    def then_refusing(files: PartitionFiles) -> None:
        listed_again(files)
        monkeypatch.setattr(os, "stat", refusing)

    monkeypatch.setattr(PartitionFiles, "list_again", then_refusing)
    verdict = verify(copy.log, 0, VerifyOptions())
    assert {one.table for one in verdict.problems} == {ORDERS}
    assert "Stale file handle" in verdict.problems[-1].message


def test_data_and_deletion_files_are_looked_for(root: Path, copy: Copy, made: Service) -> None:
    orders = place(root, "orders")
    data = sorted((orders / "data").glob("*.lance"))
    data[0].unlink()
    data[1].write_bytes(data[1].read_bytes()[:-1])
    deleted = sorted((orders / "_deletions").iterdir())
    for path in deleted:
        path.write_bytes(b"nothing")
    found = verify(copy.log, 0, VerifyOptions())
    assert {problem.kind for problem in found.problems} == {ProblemKind.FILE}
    assert len(found.problems) >= 3
    assert found.is_log_whole
    assert found.not_decided_again == 4, "no delete without its vector, nor who lost to one"


def test_rows_that_cannot_be_read_are_found(root: Path, copy: Copy, made: Service) -> None:
    data = sorted((made.root / "elsewhere" / "data").iterdir())
    damaged = bytearray(data[0].read_bytes())
    damaged[: len(damaged)] = bytes(len(damaged))
    data[0].write_bytes(bytes(damaged))
    assert files_of(made, copy) == [], "the size is right"
    assert (ProblemKind.ROWS, "taken", 2) in files_of(made, copy, contents=True)


def test_a_table_that_is_not_there_is_told(copy: Copy) -> None:
    with pytest.raises(NoSuchTable, match="nowhere"):
        verify(copy.log, 0, VerifyOptions(table="nowhere"))


def test_an_index_that_goes_on_while_it_is_compared_has_no_other_rows(
    copy: Copy, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of tables change in place: those of a later snapshot aren't the log's of before."""
    end = last_sequence(copy) - 2
    copy.truncate(copy.outcomes, copy.outcome_at(end + 1))
    monkeypatch.setattr(comparison, "position", lambda root, partition: (end, b"", -1))
    verdict = verify(copy.log, 0, VerifyOptions(root=root, state=tmp_path / "state"))
    assert verdict.outcomes == end
    assert verdict.index_rows > 50
    assert ProblemKind.INDEX not in {problem.kind for problem in verdict.problems}


def test_other_rows_in_the_index_are_found(
    root: Path, copy: Copy, made: Service, tmp_path: Path
) -> None:
    with duckdb.connect(str(root / "index.duckdb")) as connection:
        connection.execute("UPDATE hot.operations SET rows_added = 99 WHERE sequence = 6")
    verdict = verify(copy.log, 0, VerifyOptions(root=root, state=tmp_path / "state"))
    assert [(p.kind, p.sequence) for p in verdict.problems] == [(ProblemKind.INDEX, 6)]
    assert verdict.is_log_whole


@pytest.mark.parametrize("harm", ["cut", "flipped", "gone", "head", "partition", "closed"])
def test_a_checkpoint_that_no_committer_could_continue_from_is_found(
    made: Service, root: Path, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the log is verified all the same: what is damaged follows from it."""
    folder = root / "checkpoints" / "0"
    head, part = folder / HEAD, max(folder.glob("*.part"))
    before = part.read_bytes()
    told = f"{part.name} is damaged. Delete this folder"
    if harm == "cut":
        part.write_bytes(before[:-1])
    elif harm == "flipped":
        part.write_bytes(bytes([before[0] ^ 1]) + before[1:])
    elif harm == "gone":
        part.unlink()
        told = f"{part.name} is missing. Delete this folder"
    elif harm == "head":
        head.write_bytes(head.read_bytes()[:-2])
        told = f"{HEAD} is not JSON"
    elif harm == "partition":
        body = json.loads(head.read_bytes())
        assert break_seal(body)
        body["identity"]["partition"] = 1
        body["chain"]["sequence"] += 1
        head.write_bytes(encode_sealed(body))
        told = f"{HEAD} is of partition 1. Delete this folder"
    else:

        def closed(folder: DiskFolder, name: str) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)

        monkeypatch.setattr(DiskFolder, "read", closed)
        told = "Input/output error.*system's log"
    if harm not in ("closed", "partition"):
        find_roots(made.log, root, needs_checkpoint=False)
    verdict = verify(made.log, 0, VerifyOptions(root=root))
    assert (verdict.outcomes, verdict.is_log_whole) == (verdict.decided_again, True)
    assert [problem.kind for problem in verdict.problems] == [ProblemKind.CHECKPOINT]
    assert re.search(told, verdict.problem)
    assert verify(made.log, 0, VerifyOptions(root=root, log_only=True)).is_whole


def test_an_index_that_another_version_put_into_other_words_is_the_same(
    root: Path, copy: Copy, made: Service, tmp_path: Path
) -> None:
    with duckdb.connect(str(root / "index.duckdb")) as connection:
        for relation in ("transactions", "operations", "collisions"):
            connection.execute(f"UPDATE hot.{relation} SET message = 'in other words'")
        changed = connection.execute("UPDATE hot.collisions SET advice = 'do better'").fetchone()
        assert changed is not None
        assert changed[0]
    verdict = verify(copy.log, 0, VerifyOptions(root=root, state=tmp_path / "state"))
    assert not verdict.problems


def save_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a position saved every few records."""
    monkeypatch.setattr(walk, "RECORDS_PER_POLL", 4)
    monkeypatch.setattr(state, "SAVE_SHARE", 0)


def test_an_interrupted_run_goes_on_and_comes_to_the_same(
    made: Service, copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_often(monkeypatch)
    options = VerifyOptions(root=made.root, contents=True, state=tmp_path, save_seconds=0)
    whole = verify(copy.log, 0, dataclasses.replace(options, state=tmp_path / "other"))
    for stop_at in (6, 11, 17):
        with pytest.raises(Killed):
            verify(copy.log, 0, options, on_progress=killed_after(stop_at))
    continued = verify(copy.log, 0, options)
    assert continued.resumed_at >= 10
    # What it looked at before it may have been looked at again.
    assert continued.files >= whole.files
    assert continued == dataclasses.replace(
        whole, resumed_at=continued.resumed_at, files=continued.files
    )
    again = verify(copy.log, 0, options)
    assert again.resumed_at == 0, "what came to its end begins anew"


def test_damage_behind_an_interruption_is_still_told(
    made: Service, copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_often(monkeypatch)
    copy.chain_again(FORGERIES["a version is moved"])
    options = VerifyOptions(log_only=True, state=tmp_path, save_seconds=0)

    with pytest.raises(Killed):
        verify(copy.log, 0, options, on_progress=killed_after(16))
    verdict = verify(copy.log, 0, options)
    assert verdict.resumed_at
    assert verdict.first_bad_sequence is not None
    assert verdict.first_bad_sequence < verdict.resumed_at
