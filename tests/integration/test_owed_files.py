"""Does a table whose store is away leave checkpoints, starts and other tables alone?

And does it get all of its files in the end, whoever leads by then and whatever became of it.
"""

from __future__ import annotations

import errno
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import lance
import pytest

from commitlog.adapters.lance_refs import versions_with_files
from commitlog.adapters.storage import LocalStore
from commitlog.codecs.manifest_file import VERSIONS_DIRECTORY, manifest_name, parse_manifest_name
from commitlog.errors import CommitLogError, CorruptLog, OutcomeUnknown, Unavailable
from commitlog.model.operations import (
    DeleteTableVersions,
    DeregisterTable,
    DropTable,
    RenameTable,
)
from commitlog.model.records import Outcome
from commitlog.model.table import Policy
from consumers.commands.exit_codes import in_one_line
from consumers.partition import leader_checks
from consumers.partition import session as session_module
from consumers.partition.checkpoints.checkpoint import Checkpoint, Checkpoints
from consumers.partition.checkpoints.checkpoint_heads import HEAD, OWING, files_of, head_path
from consumers.partition.checkpoints.table_places import check_tables
from consumers.partition.files import owed_writer, table_writer
from consumers.partition.files.old_versions import OldVersions
from consumers.partition.files.past_outcomes import PastOutcomes
from consumers.partition.session import Session
from consumers.socket import requests
from consumers.socket.answers import Answers
from consumers.tools import upgrade
from tests.service import SCHEMA, Service, ids_of, rows
from tests.waiting import WAIT_SECONDS, wait_until


class Away:
    """The stores of some tables fail, or hang, while they are away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tables: set[str] = set()
        self.after = 0
        """Versions up to this one are stored all the same."""
        self.hangs = False
        self.back = threading.Event()
        create = LocalStore.create

        def held(store: LocalStore, path: str, data: bytes) -> bool:
            if path.startswith("_versions/") and self._is_away(store._root, path):
                if not self.hangs:
                    raise OSError(errno.EIO, "the store is away")
                assert self.back.wait(WAIT_SECONDS)
            return create(store, path, data)

        monkeypatch.setattr(LocalStore, "create", held)

    def _is_away(self, root: str, path: str) -> bool:
        manifest = parse_manifest_name(path.split("/")[-1])
        is_late = manifest is None or manifest.version > self.after
        return is_late and any(f"/{name}" in root for name in self.tables)

    def come_back(self) -> None:
        """Let all stores answer."""
        self.tables = set()
        self.back.set()


@pytest.fixture
def running(running: Service) -> Service:
    for name in ("slow", "quick"):
        running.client.create_table(name, SCHEMA)
    await_checkpoint(running, HEAD)
    return running


@pytest.fixture
def away(running: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Away]:
    made = Away(monkeypatch)
    yield made
    made.come_back()


def status(running: Service) -> dict[str, Any]:
    return dict(running.client.runtime().request(0, "status"))


def append(running: Service, table: str, *ids: int) -> int:
    """Commit rows of a table whose files may not follow; return the version."""
    location = str(running.location(table))
    operation = lance.LanceOperation.Append(lance.fragment.write_fragments(rows(*ids), location))
    ticket = running.client.submit(table, operation, read_version=1)
    version = ticket.result(WAIT_SECONDS, wait="committed").version
    assert version is not None
    return version


def heads(running: Service) -> dict[str, dict[str, Any]]:
    folder = running.running[0].committer._options.root / "checkpoints" / "0"
    found = {}
    for name in (HEAD, OWING):
        with suppress(FileNotFoundError):
            found[name] = json.loads((folder / name).read_text())
    return found


def await_checkpoint(running: Service, name: str = OWING, of: str = "") -> dict[str, Any]:
    """Wait until a checkpoint has everything that is committed by now.

    Just after a commit, it may owe files that are about to come: wait for one that owes those of
    the tables `of` alone.
    """
    sequence = status(running)["sequence"]

    def is_saved() -> bool:
        found = heads(running).get(name)
        if found is None or int(found["chain"]["sequence"]) < sequence:
            return False
        return not of or {one["table"][-1] for one in found["owed"]} == set(of.split())

    wait_until(is_saved, "a checkpoint of all that is committed", state=partial(heads, running))
    return heads(running)[name]


def take_over(running: Service) -> None:
    """Have another committer lead, on the checkpoint that is there now, as after `kill -9`."""
    last = running.running[0].committer._options.root
    root = last.parent / f"{last.name}-again"
    shutil.copytree(last / "checkpoints", root / "checkpoints")
    running.running.pop().stop()
    running.start(root).await_leading()


def await_files(running: Service) -> None:
    wait_until(lambda: not status(running)["unwritten_versions"], "the files")


def versions_of(running: Service, table: str) -> list[int]:
    return [one["version"] for one in lance.dataset(str(running.location(table))).versions()]


@pytest.mark.parametrize("hangs", [False, True], ids=["fails", "hangs"])
def test_a_store_that_is_away_keeps_no_checkpoint_from_being_saved(
    running: Service, away: Away, hangs: bool
) -> None:
    away.tables, away.hangs = {"slow"}, hangs
    for number in range(2, 5):
        assert append(running, "slow", number) == number
    for number in range(2, 8):
        running.client.append("quick", rows(number))
    saved = await_checkpoint(running, of="slow")
    assert [one["versions"] for one in saved["owed"]] == [[2, 4]]
    assert heads(running)[HEAD]["chain"]["sequence"] < saved["chain"]["sequence"]

    take_over(running)
    assert running.client.table("slow").version == 4
    found = status(running)
    assert found["unwritten_versions"] == 3
    assert found["unwritten_bytes"] == 0, "the log has them, no committer's memory"
    assert found["written_sequence"] < saved["owed"][0]["sequence"]
    running.client.append("quick", rows(8))
    assert append(running, "slow", 5) == 5
    away.come_back()
    await_files(running)
    assert versions_of(running, "slow") == [1, 2, 3, 4, 5]
    assert ids_of(lance.dataset(str(running.location("slow")))) == [2, 3, 4, 5]
    await_checkpoint(running, HEAD)
    assert OWING not in heads(running)


def test_under_latest_only_the_newest_version_gets_its_file(running: Service, away: Away) -> None:
    running.client.create_table("slow$latest", SCHEMA, policy="latest")
    await_checkpoint(running, HEAD)
    away.tables = {"latest"}
    for number in range(2, 6):
        append(running, "slow$latest", number)
    assert await_checkpoint(running, of="latest")["owed"][0]["versions"] == [2, 5]
    take_over(running)
    away.come_back()
    await_files(running)
    assert versions_of(running, "slow$latest") == [1, 5]
    assert ids_of(running.client.open("slow$latest")) == [2, 3, 4, 5]
    assert ids_of(running.client.open("slow$latest", version=3)) == [2, 3]


def test_a_store_that_goes_away_again_gets_the_rest_from_the_next_leader(
    running: Service, away: Away
) -> None:
    away.tables = {"slow"}
    for number in range(2, 7):
        append(running, "slow", number)
    await_checkpoint(running)
    take_over(running)
    away.after = 3
    wait_until(lambda: status(running)["unwritten_versions"] == 3, "two files")
    running.client.append("quick", rows(2))
    [owed] = await_checkpoint(running, of="slow")["owed"]
    assert (owed["versions"], owed["changes"], owed["base"]) == ([4, 6], 3, 3)
    take_over(running)
    append(running, "slow", 7)
    assert status(running)["unwritten_versions"] == 4
    away.come_back()
    await_files(running)
    assert versions_of(running, "slow") == [1, 2, 3, 4, 5, 6, 7]
    assert running.running[0].failure is None


def test_reading_that_takes_too_long_goes_on_from_where_it_stopped(
    running: Service, away: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.client.create_table("slow$latest", SCHEMA, policy="latest")
    await_checkpoint(running, HEAD)
    away.tables = {"latest"}
    for number in range(2, 7):
        append(running, "slow$latest", number)
    await_checkpoint(running)
    take_over(running)
    decided = PastOutcomes.decided

    def three(*args: Any) -> Iterator[Any]:
        for number, found in enumerate(decided(*args)):
            if number == 3:
                raise Unavailable("searching took too long")
            yield found

    monkeypatch.setattr(PastOutcomes, "decided", three)
    away.come_back()
    await_files(running)
    assert versions_of(running, "slow$latest") == [1, 6]
    assert ids_of(running.client.open("slow$latest")) == [2, 3, 4, 5, 6]


def test_versions_that_were_deleted_while_owed_are_read_once(
    running: Service, away: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted = DeleteTableVersions(("slow",), ((2, 7),))
    monkeypatch.setattr(owed_writer, "VERSIONS_AT_ONCE", 1)
    away.tables = {"slow"}
    session = running.running[0].committer._session
    assert session is not None
    # The first version holds it up, as if the store hung.
    monkeypatch.setattr(session.materializer.writer.deletions, "include", lambda _: False)
    for number in range(2, 10):
        append(running, "slow", number)
    running.client.submit(None, deleted).result(WAIT_SECONDS, wait="committed")
    assert await_checkpoint(running, of="slow")["owed"][0]["versions"] == [2, 9]
    read, made_by = [], OldVersions._made_by

    def counted(old: OldVersions, *args: Any) -> Iterator[Any]:
        for change, state in made_by(old, *args):
            read.append(change.version)
            yield change, state

    monkeypatch.setattr(OldVersions, "_made_by", counted)
    take_over(running)
    wait_until(lambda: 8 in read, "the first version that needs a file")
    assert read[:7] == list(range(2, 9))
    away.come_back()
    await_files(running)
    assert versions_of(running, "slow") == [1, 8, 9]


def test_versions_of_two_tables_that_one_record_made_are_owed_together(
    running: Service, away: Away
) -> None:
    client = running.client
    client.create_table("twin", SCHEMA)
    await_checkpoint(running, HEAD)
    away.tables = {"slow", "twin"}
    with client.transact(wait="committed") as both:
        for name in ("slow", "twin", "quick"):
            both.append(name, rows(2))
    await_checkpoint(running, of="slow twin")
    take_over(running)
    assert versions_of(running, "quick") == [1, 2]
    away.tables = {"slow"}
    wait_until(lambda: status(running)["unwritten_versions"] == 1, "the files of one of them")
    assert versions_of(running, "twin") == [1, 2]
    running.client.append("quick", rows(3))
    await_checkpoint(running, of="slow")
    away.come_back()
    await_files(running)
    assert versions_of(running, "slow") == [1, 2]


def test_what_is_owed_of_a_table_follows_it_through_the_log(running: Service, away: Away) -> None:
    client = running.client
    for name in ("slow$dropped", "slow$renamed", "slow$thinned"):
        client.create_table(name, SCHEMA)
    places = {name: running.location(f"slow${name}") for name in ("dropped", "renamed", "thinned")}
    await_checkpoint(running, HEAD)
    away.tables = {"dropped", "renamed", "thinned"}
    for name in away.tables:
        for number in (2, 3):
            append(running, f"slow${name}", number)
    for operation in (
        DropTable(("slow", "dropped")),
        RenameTable(("slow", "renamed"), ("slow", "called")),
        DeleteTableVersions(("slow", "thinned"), ((1, 2),)),
    ):
        client.submit(None, operation).result(WAIT_SECONDS, wait="committed").raise_for_conflict()
    saved = await_checkpoint(running, of="dropped called thinned")
    owed = {one["table"][-1]: one for one in saved["owed"]}
    found = {name: (one["versions"][1], one["end"], one["deleted"]) for name, one in owed.items()}
    assert found == {
        "dropped": (3, "dropped", []),
        "called": (3, "", []),
        "thinned": (3, "", [[1, 2]]),
    }
    take_over(running)
    away.come_back()
    await_files(running)
    there = {name: sorted(versions_with_files(str(at))) for name, at in places.items()}
    assert there == {"dropped": [1, 2, 3], "renamed": [1, 2, 3], "thinned": [3]}
    client.append("slow$called", rows(4))
    assert ids_of(client.open("slow$called")) == [2, 3, 4]


def test_a_branch_is_found_once_its_store_is_back(running: Service, away: Away) -> None:
    client = running.client
    for number in (2, 3):
        client.append("slow", rows(number))
    await_checkpoint(running, HEAD)
    away.tables = {"tree/"}
    for name in ("dev", "old"):
        clone = lance.LanceOperation.Clone(True, None, 3, str(running.location("slow")), name)
        ticket = client.submit(f"slow@{name}", clone)
        assert ticket.result(WAIT_SECONDS, wait="committed").status == "committed"
    append_to_branch = lance.fragment.write_fragments(rows(9), str(running.location("slow@dev")))
    operation = lance.LanceOperation.Append(append_to_branch)
    client.submit("slow@dev", operation, read_version=3).result(WAIT_SECONDS, wait="committed")
    dropped = client.submit(None, DropTable(("slow@old",)))
    assert dropped.result(WAIT_SECONDS, wait="committed").status == "committed"
    await_checkpoint(running)
    take_over(running)
    away.come_back()
    await_files(running)
    table = lance.dataset(str(running.location("slow")))
    assert list(table.branches.list()) == ["dev"]
    assert ids_of(table.checkout_version(("dev", None))) == [2, 3, 9]


def test_a_deregistered_table_and_a_dropped_branch_are_told_of_once_the_files_say_so(
    running: Service, away: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = running.client
    told: list[tuple[str, bool]] = []
    found = Answers.found

    def noted(answers: Answers, outcome: Outcome, *rest: Any, readable: bool) -> None:
        told.append((outcome.transaction_id, readable))
        found(answers, outcome, *rest, readable=readable)

    monkeypatch.setattr(Answers, "found", noted)
    home = running.location("slow")
    clone = lance.LanceOperation.Clone(True, None, 1, str(home), "dev")
    client.submit("slow@dev", clone).result(WAIT_SECONDS)
    away.tables = {"slow"}
    append(running, "slow@dev", 9)
    append(running, "slow", 2)
    for operation in (DropTable(("slow@dev",)), DeregisterTable(("slow",))):
        ticket = client.submit(None, operation)
        assert ticket.result(WAIT_SECONDS, wait="committed").status == "committed"
        with pytest.raises(OutcomeUnknown):
            ticket.result(0.1)
    # Who asks the next leader is told no sooner.
    await_checkpoint(running)
    take_over(running)
    asked = client.submit(None, operation, transaction_id=ticket.transaction_id)
    wait_until(lambda: (ticket.transaction_id, False) in told, "what the next leader says")
    assert not any(readable for _, readable in told)
    away.come_back()
    assert asked.result(WAIT_SECONDS).status == "committed"
    assert ids_of(lance.dataset(str(home))) == [2], "whoever has it now goes on from there"
    wait_until(lambda: not lance.dataset(str(home)).branches.list(), "the dropped branch's end")


def test_a_table_is_dropped_while_its_store_is_away_and_comes_back_with_it(
    running: Service, away: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    away.tables = {"slow"}
    append(running, "slow", 2)
    monkeypatch.setattr(requests, "FILES_SECONDS", 0.1)
    with pytest.raises(Unavailable, match=r"version 2 of slow has no manifest after 0.1 s"):
        running.client.describe(("slow",), fresh=True, readable=True)
    running.client.hold("held", "slow", timeout=WAIT_SECONDS)
    assert running.client.release("held", timeout=WAIT_SECONDS) is not None
    assert running.client.drop_table("slow") is not None
    with pytest.raises(Unavailable, match=r"version 2 of slow has no .* not written yet.* undrop"):
        running.client.undrop("slow", timeout=0.1)
    await_checkpoint(running)
    take_over(running)
    with pytest.raises(Unavailable, match=r"version 2 of slow has no .* not written yet.* undrop"):
        running.client.undrop("slow", timeout=0.1)
    away.come_back()
    running.client.undrop("slow")
    assert ids_of(running.client.open("slow")) == [2]


def test_who_asks_for_an_old_version_of_a_store_that_is_away_hears_so(
    running: Service, away: Away
) -> None:
    running.client.create_table("slow$latest", SCHEMA, policy="latest")
    for number in range(2, 4):
        append(running, "slow$latest", number)
    running.client.append("slow$latest", rows(4))
    name = f"{VERSIONS_DIRECTORY}/{manifest_name(2)}"
    (running.location("slow$latest") / name).unlink(missing_ok=True)
    away.tables = {"latest"}
    with pytest.raises(Unavailable, match=r"version 2 of slow\$latest .* store is away.* again"):
        running.client.open("slow$latest", version=2)
    away.come_back()
    assert ids_of(running.client.open("slow$latest", version=2)) == [2]


def test_a_dropped_table_whose_store_is_gone_is_given_up(
    running: Service, away: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    away.tables = {"slow"}
    append(running, "slow", 2)
    await_checkpoint(running)
    take_over(running)
    monkeypatch.setitem(table_writer.GIVEN_UP_AFTER, Policy.EVERY, 1)
    running.client.submit(None, DropTable(("slow",))).result(WAIT_SECONDS, wait="committed")
    await_files(running)
    await_checkpoint(running, HEAD)


def test_a_table_that_never_had_a_file_keeps_no_committer_from_starting(
    running: Service, away: Away
) -> None:
    away.tables = {"new"}
    with pytest.raises(CommitLogError):
        running.client.create_table("new", SCHEMA, timeout=0.2)
    wait_until(lambda: status(running)["unwritten_versions"], "the table in the log")
    shutil.rmtree(running.root / "tables" / "new", ignore_errors=True)
    await_checkpoint(running)
    assert check_tables(running.log, running.root) == 3
    take_over(running)
    away.come_back()
    await_files(running)
    assert versions_of(running, "new") == [1]


def test_a_store_that_hangs_delays_no_leader_for_long(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    back = threading.Event()

    def hangs(*_: Any, **__: Any) -> list[int]:
        assert back.wait(WAIT_SECONDS)
        return []

    monkeypatch.setattr(leader_checks, "HANGS_SECONDS", 0.1)
    monkeypatch.setattr(leader_checks, "repair", hangs)
    monkeypatch.setattr(leader_checks, "END_SECONDS", 0.1)
    running.running.pop().stop()
    try:
        assert running.start().leads.wait(20)
    finally:
        back.set()


def test_a_folder_in_the_place_of_a_head_is_named(running: Service) -> None:
    running.running.pop().stop()
    (running.root / "checkpoints" / "0" / OWING).mkdir()
    with pytest.raises(IsADirectoryError) as raised:
        Checkpoints(running.root, running.log.identity(), running.log.genesis()).load()
    assert in_one_line(raised.value).endswith(
        "/checkpoints/0/owing.json: Is a directory (move away the folder that has a file's name)"
    )


def test_a_stop_saves_what_is_owed(
    running: Service, away: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "OVERDUE", 1_000)
    away.tables = {"slow"}
    append(running, "slow", 2)
    running.running.pop().stop()
    running.start().await_leading()
    assert status(running)["unwritten_bytes"] == 0
    assert OWING in heads(running)
    away.come_back()
    await_files(running)


def test_an_older_program_continues_from_the_last_whole_checkpoint(
    running: Service, away: Away
) -> None:
    """It knows one head only, and what it saves counts for a newer program as well."""
    away.tables = {"slow"}
    append(running, "slow", 2)
    owing = await_checkpoint(running)
    folder = running.root / "checkpoints" / "0"
    running.running.pop().stop()
    whole = json.loads((folder / HEAD).read_text())
    assert whole["format"] == 3
    assert not whole.get("owed")
    assert all((folder / name).exists() for name in files_of((folder / HEAD).read_bytes()))
    genesis, identity = running.log.genesis(), running.log.identity()
    newest = Checkpoints(running.root, identity, genesis).load()
    assert newest is not None
    assert newest.chain.sequence == owing["chain"]["sequence"]
    # The older program reads the other one, and dies after it has saved, before it tidies up.
    (folder / OWING).rename(folder / "aside")
    older = Checkpoints(running.root, identity, genesis)
    before = older.load()
    assert before is not None
    assert before.owed == ()
    session = Session(running.log, genesis, older)
    session.catch_up()
    (folder / "aside").rename(folder / "kept")
    older.save(Checkpoint.of(session.follower.machine, session.follower.replica))
    session.close()
    assert not (folder / "kept").exists()
    (folder / OWING).write_text(json.dumps(owing))
    found = Checkpoints(running.root, identity, genesis).load()
    assert found is not None
    assert found.owed == ()
    assert head_path(running.root, 0) == folder / HEAD


def test_a_damaged_head_that_owes_files_is_refused(running: Service, away: Away) -> None:
    """Then the whole checkpoint beside it spares reading the log from its beginning."""
    away.tables = {"slow"}
    append(running, "slow", 2)
    await_checkpoint(running)
    running.running.pop().stop()
    path = running.root / "checkpoints" / "0" / OWING
    good = path.read_text()
    checkpoints = Checkpoints(running.root, running.log.identity(), running.log.genesis())
    for bad in (
        good.replace('"versions": [2, 2]', '"versions": [9, 9]'),
        good.replace('"format": 4', '"format": 99'),
        good[:100],
        "",
        "[]",
        '{"outcomes_position": Infinity}',
    ):
        path.write_text(bad)
        with pytest.raises(CorruptLog, match=r"owing.json .* Delete owing.json in this folder"):
            checkpoints.load()
        [found, _] = upgrade._kept(running.root, 1)
        assert "Delete owing.json in this folder" in f"{found.message}. {found.advice}"
    path.unlink()
    whole = checkpoints.load()
    assert whole is not None
    assert whole.owed == ()
    path.write_text(good)
    (path.parent / HEAD).write_text("")
    with pytest.raises(CorruptLog, match=r"head.json .* continues from owing.json"):
        checkpoints.load()
    (path.parent / HEAD).unlink()
    newest = checkpoints.load()
    assert newest is not None
    assert newest.owed
