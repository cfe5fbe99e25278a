"""Do the suites measure what they say at any size, and does the page tell no more than that?"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import lance
import pytest

from commitlog import CommitLog
from commitlog.errors import InvalidRequest
from consumers import cli
from consumers.commands.exit_codes import ExitCode
from consumers.tools.bench import (
    beside,
    everything,
    growth,
    measure,
    merge,
    peers,
    replay,
    report,
    soak,
)
from consumers.tools.bench import rows as row_bench
from consumers.tools.bench.aims import LATEST, MET, MISSED, SMALLER, UNKNOWN, judge
from consumers.tools.bench.environment import environment, fsync_ms, service_cpu_seconds
from consumers.tools.bench.measure import Round
from consumers.tools.bench.rows import HOT_KEYS, Load
from tests.service import Service, service


def silent(told: str) -> None:
    """Take what a suite says of its progress."""


@pytest.fixture(scope="module")
def replayed() -> dict[str, Any]:
    return replay.run(transactions=60, decisions=60, rounds=1, report=silent)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("bench")) as made:
        yield made


def committed(system: str, writers: int, **more: Any) -> dict[str, Any]:
    """Return a row of the commit suite's summary."""
    row = {
        "system": system,
        "writers": writers,
        "is_peer": "commitlog" not in system,
        "commits_per_second": 10.0,
        "commits_per_second_spread": {"min": 9.0, "median": 10.0, "max": 12.0},
        "times_pylance": 1.0,
        "p50_ms": 5.0,
        "p50_ms_spread": {"min": 4.0, "median": 5.0, "max": 6.0},
        "p50_times_two_hop": 3.0,
        "p99_ms": 20.0,
        "failures": 0,
        "fairness": 1.2,
        "writer_cpu_ms": 1.0,
        "wrong": 0,
    }
    return {**row, **more}


@pytest.mark.slow
def test_replay_measures_decisions_verification_and_a_takeover(replayed: dict[str, Any]) -> None:
    assert replayed["chain"]["outcomes"] == replayed["decided_again"]["outcomes"] == 71
    assert replayed["takeover"]["behind_checkpoint"] == 71
    assert replayed["takeover"]["after_checkpoint"] == 60
    for part in ("decision", "generated", "chain", "decided_again"):
        assert replayed[part]["per_cpu_second"] > 0
    assert replayed["generated"]["transaction_bytes"] > 100


def test_growth_measures_fragments_ages_and_tables(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CommitLog, "connect", lambda *_, **__: nullcontext(running.client))
    found = growth.run(
        "",
        "",
        fragments=(3, 12),
        versions=(4, 8),
        behind=(0, 5),
        tables=(1, 3),
        machine_versions=(3, 6),
        commits=2,
        report=silent,
    )
    at = {(point["curve"], point["at"]) for point in [*found["points"], *found["alone"]]}
    assert at == {
        *(("fragments", 3), ("fragments", 12), ("versions", 4), ("versions", 8)),
        *(("versions behind", 0), ("versions behind", 5), ("tables", 1), ("tables", 3)),
        *(("machine by fragments", 3), ("machine by fragments", 12)),
        *(("machine by versions", 3), ("machine by versions", 6)),
        *(("machine by versions behind", 0), ("machine by versions behind", 5)),
    }
    assert {one["curve"] for one in found["ratios"]} == {curve for curve, _ in at}
    for point in found["points"]:
        assert 0 < point["committed_p50_ms"] <= point["readable_p50_ms"]
    few, many = (point["manifest_bytes"] for point in found["points"][:2])
    assert 0 < few < many
    assert [row["at"] for row in found["pylance"]] == [3, 12]


@pytest.mark.slow
@pytest.mark.parametrize("work", merge.WORKS)
def test_two_writers_of_one_fragment_change_rows_of_their_own(
    running: Service, monkeypatch: pytest.MonkeyPatch, work: str, tmp_path: Path
) -> None:
    monkeypatch.setattr(merge, "ROWS", 6)
    monkeypatch.setattr(merge, "PREPARED", 3)
    table, uri = f"bench${work}", str(tmp_path / "t")
    running.client.create_table(table, merge.rows_of_work().schema, policy="latest")
    running.client.append(table, merge.rows_of_work()).raise_for_conflict()
    lance.write_dataset(merge.rows_of_work(), uri)
    ours = [merge.commit_of(running.client, table, work, 2, number) for number in (0, 1)]
    theirs = [merge.prepare_pylance(uri, work, 2, number) for number in (0, 1)]
    redone = {"ours": 0, "theirs": 0}
    for _ in range(2):
        for one, other in zip(ours, theirs, strict=True):
            redone["ours"] += one() or 0
            redone["theirs"] += other() or 0
    assert redone["ours"] == 0, "no row was changed twice"
    assert redone["theirs"] == (3 if work == "prepared" else 0), "all but the first are late"
    for location in (running.client.table(table).location, uri):
        dataset = lance.dataset(location)
        changed = merge.checked(made("x", commits=4), work, dataset, slack=0)
        assert changed.verified == "verified: 4 rows changed"
        assert merge.checked(made("x", commits=5), work, dataset, 0).verified.startswith("WRONG")
    ours[0]()
    with pytest.raises(StopIteration):
        ours[0]()


@pytest.mark.slow
@pytest.mark.parametrize("name", [peer.name for peer in peers.PEERS])
def test_every_peer_commits_rows_that_can_be_counted(name: str, tmp_path: Path) -> None:
    found = peers.installed((name,))
    if not found:
        pytest.skip(f"{name} is not installed")
    [peer] = found
    location = str(tmp_path / "t")
    told = peer.create(location)
    for number in (0, 1):
        commit = peer.prepare(location, told, number)
        commit()
        commit()
    assert peer.count(location) == 5 * peers.ROWS


def test_the_machine_and_the_disk_are_told(tmp_path: Path) -> None:
    told = environment()
    assert told["cores"] >= 1
    assert told["versions"]["pylance"]
    assert json.dumps(told)
    floor = fsync_ms(tmp_path, rounds=3)
    assert len(floor) == 3
    assert floor == sorted(floor)
    assert not list(tmp_path.iterdir())
    assert service_cpu_seconds(2**30) == {}, "there is no such process"


def made(system: str, *, commits: int = 1) -> Round:
    return Round(
        system=system,
        writers=2,
        commits=commits,
        commits_per_second=float(commits),
        slowest_writer=1,
        fastest_writer=2,
        redone=3,
        verified="verified",
    )


def test_merges_are_compared_with_pylance_at_the_same_work() -> None:
    rounds = [
        made("delete: pylance", commits=10),
        made("delete: commitlog", commits=40),
        made("delete: commitlog", commits=20),
        made("delete: commitlog", commits=30),
    ]
    pylance, ours = merge.summary(rounds)
    assert ours["commits_per_second_spread"] == {"min": 20, "median": 30, "max": 40}
    assert ours["times_pylance"] == 3
    assert ours["redone"] == 9
    assert pylance["times_pylance"] == 1


@contextmanager
def no_service() -> Iterator[Any]:
    raise RuntimeError("no service is needed")
    yield


@pytest.mark.slow
def test_a_suite_that_fails_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        everything,
        "QUICK",
        {
            "replay": {"transactions": 0, "decisions": 0, "rounds": 0},
            "conflicts": {"missed": (1, 2), "fragments": (1, 2), "is_timed": False},
        },
    )
    into = tmp_path / "bench.json"
    found = everything.run(
        start=no_service,
        suites=("conflicts", "replay", "commit"),
        is_quick=True,
        into=into,
        report=silent,
    )
    assert list(found["suites"]) == ["commit", "replay", "conflicts"], "in the order of the list"
    assert "no service is needed" in found["suites"]["commit"]["error"]
    assert "error" in found["suites"]["replay"]
    assert found["suites"]["conflicts"]["ratios"]
    assert json.loads(into.read_text()) == found
    page = report.page(found)
    assert "Not measured: no service" in page
    assert "Not measured: IndexError" in page
    assert "Delete by fragments" in page


def test_suites_that_were_measured_apart_are_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"conflicts": {"missed": (1, 2), "fragments": (1, 2), "is_timed": False}}
    monkeypatch.setattr(everything, "QUICK", sizes)
    into = tmp_path / "bench.json"
    before = {"is_quick": True, "took_seconds": 60.0, "suites": {"replay": {"error": "kept"}}}
    found = everything.run(
        start=no_service,
        suites=("conflicts",),
        is_quick=True,
        into=into,
        before=before,
        report=silent,
    )
    assert found["suites"]["replay"] == {"error": "kept"}
    assert found["took_seconds"] == 60.0
    assert json.loads(into.read_text()) == found
    taken = found["suites"]["conflicts"]["taken_apart_at"]
    page = report.page(found)
    assert page.count(f"Measured apart from the others, {taken}.") == 1
    assert page.count("a million steps of a bare loop took this machine") == 1


@pytest.mark.parametrize("name", everything.SUITES)
def test_every_suite_takes_the_sizes_that_all_gives_it(name: str) -> None:
    pytest.importorskip("pyiceberg")
    pytest.importorskip("pyspark")
    takes = inspect.signature(import_module(f"consumers.tools.bench.{name}").run)
    needs = {everything.SERVICE: ("servers", "log"), everything.HTTP: ("uri",)}
    for sizes in (everything.FULL, everything.QUICK):
        more = dict(sizes.get(name, {}))
        takes.bind(*needs.get(everything.SUITES[name], ()), **more, report=silent)


@pytest.mark.slow
def test_aims_are_met_missed_or_unknown(replayed: dict[str, Any]) -> None:
    assert {one.verdict for one in judge({})} == {UNKNOWN}
    rows = [
        committed("pylance", 32, commits_per_second=5.0),
        committed(LATEST, 32, times_pylance=120.0, fairness=2.0),
    ]
    quick = {**replayed, "takeover": {**replayed["takeover"], "seconds": 0.5}}
    judged = {one.text: one for one in judge({"commit": {"summary": rows}, "replay": quick})}

    def verdict(start: str) -> str:
        [found] = [one for text, one in judged.items() if text.startswith(start)]
        return found.verdict

    start = "32 writers with one commit in flight each: "
    assert verdict(f"{start}at least 100 times") == MET
    assert verdict(f"{start}none failed") == MET
    assert verdict(f"{start}fastest writer") == MISSED
    assert verdict("64 writers with one commit in flight each: none failed") == UNKNOWN
    assert verdict("200,000 transactions/s verified") == MISSED
    assert verdict("takeover") == SMALLER


@pytest.mark.parametrize(("broker_ms", "found"), [(0.2, 8.0), (5.0, 1.6), (0.0, None)])
def test_partitions_take_more_until_the_brokers_are_busy(
    broker_ms: float, found: float | None
) -> None:
    rounds = [
        {"system": LATEST, "writers": 1, "ms_per_commit": {"committer": 9.0, "broker": 0.1}},
        {"system": LATEST, "writers": 64, "ms_per_commit": {"committer": 0.5, "broker": broker_ms}},
    ]
    [aim] = [one for one in judge({"commit": {"service_cpu": rounds}}) if "partitions" in one.text]
    assert aim.verdict == (UNKNOWN if found is None else MET if found >= 7 else MISSED)
    assert found is None or aim.figure == f"{found}"


@pytest.mark.slow
def test_the_page_says_where_a_peer_is_faster(replayed: dict[str, Any]) -> None:
    rows = [committed("pylance", 1, p50_ms=2.0), committed(LATEST, 1, p50_ms=3.0)]
    commit = {
        "summary": rows,
        "two_hop_p50_ms": 1.0,
        "fsync_p50_ms": 0.5,
        "peers": [{"name": "pylance", "is_same_work": True}],
        "service_cpu": [{"system": LATEST, "writers": 1, "ms_per_commit": {"broker": 0.4}}],
    }
    page = report.page(
        {"environment": environment(), "suites": {"commit": commit, "replay": replayed}}
    )
    assert "pylance's p50 is 2.0 ms, commitlog latest's 3.0 ms" in page
    assert "| pylance | 1 | 9 / 10 / 12 |" in page
    assert "broker 0.40" in page
    assert page.count("Not run.") == len(everything.SUITES) - 2
    rows[0]["p50_ms"] = 4.0
    assert "Nowhere in this run." in report.page({"suites": {"commit": commit}})


def test_the_page_compares_small_writes() -> None:
    def upserts(system: str, rate: float, **more: Any) -> dict[str, Any]:
        row = {"system": system, "writers": 32, "batch": 1, "keys": "uniform", "rows": 100_000}
        return {**row, "writes_per_second": rate, "rows_per_second": rate, "p99_ms": 40.0, **more}

    rows = [upserts("pylance", 50.0), upserts("memwal", 900.0), upserts("readable", 1_000.0)]
    rows.append(upserts("accepted", 800.0, times_pylance=16.0))
    suites = {"rows": {"summary": rows}}
    page = report.page({"suites": suites})
    told = "rows: 32 writers, 1 rows each, uniform keys of 100,000: memwal takes 900 writes/s"
    assert page.count("commitlog accepts and applies 800.") == page.count(told) == 1
    verdicts = {one.text: one.verdict for one in judge(suites)}
    start = "32 writers of one row each, until accepted, and then applied: "
    assert verdicts[f"{start}at least 50 times pylance's rate"] == MISSED
    assert verdicts[f"{start}p99 below 50 ms"] == MET


def test_the_readmes_table_is_made_of_the_report() -> None:
    rows = [committed(system, n, fairness=1.28) for n in (1, 32) for system in ("pylance", LATEST)]
    found = {"suites": {"commit": {"summary": rows}}}
    page = (Path(report.__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    made = report.with_table(page, found)
    assert report.with_table(made, found) == made
    before, after = page.splitlines(), made.splitlines()
    changed = [(b, a) for b, a in zip(before, after, strict=True) if b != a]
    assert len(changed) == 4
    assert all(b.split("|")[1:3] == a.split("|")[1:3] for b, a in changed)
    assert changed[1][1].endswith("| 1.3 |")
    for text, measured in (("no table", found), (page, {})):
        with pytest.raises(InvalidRequest, match="no table of commits"):
            report.with_table(text, measured)


@pytest.mark.slow
def test_pictures_are_drawn_of_what_was_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from consumers.tools.bench import pictures

    point = {"curve": "fragments", "at": 10, "committed_p50_ms": 1.0, "readable_p50_ms": 2.0}
    found = {
        "suites": {
            "commit": {"summary": [committed("pylance", 1), committed(LATEST, 1)]},
            "growth": {"points": [point, {**point, "at": 100}], "pylance": []},
        }
    }
    drawn = pictures.draw(found, tmp_path / "plots")
    assert [path.name for path in drawn] == ["commits.svg", "latency.svg", "growth.svg"]
    assert "<svg" in drawn[0].read_text()
    assert pictures.draw({}, tmp_path) == []


def test_the_page_of_a_soak_has_a_plot_of_each_figure() -> None:
    samples = [{"minutes": float(n), "commits": n * 9.0, "disk MB, tables": 2.0} for n in range(9)]
    found = {"seconds": 540.0, "failures": {"append 0": 0}, "verified": "ok", "samples": samples}
    page = soak.page(found | {"summary": soak.summary(samples)})
    assert "<h1>72 commits in 9 minutes</h1>" in page
    assert page.count("<svg") == 2
    assert "<td>disk MB, tables<td>2.00<td>2.00<td>1.00" in page


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured, into = tmp_path / "bench.json", tmp_path / "BENCHMARKS.md"
    measured.write_text("{}")
    assert cli.main(["bench", "report", str(measured), "--into", str(into)]) == ExitCode.OK
    assert into.read_text().startswith("# Benchmarks")
    assert cli.main(["bench", "all", "--suite", "nonsense"]) != ExitCode.OK
    assert "nonsense" in capsys.readouterr().err


def prepare_counting(commits: int, number: int) -> measure.Commit:
    """Return what commits so often, executes each second one again, and fails once in writer 1."""
    done = 0

    def commit() -> int:
        nonlocal done
        done += 1
        if done > commits:
            raise StopIteration
        if number == 1 and done == 3:
            raise ValueError("somebody else was first")
        return done % 2

    return commit


@pytest.mark.slow
def test_a_round_counts_commits_failures_and_what_was_done_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "PRELOAD", [])
    found = measure.run_round("counting", 2, 60.0, prepare_counting, 7)
    # The first commit of each is not measured, and the seventh is the last.
    assert (found.unmeasured, found.commits, found.landed) == (2, 6 + 5, 2 + 6 + 5)
    assert (found.failures, found.failure) == (1, "ValueError: somebody else was first")
    assert (found.slowest_writer, found.fastest_writer) == (5, 6)
    assert found.redone == 3 + 2
    assert found.seconds < 60
    assert found.commits_per_second > 0


def prepare_nothing(number: int) -> measure.Commit:
    """Fail before the start."""
    raise OSError("there is no such table")


@pytest.mark.slow
def test_a_writer_that_cannot_start_ends_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "PRELOAD", [])
    with pytest.raises(RuntimeError, match="2 of 2 writers did not start"):
        measure.run_round("nothing", 2, 1.0, prepare_nothing)


def test_compactions_are_counted_by_their_tries() -> None:
    told = """
2026-11-23T03:40:01.996Z INFO    maintenance: t: compact (5 (or 6) are small): version 9, 5 became 1, 18.9 s
2026-11-23T03:40:02.996Z INFO    maintenance: t: compact (5 are small): version 12, 5 fragments became 1, after 2 refused tries, 0.9 s
2026-11-23T03:40:03.996Z INFO    maintenance: t: compact (5 are small): nothing was left to do, 0.1 s
2026-11-23T03:40:04.996Z INFO    maintenance: t: thin (70 manifests; the newest 4 stay): 66 manifests removed, 0.1 s
"""  # noqa: E501
    tries = Counter(beside.tries_of(told))
    assert tries == {1: 1, 3: 1}
    rounds = [Round(name, 8, 1, 10, 0, "", 10, 1, p99, 9, 1, 2, 0.5) for name, p99 in
              ((beside.WITHOUT, 10.0), (beside.WITH, 12.0))]  # fmt: skip
    found = {row["figure"]: row["value"] for row in beside.summary(rounds, [1.2], tries, 1)}
    assert found["p99 with : without"] == 1.2
    assert found["after more than 2 tries, or never"] == 2


def test_writers_of_rows_share_hot_keys_and_no_others() -> None:
    def keys(kind: str) -> list[set[int]]:
        load = Load(batch=10, writers=3, rows=1_000, keys=kind)
        turns = [load.source(number) for number in range(3)]
        return [set(turn()["id"].to_pylist()) for _ in range(20) for turn in turns]

    uniform, hot = keys("uniform"), keys("hot")
    assert len(set.union(*uniform)) == 600
    assert len(set.union(*hot)) == HOT_KEYS
    assert all(len(one) == 10 for one in (*uniform, *hot))


def test_a_round_of_rows_that_fails_is_told_and_the_others_are_measured() -> None:
    def fails() -> Round:
        raise TimeoutError("nobody came")

    load = Load(1, 32)
    failed = row_bench._ended(row_bench.PEER, load, fails)
    assert "TimeoutError: nobody came" in row_bench.line(load, failed)
    own = dataclasses.replace(failed, system="readable", commits_per_second=9.0)
    peer, ours = row_bench.summary([(load, failed), (load, own)])
    assert (peer["wrong"], ours["times_pylance"], ours["writes_per_second"]) == (1, None, 9.0)
