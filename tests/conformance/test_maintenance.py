"""Does maintenance keep tables fast, change no row, and leave alone what it should?"""

from __future__ import annotations

import threading
import traceback
import uuid
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from commitlog import CommitLog
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.storage import LocalStore
from commitlog.client.new_columns import NewColumns
from commitlog.client.upkeep import rewrite_here
from commitlog.core.tables.lance_tables import is_in
from commitlog.errors import CommitLogError, InvalidSettings
from commitlog.model.maintenance_policy import PREFIX, MaintenancePolicy
from commitlog.model.names import REASON
from commitlog.model.operations import AlterProperties, CreateNamespace
from commitlog.model.records import Transaction
from consumers.tools.maintenance import maintenance as maintenance_module
from consumers.tools.maintenance import removals, table_acts
from consumers.tools.maintenance.cleaning import clean
from consumers.tools.maintenance.maintenance import Maintenance
from consumers.tools.maintenance.maintenance_policy import parse_defaults
from consumers.tools.maintenance.removals import HISTORY_LEAST
from consumers.tools.verify import VerifyOptions, verify
from tests.kills import Kills
from tests.operations_world import T, decided_again_alike, opened
from tests.service import SCHEMA, Service, rows, service
from tests.waiting import meanwhile, wait_until

pytestmark = pytest.mark.timeout(300)

ACTS = {"_compaction", "_optimizing", "_expiry", "_thinning"}


def properties_of(policy: Mapping[str, object]) -> dict[str, str]:
    return {PREFIX + name.replace("_", "-"): str(value) for name, value in policy.items()}


def kinds(maintenance: Maintenance) -> list[str]:
    return [act.kind for act in maintenance.look()]


def ids(running: Service) -> list[int]:
    return sorted(opened(running).to_table()["id"].to_pylist())


def test_small_fragments_are_merged_once_there_are_enough_of_them(tmp_path: Path) -> None:
    with service(tmp_path / "root") as made:
        made.client.create_table(T, SCHEMA)
        maintenance = Maintenance(made.client)
        for number in range(15):
            made.client.append(T, rows(number))
        assert kinds(maintenance) == []
        made.client.append(T, rows(15))
        assert [act.kind for act in maintenance.look(dry_run=True)] == ["compact"]
        assert len(opened(made).get_fragments()) == 16
        acts = maintenance.look()
        assert [act.reason for act in acts] == ["16 fragments have fewer than 4,096 rows"]
        assert len(opened(made).get_fragments()) == 1
        assert ids(made) == list(range(16))
        assert maintenance.look() == []
        events = made.client.subscribe(T, "beginning", idle_seconds=1)
        properties = [dict(event.transaction.properties) for event in events if event.transaction]
        assert [given[REASON] for given in properties if REASON in given] == [acts[0].reason]
        decided_again_alike(made)


def test_no_commit_of_a_compaction_replaces_more_fragments_than_others_can_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_acts, "FRAGMENTS_AT_ONCE", 8)
    with service(tmp_path / "root") as made:
        made.client.create_table(T, SCHEMA, properties=properties_of({"target_rows": 5}))
        for number in range(40):
            made.client.append(T, rows(number))
        results: list[str] = []
        maintenance = Maintenance(made.client, on_act=lambda act, result: results.append(result))
        maintenance.look()
        assert ["40 fragments became 8" in result for result in results] == [True]
        sizes = [len(made.client.open(T, version=v).get_fragments()) for v in range(41, 50)]
        assert sizes[::2] == [40, 32, 24, 16, 8], "ten become two; a group is replaced as a whole"
        assert ids(made) == list(range(40))


def test_a_leader_that_is_too_busy_to_measure_holds_up_no_maintenance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service(tmp_path / "root") as made:
        made.client.create_table(T, SCHEMA)
        runtime = made.client.runtime()
        ask = runtime.request

        def without_measures(partition: int, method: str, **params: Any) -> Any:
            answer = ask(partition, method, **params)
            if method == "status":
                answer.pop("measures", None)
            return answer

        monkeypatch.setattr(runtime, "request", without_measures)
        assert Maintenance(made.client).look() == []


def test_work_that_was_done_for_a_table_is_not_committed_to_its_successor(tmp_path: Path) -> None:
    with service(tmp_path / "root") as made:
        made.client.create_table(T, SCHEMA)
        for number in range(4):
            made.client.append(T, rows(number))

        def replaced(info: Any, dataset: Any, tasks: Any, deadline: float) -> Any:
            results = rewrite_here(info, dataset, tasks, deadline)
            made.client.drop_table(T)
            made.client.create_table(T, SCHEMA)
            made.client.append(T, rows(9))
            return results

        with pytest.raises(CommitLogError, match="incarnation|dropped"):
            made.client.compact(T, rewrite=replaced)
        assert made.client.table(T).version == 2
        assert ids(made) == [9]


def test_a_table_inherits_its_policy_from_its_namespaces_and_from_the_log(tmp_path: Path) -> None:
    def made_in(made: Service, namespace: tuple[str, ...], **policy: object) -> None:
        operation = CreateNamespace(namespace, tuple(properties_of(policy).items()))
        transaction = Transaction(str(uuid.uuid4()), (operation,))
        made.client.runtime().submit(transaction, id_is_new=True).result(60)

    with service(tmp_path / "root") as made:
        made_in(made, ("a",), small_fragments=2)
        made_in(made, ("a", "b"), small_fragments=4)
        own = properties_of({"small_fragments": 3})
        for name in ("t", "a$t", "a$b$t"):
            made.client.create_table(name, SCHEMA)
        made.client.create_table("a$b$own", SCHEMA, properties=own)
        maintenance = Maintenance(made.client, defaults=parse_defaults(["small-fragments=5"]))
        maintenance.look()
        found = {
            info.name: maintenance._policies.of(info).small_fragments
            for info in made.client.tables()
        }
        assert found == {"t": 5, "a$t": 2, "a$b$t": 4, "a$b$own": 3}
    for wrong, why in (("mode", "NAME=VALUE"), ("nix=1", "unknown"), ("mode=x", "it is on or off")):
        with pytest.raises(InvalidSettings, match=why):
            parse_defaults([wrong])


def test_dead_rows_are_dropped(tmp_path: Path) -> None:
    with service(tmp_path / "root") as made:
        made.client.create_table(T, SCHEMA)
        made.client.append(T, rows(*range(100)))
        made.client.delete(T, "id < 10")
        assert kinds(Maintenance(made.client)) == []
        made.client.delete(T, "id < 30")
        assert kinds(Maintenance(made.client)) == ["compact"]
        assert [f.num_deletions for f in opened(made).get_fragments()] == [0]
        assert ids(made) == list(range(30, 100))


def test_indices_are_brought_up_to_date(tmp_path: Path) -> None:
    with service(tmp_path / "root") as made:
        made.client.create_table(T, SCHEMA)
        made.client.append(T, rows(*range(100)))
        made.client.create_index(T, "id", "BTREE", name="by_id")
        made.client.append(T, rows(*range(100, 1_000)))
        assert kinds(Maintenance(made.client)) == []
        made.client.append(T, rows(*range(1_000, 1_200)))
        assert kinds(Maintenance(made.client)) == ["optimize"]
        assert opened(made).stats.index_stats("by_id")["num_unindexed_rows"] == 0


def test_manifests_of_a_latest_table_are_thinned_and_each_version_still_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_acts, "YOUNG_MS", -60_000)
    properties = properties_of({"keep_manifests": 5, "small_fragments": 1000})
    with service(tmp_path / "root") as made:
        made.client.create_table(T, SCHEMA, policy="latest", properties=properties)
        for number in range(12):
            made.client.append(T, rows(number))
        opened(made).tags.create("kept", 2)
        found = [act.kind for act in Maintenance(made.client).look()]
        assert found == ["thin"]
        left = sorted(version["version"] for version in opened(made).versions())
        assert len(left) == 6
        assert left[0] == 2, "the tagged one"
        assert len(list((made.location(T) / "_transactions").iterdir())) == 6
        assert made.client.open(T, 4).count_rows() == 3
        assert made.client.open(T, 1).count_rows() == 0, "older than all that are left"
        assert ids(made) == list(range(12))
        decided_again_alike(made)


def test_fewer_manifests_stay_if_they_take_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_acts, "MANIFEST_SHARE", 1)
    monkeypatch.setattr(table_acts, "MANIFEST_BYTES_LEAST", 1)
    monkeypatch.setattr(table_acts, "YOUNG_MS", 3_600_000)
    properties = properties_of({"small_fragments": 20})
    with service(tmp_path / "root") as made:
        made.client.create_table(T, SCHEMA, policy="latest", properties=properties)
        for number in range(20):
            made.client.append(T, rows(number))
        maintenance = Maintenance(made.client)
        acts = maintenance.look()
        assert [act.kind for act in acts] == ["compact"], "the others are too young"
        assert maintenance._seen == {}, "they will be older"
        monkeypatch.setattr(table_acts, "YOUNG_MS", -60_000)
        acts = maintenance.look()
        # The newest one names one fragment, those before it up to 20.
        assert [act.kind for act in acts] == ["thin"]
        left = [path.name for path in (made.location(T) / "_versions").glob("*.manifest")]
        # One more if an hour was full just now: its last version stays.
        assert len(left) in (1, 2)
        assert maintenance.look() == []
        assert maintenance._seen
        assert made.client.open(T, 9).count_rows() == 8
        decided_again_alike(made)


def test_history_is_thinned_out_once_it_takes_too_much(tmp_path: Path) -> None:
    properties = properties_of({"history_hours": 0, "history_versions": 3, "small_fragments": 100})
    with service(tmp_path / "root") as made:
        client = made.client
        for name, share in (("little", 1_000), ("never", 0), (T, 2)):
            own = {**properties, **properties_of({"history_share": share})}
            client.create_table(name, SCHEMA, properties=own)
            for number in range(6):
                client.append(name, rows(*range(number * 1_000, number * 1_000 + 1_000)))
                client.delete(name, f"id < {number * 1_000}")
        opened(made).tags.create("kept", 4)
        newest, tagged = client.table(T).version, client.open(T, 4).count_rows()
        maintenance = Maintenance(client, open_log=lambda: MemoryLog(made.cluster))
        [due] = maintenance.look(dry_run=True)
        assert (due.table, due.kind) == (T, "expire")
        assert due.reason.startswith("only older versions need ")
        [done] = maintenance.look()
        assert done.reason.partition(" bytes")[0] == due.reason.partition(" bytes")[0]
        info = client.table(T)
        stand = {v for v in range(1, newest + 1) if not is_in(v, info.deleted)}
        assert {4, newest - 2, newest - 1, newest} <= stand
        assert len(stand) <= 5, "the last version before an hour was full, if it was just now"
        assert client.open(T, 4).count_rows() == tagged
        assert [act.kind for act in maintenance.look()] == []
        decided_again_alike(made)


def test_of_a_table_of_few_bytes_the_newest_versions_take_no_more_than_their_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removals, "HISTORY_BYTES_LEAST", 0)
    with service(tmp_path / "root") as made:
        made.client.create_table(T, SCHEMA, properties=properties_of({"history_hours": 0}))
        for number in range(40):
            made.client.append(T, rows(number))
        made.client.compact(T)
        newest = made.client.table(T).version
        assert "expire" in kinds(Maintenance(made.client, open_log=lambda: MemoryLog(made.cluster)))
        info = made.client.table(T)
        stand = {v for v in range(1, newest + 1) if not is_in(v, info.deleted)}
        assert set(range(newest - HISTORY_LEAST + 1, newest + 1)) <= stand
        assert len(stand) <= HISTORY_LEAST + 2, "the last ones before an hour was full, if it was"
        decided_again_alike(made)


def test_a_busy_table_is_looked_at_early_and_waits_for_no_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance_module, "BUSY_VERSIONS", 16)
    monkeypatch.setattr(maintenance_module, "GLANCE_SECONDS", 0.05)
    stop, removing, acts = threading.Event(), threading.Event(), list[str]()
    with service(tmp_path / "root") as made:

        def open_log() -> MemoryLog:
            removing.set()
            assert stop.wait(300)
            return MemoryLog(made.cluster)

        made.client.create_table(T, SCHEMA)
        maintenance = Maintenance(
            made.client, open_log=open_log, on_act=lambda act, _: acts.append(act.kind)
        )
        with meanwhile(lambda stop: maintenance.run(stop, 3_600.0), stop):
            assert removing.wait(300)
            wait_until(lambda: T in maintenance._looked, "the first look to end")
            for number in range(20):
                made.client.append(T, rows(number))
            wait_until(lambda: acts, "the compaction")
        assert acts[0] == "compact"


def test_a_table_whose_store_hangs_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hangs, acts = threading.Event(), list[str]()
    due = table_acts.TableActs.due

    def hanging(told: Any, info: Any, policy: Any) -> Any:
        if info.name == "ns$a":
            assert hangs.wait(300)
        return due(told, info, policy)

    monkeypatch.setattr(table_acts.TableActs, "due", hanging)
    monkeypatch.setattr(maintenance_module, "LOOK_SECONDS", 0.5)
    with service(tmp_path / "root") as made:
        for table in ("ns$a", "ns$b"):
            made.client.create_table(table, SCHEMA)
            for number in range(16):
                made.client.append(table, rows(number))
        maintenance = Maintenance(
            made.client, on_act=lambda act, _: acts.append(f"{act.kind} {act.table}")
        )
        with meanwhile(lambda stop: maintenance.run(stop, 0.2)):
            wait_until(lambda: acts == ["compact ns$b"], "the other table's compaction")
            wait_until(lambda: "an earlier turn of it hasn't ended" in caplog.text, "its next turn")
            hangs.set()
            wait_until(lambda: "compact ns$a" in acts, "its own compaction")
        assert acts == ["compact ns$b", "compact ns$a"]
        assert len(made.client.open("ns$a").get_fragments()) == 1


def test_a_cleanup_by_path_is_refused_and_the_guard_moves_with_what_expires(
    tmp_path: Path,
) -> None:
    with service(tmp_path / "root") as made:
        made.client.create_table(T, SCHEMA)
        for number in range(4):
            made.client.append(T, rows(number))
        maintenance = Maintenance(made.client)
        for oldest in (1, 4):
            maintenance.look()
            for arguments in ({"older_than": timedelta(0)}, {"retain_versions": 1}):
                with pytest.raises(OSError, match=f'"kept-by-commitlog": {oldest}'):
                    opened(made).cleanup_old_versions(**arguments)
            assert min(v["version"] for v in opened(made).versions()) == oldest
            made.client.expire_versions(T, retain_versions=2)
            assert made.client.table(T).deleted == ((1, 3),), "the guard keeps nothing from the log"
        turned_off = AlterProperties(("ns", "t"), upserts=(("commitlog.maintain.guard", "off"),))
        made.client.submit(None, turned_off).result().raise_for_conflict()
        made.client.append(T, rows(9))
        maintenance.look()
        assert opened(made).tags.list() == {}


def test_versions_expire_by_policy(tmp_path: Path) -> None:
    with service(tmp_path / "root") as made:
        made.client.create_table(T, SCHEMA, properties=properties_of({"retain_versions": 2}))
        for number in range(5):
            made.client.append(T, rows(number))
        assert kinds(Maintenance(made.client)) == ["expire"]
        assert made.client.table(T).deleted == ((1, 4),)
        assert kinds(Maintenance(made.client)) == []


def test_the_guard_is_set_though_the_version_that_was_listed_has_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy table goes on while it is compacted."""
    with service(tmp_path / "root") as made:
        made.client.create_table(T, SCHEMA, properties=properties_of({"retain_versions": 2}))
        listed = made.client.tables()
        for number in range(5):
            made.client.append(T, rows(number))
        monkeypatch.setattr(CommitLog, "tables", lambda _: listed)
        assert kinds(Maintenance(made.client)) == ["expire"]
        assert opened(made).tags.list()["kept-by-commitlog"]["version"] == 5


def test_killed_at_every_step_of_each_act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = {
        "small_fragments": 4, "keep_manifests": 3, "retain_versions": 9, "unindexed_share": 0.001
    }  # fmt: skip
    changes = [(LocalStore, name) for name in ("write", "create", "move", "delete", "prune")]
    kills, killed_in, number = Kills(monkeypatch, (CommitLog, "submit"), *changes), set(), 0
    monkeypatch.setattr(table_acts, "YOUNG_MS", -60_000)
    with service(tmp_path / "root") as made:
        client = made.client
        client.create_table(T, SCHEMA, policy="latest", properties=properties_of(policy))
        client.append(T, rows(*range(2_000)))
        client.create_index(T, "id", "BTREE")
        maintenance = Maintenance(client)
        model = set(range(2_000))
        for step in range(1, 60):
            first = 10_000 + step * 2_000
            for number in range(first, first + 5):
                client.append(T, rows(*range(number * 400, number * 400 + 400)))
                model.update(range(number * 400, number * 400 + 400))
            client.delete(T, f"id = {number * 400}").raise_for_conflict()
            model.discard(number * 400)
            acts: list[table_acts.Act] = []
            killed = kills.at(step, lambda: acts.extend(maintenance.look()))  # noqa: B023
            if killed is None:
                break
            frames = traceback.walk_tb(killed.__traceback__)
            names = {frame.f_code.co_qualname for frame, _ in frames}
            killed_in |= {act for act in ACTS if f"TableActs.{act}.<locals>.do" in names}
            maintenance = Maintenance(client)
            assert opened(made).count_rows() == len(model)
        assert {act.kind for act in acts} == {"compact", "optimize", "expire", "thin"}
        assert killed_in == ACTS
        assert set(ids(made)) == model
        assert opened(made).to_table(filter=f"id = {number * 400 + 1}").num_rows == 1
        log = MemoryLog(made.cluster)
        clean(log, T, 0, client)
        assert clean(log, T, 0) == []
        assert set(ids(made)) == model
        verdict = verify(log, 0, VerifyOptions(root=tmp_path / "root", contents=True))
        assert verdict.problems == []


def test_a_table_with_a_wrong_policy_holds_up_no_other(tmp_path: Path) -> None:
    wrong = AlterProperties(
        ("ns", "a"), upserts=tuple(properties_of({"small_fragmets": 3}).items())
    )
    with service(tmp_path / "root") as made:
        for table, properties in (
            ("ns$a", {}),
            (T, {}),
            ("ns$z", properties_of({"mode": "off"})),
        ):
            made.client.create_table(table, SCHEMA, properties=properties)
            for number in range(16):
                made.client.append(table, rows(number))
        # An older program, or another one, checks nothing.
        made.client.submit(None, wrong).result().raise_for_conflict()
        assert [act.table for act in Maintenance(made.client).look()] == [T]
        with pytest.raises(InvalidSettings, match="commitlog.maintain.small-fragmets"):
            MaintenancePolicy.of_properties("ns$a", made.client.table("ns$a").properties)


@pytest.mark.parametrize("comes_again", [False, True])
def test_a_table_that_is_dropped_meanwhile_leaves_nothing_for_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, comes_again: bool
) -> None:
    caplog.set_level("INFO", "consumers.tools")
    with service(tmp_path / "root") as made:
        made.client.create_table(T, SCHEMA)
        for number in range(16):
            made.client.append(T, rows(number))

        def rewrite(*given: Any, **more: Any) -> Any:
            written = table_acts.rewrite_for_a_turn(*given, **more)
            made.client.drop_table(T)
            if comes_again:
                made.client.create_table(T, SCHEMA)
            return written

        assert kinds(Maintenance(made.client, rewrite=rewrite)) == []
    said = [(one.levelname, one.getMessage()) for one in caplog.records]
    assert said == [("INFO", f"{T} was dropped meanwhile; nothing of it is left for later")]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("target-rows", "many", "a whole number from 1 to 2,147,483,647"),
        ("target-rows", "0", "a whole number from 1 to"),
        ("keep-manifests", "1.5", "a whole number from 0 to"),
        ("retain-versions", "-1", "a whole number from 0 to"),
        ("deleted-share", "20", "a number from 0 to 1"),
        ("deleted-share", "nan", "a number from 0 to 1"),
        ("history-share", "inf", "a number from 0 to 1,000,000,000"),
        ("expire-days", "1e300", "a number from 0 to 36,500"),
        ("history-hours", "nan", "a number from 0 to 876,000"),
        ("mode", "ON", "on or off"),
        ("guard", "", "on or off"),
    ],
)
def test_a_wrong_value_is_named(name: str, text: str, told: str) -> None:
    with pytest.raises(InvalidSettings) as wrong:
        MaintenancePolicy.of_properties("ns$t", {PREFIX + name: text})
    assert f"ns$t: commitlog.maintain.{name} cannot be {text!r}; it is {told}" in str(wrong.value)


def test_files_that_nobody_needs_go_by_the_policy(tmp_path: Path) -> None:
    with service(tmp_path) as made:
        client = made.client
        for name, days in (("now", "0.000001"), ("never", "0"), ("later", "7")):
            properties = {"commitlog.maintain.remove-after-days": days}
            client.create_table(name, SCHEMA, properties=properties)
            for number in range(3):
                client.append(name, rows(number))
            client.delete(name, "true")
            client.expire_versions(name, retain_versions=1)
        client.drop_table("later")

        def maintenance() -> Maintenance:
            return Maintenance(client, open_log=lambda: MemoryLog(made.cluster))

        # A fast machine is here before those 86 ms have passed.
        wait_until(lambda: maintenance().look(dry_run=True), "files to become old enough")
        [due] = maintenance().look(dry_run=True)
        assert (due.table, due.kind) == ("now", "remove")
        assert len(list(made.location("now").glob("data/*"))) == 3
        maintenance().look()
        assert not list(made.location("now").glob("data/*"))
        assert len(list(made.location("never").glob("data/*"))) == 3
        decided_again_alike(made)


def test_an_index_that_a_compaction_left_for_later_loses_no_row(tmp_path: Path) -> None:
    with service(tmp_path / "root") as made:
        client = made.client
        client.create_table(T, SCHEMA)
        for number in range(3):
            client.append(T, rows(*range(number * 4, number * 4 + 4)))
        client.create_index(T, "id", "BTREE", name="by_id")
        client.open(T).optimize.compact_files(
            target_rows_per_fragment=1_000, defer_index_remap=True
        )
        client.delete(T, "id in (1, 4, 5)")
        for is_rebuilt in (False, True):
            if is_rebuilt:
                client.create_index(T, "id", "BTREE", name="by_id", replace=True)
            client.compact(T, materialize_deletions_threshold=0.1)
            dead = sum(fragment.num_deletions for fragment in opened(made).get_fragments())
            assert dead == (0 if is_rebuilt else 3)
            for number in ids(made):
                assert opened(made).to_table(filter=f"id = {number}").num_rows == 1


def test_a_column_is_computed_once_for_each_fragment_and_lands_beside_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[int] = []
    compute, upon = NewColumns._compute, NewColumns._upon

    def counted(columns: NewColumns, info: Any, path: str, only: set[int] | None) -> Any:
        computed.append(-1 if only is None else len(only))
        return compute(columns, info, path, only)

    with service(tmp_path / "root") as made:
        client = made.client
        client.create_table(T, SCHEMA)
        for number in range(4):
            client.append(T, rows(number * 2, number * 2 + 1))

        def beaten(columns: NewColumns, info: Any) -> Any:
            message = upon(columns, info)
            if len(computed) == 1:
                client.append(T, rows(100))
                client.delete(T, "id = 3 or id >= 6 and id < 8")
                client.update(T, {"name": "'new'"}, "id = 0")
            return message

        monkeypatch.setattr(NewColumns, "_compute", counted)
        monkeypatch.setattr(NewColumns, "_upon", beaten)
        kept = client.add_columns(T, {"double": "id * 2"})
        assert kept.refusals == ()
        assert computed == [-1, 2]
        found = opened(made).to_table()
        assert sorted(found["id"].to_pylist()) == [0, 1, 2, 4, 5, 100]
        assert found["double"].to_pylist() == [2 * one for one in found["id"].to_pylist()]
        monkeypatch.setattr(NewColumns, "_upon", upon)
        client.add_columns(T, pa.schema([("later", pa.string())]))
        assert opened(made).schema.names == ["id", "name", "double", "later"]
        decided_again_alike(made)
