"""What operators watch: counters with few labels, and a board and alerts that name what exists."""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml  # type: ignore[import-untyped]
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from commitlog.adapters import tracing
from commitlog.client.leader import runtime, tickets
from commitlog.core.log.replica import Decided
from commitlog.model.operations import IcebergChange, LanceCommit, Summary
from commitlog.model.records import (
    Code,
    Conflict,
    OperationResult,
    Outcome,
    Status,
    Submitted,
    Transaction,
)
from consumers.partition import meters
from consumers.partition.files.events import Event
from consumers.partition.histograms import BOUNDS, COARSE_BOUNDS
from consumers.partition.meters import NAMES_MAX, OTHERS, STEPS, Meters
from consumers.servers.metrics import Metrics
from consumers.tools.maintenance.maintenance import Maintenance
from consumers.views.version_index.lateness import Lateness, noted_lateness
from consumers.views.version_index.layout import Layout, noted_counts
from consumers.views.version_index.process import run_index
from infra.promtool import promtool_path
from tests.child import ended
from tests.namespace_world import World, numbers
from tests.service import SCHEMA, rows, service
from tests.waiting import meanwhile, wait_until

WATCH = Path(__file__).resolve().parents[2] / "infra" / "watch"
SUFFIXES = ("_bucket", "_sum", "_count", "_total", "_created")


def event(
    table: str, principal: str = "ann", status: Status = Status.COMMITTED, over: int = 0
) -> Event:
    """Return an acknowledged outcome of one append."""
    key = ("ns", table)
    commit = LanceCommit(key, "Append", 1, b"m", summary=Summary(rows_added=3, bytes_added=70))
    record = Transaction(str(uuid.uuid4()), (commit,), principal=principal, submitted_at_ms=1_000)
    results = (OperationResult(key, "life", "Append", 2, read_version=1, rebased_over=over),)
    conflict = Conflict(key, "other", 2, "Delete", "delete_delete_rows_overlap")
    is_refused = status is not Status.COMMITTED
    outcome = Outcome(
        1,
        record.transaction_id,
        0,
        status,
        code=Code.CONFLICT if is_refused else Code.NONE,
        results=() if is_refused else results,
        conflict=conflict if is_refused else None,
    )
    sent = Submitted(0, 0, 1_004, record)
    return Event(sent, outcome, b"", (), decided_at=10.0, read_at=9.99)


def scraped(*found: dict[str, Any]) -> dict[str, Any]:
    """Return what `/metrics` has by name, of leaders that measured this."""
    text = Metrics(lambda: {number: {"measures": one} for number, one in enumerate(found)}).text()
    return {family.name: family for family in text_string_to_metric_families(text.decode())}


def test_rows_and_bytes_of_iceberg_tables_count_by_their_snapshots() -> None:
    said = {"operation": "append", "added-records": "5", "added-files-size": "45"}
    added = {"action": "add-snapshot", "snapshot": {"snapshot-id": 7, "summary": said}}
    change = IcebergChange(("ns", "facts"), "[]", json.dumps([added]))
    one = event("t")
    record = Transaction("id", (change,), principal="ann")
    meters = Meters()
    meters.count(replace(one, submitted=replace(one.submitted, record=record)))
    found = scraped(meters.to_json())
    for label in ({"table": "ns$facts"}, {"principal": "ann"}):
        [kind] = label
        assert value(found, f"commitlog_{kind}_written_rows", **label) == 5
        assert value(found, f"commitlog_{kind}_added_bytes", **label) == 45


@pytest.mark.slow
def test_ten_thousand_names_have_no_more_series_than_a_hundred() -> None:
    meters, wanted = Meters(), 10_000
    for number in range(wanted):
        one = event(f"t{number}", f"p{number}", over=1)
        meters.count(one)
        meters.acknowledged([one], 10.01)
        meters.filed([one], 10.02)
        meters.count(event(f"t{number}", f"p{number}", Status.RETRYABLE))
    found = meters.to_json()
    for what in ("tables", "principals", "table_rules", "principal_rules"):
        counts: Counter[str] = Counter()
        for name, _, count in found[what]:
            counts[name] += count
        assert len(counts) == NAMES_MAX + 1
        each = 1 if what.endswith("rules") else 2
        assert counts[OTHERS] == each * (wanted - NAMES_MAX)
        assert sum(counts.values()) == each * wanted
    assert set(found["bytes"]) == meters.tables | {OTHERS}
    more = 3  # the last bucket's end, sum and count
    most = {}
    for kind in ("table", "principal"):
        most[f"commitlog_{kind}_commit_seconds"] = len(BOUNDS) + more
        most[f"commitlog_{kind}_step_seconds"] = len(STEPS) * (len(COARSE_BOUNDS) + more)
    for family in scraped(found).values():
        labels = {name for sample in family.samples for name in sample.labels}
        if labels & {"table", "principal"}:
            kinds = most.get(family.name, 2)
            assert 0 < len(family.samples) <= (NAMES_MAX + 1) * kinds, family.name


def test_a_name_of_two_partitions_is_counted_once() -> None:
    first, second = Meters(), Meters()
    for each in (first, first, second):
        each.count(event("t", "ann"))
        each.count(event("t", "ann", Status.RETRYABLE))
    found = scraped(first.to_json(), second.to_json())
    for name in ("commitlog_table_refusals", "commitlog_principal_refusals"):
        assert value(found, name, rule="delete_delete_rows_overlap") == 3
    assert value(found, "commitlog_table_outcomes", table="ns$t", status="committed") == 3


def test_what_never_committed_gets_no_value_of_its_own() -> None:
    meters = Meters()
    for number in range(NAMES_MAX):
        meters.count(event(f"made-up-{number}", f"nobody-{number}", Status.REJECTED))
    meters.count(event("real"))
    found = meters.to_json()
    assert meters.tables == {"ns$real"}
    assert [OTHERS, "rejected", NAMES_MAX] in found["tables"]
    assert [OTHERS, "rejected", NAMES_MAX] in found["principals"]
    rule = "delete_delete_rows_overlap"
    assert found["rules"] == {rule: NAMES_MAX}
    assert found["table_rules"] == found["principal_rules"] == [[OTHERS, rule, NAMES_MAX]]


def test_tables_that_are_gone_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "NAMES_MAX", 2)
    counted, sent = Meters(), [event("t", over=1), event("u", over=1), event("v")]
    for one in sent:
        counted.acknowledged([one], 10.01)
        counted.count(one)
    assert counted.tables == {"ns$t", "ns$u"}
    counted.filed(sent[:1], 10.02)
    counted.make_room({("ns", "t"): 1}, {("ns", "v"): 1})
    assert counted.tables == {"ns$t"}
    for one in (event("v"), event("t")):
        counted.acknowledged([one], 10.01)
        counted.count(one)
    found = counted.to_json()
    assert {tuple(one) for one in found["tables"]} == {
        ("ns$t", "committed", 2),
        ("ns$v", "committed", 1),
        (OTHERS, "committed", 1),
    }
    assert found["rebased"] == {"ns$t": 1}
    assert set(found["table_steps"]["acknowledge"]) == {"ns$t", "ns$v", OTHERS}
    counted.make_room((("ns", "t"), ("ns", "v")))
    assert counted.to_json() == found


def test_steps_are_counted_in_their_buckets() -> None:
    # Acknowledged 25 ms after it was read, which was 50 ms after Kafka had it.
    meters = Meters(wall_clock=lambda: 1.004 + 0.05 + 0.025)
    one = event("t", over=2)
    meters.acknowledged([one], 10.015)
    meters.filed([one], 10.515)
    meters.count(one)
    steps = meters.to_json()["steps"]
    for step, seconds in (
        ("submit", 0.004),
        ("queue", 0.05),
        ("acknowledge", 0.015),
        ("files", 0.5),
        ("commit", 0.004 + 0.05 + 0.525),
    ):
        place = next(n for n, bound in enumerate(BOUNDS) if seconds <= bound + 1e-9)
        assert steps[step]["counts"][place] == 1, step
        assert steps[step]["sum"] == pytest.approx(seconds)
    found = scraped(meters.to_json())
    for kind, name in (("table", "ns$t"), ("principal", "ann")):
        for fact, count in (("rebases", 1), ("added_bytes", 70), ("written_rows", 3)):
            assert value(found, f"commitlog_{kind}_{fact}", **{kind: name}) == count
        steps = f"commitlog_{kind}_step_seconds"
        ends = {"submit": 0.01, "queue": 0.1, "decide": 0.01, "acknowledge": 0.1, "files": 1.0}
        for step, end in ends.items():
            buckets = {
                one.labels["le"]: one.value
                for one in found[steps].samples
                if one.name.endswith("_bucket") and one.labels["step"] == step
            }
            below = COARSE_BOUNDS[COARSE_BOUNDS.index(end) - 1]
            assert (buckets[str(end)], buckets[str(below)]) == (1, 0), (kind, step)


def test_what_was_counted_is_told_once_whatever_came_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("consumers.partition.meters.SERIES_MAX", 1)
    meters, both = Meters(), [event("t"), event("u", over=1)]
    for one in both:
        meters.acknowledged([one], 10.01)  # the second one's series takes the first one's place
    meters.filed(both, 10.02)
    for one in both:
        meters.count(one)
    found = meters.to_json()
    assert found == meters.to_json()
    assert sorted(found["tables"]) == [["ns$t", "committed", 1], ["ns$u", "committed", 1]]
    assert found["principals"] == [["ann", "committed", 2]]
    assert (found["rebased"], found["rows"]) == ({"ns$u": 1}, {"ns$t": 3, "ns$u": 3})
    for step in STEPS:
        assert sum(found["steps"][step]["counts"]) == 2, step
        assert sum(found["table_steps"][step]["ns$t"]["counts"]) == 1, step


def test_a_clock_that_runs_behind_is_no_negative_time() -> None:
    meters = Meters()
    meters.steps.took(-3.0, "submit")
    assert meters.to_json()["steps"]["submit"] == {"counts": [1] + [0] * len(BOUNDS), "sum": 0.0}


@pytest.fixture(scope="module")
def world(world: World) -> World:
    world.write(["shop", "orders"], numbers(0, 5))
    world.log.append("shop$orders", numbers(5, 8))
    world.log.delete("shop$orders", "id < 2")
    return world


@pytest.fixture(scope="module")
def families(world: World) -> dict[str, Any]:
    """What `/metrics` has, by name, after some writes by two routes."""

    def statuses() -> dict[int, Any]:
        return {0: world.log.runtime().request(0, "status", measures=True)}

    metrics = Metrics(statuses, lambda: {0: 7})
    metrics.certificate(lambda: 1.8e9)
    metrics.request("Query", "POST", 200, 0.01)
    found = text_string_to_metric_families(metrics.text().decode())
    return {family.name: family for family in found}


def value(families: dict[str, Any], name: str, sample: str = "", **labels: str) -> float:
    samples = families[name].samples
    return float(
        sum(
            one.value
            for one in samples
            if one.name == (sample or one.name) and labels.items() <= one.labels.items()
        )
    )


def test_each_way_of_writing_is_counted_by_table_and_step(families: dict[str, Any]) -> None:
    table = {"table": "shop$orders"}
    assert value(families, "commitlog_table_outcomes", **table, status="committed") == 4
    assert value(families, "commitlog_table_version", **table) == 3
    assert value(families, "commitlog_table_fragments", **table) == 2
    assert value(families, "commitlog_table_written_rows", **table) == 8
    assert value(families, "commitlog_index_lag_outcomes", partition="0") == 7
    steps = families["commitlog_step_seconds"]
    for step in STEPS:
        counts = [one.value for one in steps.samples if one.labels.get("step") == step]
        assert counts, step
        assert value(families, "commitlog_step_seconds", "commitlog_step_seconds_count", step=step)


def test_whole_commits_and_versions_are_counted(families: dict[str, Any]) -> None:
    """A native client's too, from its own clock to files that can be read."""
    count = "commitlog_step_seconds_count"
    assert value(families, "commitlog_step_seconds", count, step="commit") == 4
    for by, labels in (("table", {"table": "shop$orders"}), ("principal", {})):
        name = f"commitlog_{by}_commit_seconds"
        assert value(families, name, f"{name}_count", **labels) == 4
        name = f"commitlog_{by}_step_seconds"
        for step in STEPS:
            assert value(families, name, f"{name}_count", step=step, **labels) == 4
    assert value(families, "commitlog_table_versions", table="shop$orders") == 3
    assert value(families, "commitlog_materializer_lag_versions", table="shop$orders") == 0
    assert not families["commitlog_table_bytes"].samples, "nobody looked yet"
    assert not families["commitlog_maintenance_silence_seconds"].samples


@pytest.mark.slow
def test_the_index_tells_how_late_it_shows_commits(tmp_path: Path) -> None:
    step = "index"
    with service(tmp_path) as running:
        running.client.create_table("before", SCHEMA)
        with meanwhile(lambda stop: run_index(running.log, tmp_path, stop=stop)):
            wait_until(lambda: noted_counts(tmp_path, running.log.genesis().log_id), "an index")
            running.client.append("before", rows(1))
            wait_until(lambda: noted_lateness(tmp_path), "what the index counted")
    text = Metrics(dict, index_steps=lambda: noted_lateness(tmp_path)).text().decode()
    found = {family.name: family for family in text_string_to_metric_families(text)}
    name = "commitlog_step_seconds"
    assert value(found, name, f"{name}_count", step=step) == 1, "what was there before isn't late"
    assert 0 < value(found, name, f"{name}_sum", step=step) < 60
    assert value(found, "commitlog_table_step_seconds", table="before", step=step, le="+Inf") == 1
    name = "commitlog_principal_step_seconds"
    assert value(found, name, f"{name}_count", step=step) == 1


def test_a_disk_that_takes_no_metrics_ends_no_index(tmp_path: Path) -> None:
    counted, sent = Lateness(Layout(tmp_path)), event("t")
    counted.took([Decided(sent.submitted, sent.outcome, 0)])
    counted.shown()  # into a folder that isn't there
    assert noted_lateness(tmp_path) == {}
    Layout(tmp_path).prepare()
    counted.took([Decided(sent.submitted, sent.outcome, 1)])
    counted.shown()
    assert sum(noted_lateness(tmp_path)["steps"]["index"]["counts"]) == 2


def test_maintenance_tells_how_far_it_is(world: World) -> None:
    def measured() -> dict[str, Any]:
        return dict(world.log.runtime().request(0, "status", measures=True)["measures"])

    maintenance = Maintenance(world.log)
    while maintenance.look():
        pass
    found = measured()["sizes"]["shop$orders"]
    assert found["unmaintained"] == 0
    files = world.log.open("shop$orders").get_fragments()
    sizes = [one.file_size_bytes or 0 for part in files for one in part.metadata.files]
    assert found["bytes"] == sum(sizes) > 0
    assert measured()["maintained_seconds"] >= 0
    world.log.append("shop$orders", numbers(8, 9))
    assert measured()["sizes"]["shop$orders"]["unmaintained"] == 1
    status = world.log.runtime().request(0, "status", measures=True)
    text = Metrics(lambda: {0: status}).text().decode()
    assert 'commitlog_maintenance_lag_versions{table="shop$orders"} 1.0' in text
    assert "commitlog_maintenance_silence_seconds{" in text


@pytest.mark.parametrize("over_http", [False, True])
def test_one_trace_leads_from_the_writer_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over_http: bool
) -> None:
    exporter = InMemorySpanExporter()
    spans = tracing.Tracing(exporter)
    for module in (tickets, runtime, meters):
        monkeypatch.setattr(module, "tracing", lambda: spans)
    if over_http:
        made = World(tmp_path)
        made.write(["t"], numbers(0, 5))
        made.write(["t"], numbers(5, 8), mode="append")
        made.close()
    else:
        with service(tmp_path) as running:
            running.client.create_table("t", SCHEMA)
            running.client.append("t", rows(1))
    finished = exporter.get_finished_spans()
    [trace] = [
        span.context.trace_id
        for span in finished
        if dict(span.attributes or {}).get("commitlog.versions") == "t 2"
    ]
    ours = [span for span in finished if span.context.trace_id == trace]
    by_name = {span.name: span for span in ours}
    assert by_name.keys() == {"commit", "decide", "acknowledge", "files"}
    assert len(ours) == 4
    first = by_name.pop("commit")
    assert first.parent is None
    assert {span.parent.span_id for span in by_name.values() if span.parent} == {
        first.context.span_id
    }
    assert dict(by_name["decide"].attributes or {})["commitlog.status"] == "committed"


def test_a_trace_has_the_id_of_its_transaction() -> None:
    name = str(uuid.uuid4())
    assert f"{tracing.trace_id(name):032x}" == name.replace("-", "")


def test_each_metric_is_documented_and_what_is_documented_is_there(
    families: dict[str, Any],
) -> None:
    there = {
        f"{name}_total" if family.type == "counter" else name
        for name, family in families.items()
        if not name.endswith("_created")
    }
    page = (WATCH.parents[1] / "docs" / "watching.md").read_text()
    described = {
        name
        for line in page.splitlines()
        if line.startswith("| `commitlog_")
        for name in re.findall(r"`(commitlog_\w+)`", line.split(" | ")[0])
    }
    assert described == there


def names_in(expression: Any) -> set[str]:
    """Return the metrics that a parsed expression asks for."""
    return set(re.findall(r"\bcommitlog_\w+", str(expression)))


def expressions() -> Iterator[tuple[str, str]]:
    """Yield title and expression of every alert and of every panel of the board."""
    for group in yaml.safe_load((WATCH / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for panel in json.loads((WATCH / "grafana.json").read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"].replace("$__rate_interval", "1m")


def innermost(found: Any, around: str = "") -> Iterator[tuple[str, str]]:
    """Yield each metric that is asked for, with the aggregation next to it."""
    if isinstance(found, promql_parser.VectorSelector):
        yield str(found.name), around
    for name in ("expr", "lhs", "rhs", "vector_selector"):
        if (inner := getattr(found, name, None)) is not None:
            op = str(found.op) if isinstance(found, promql_parser.AggregateExpr) else around
            yield from innermost(inner, op)
    if isinstance(found, promql_parser.Call):
        for argument in found.args:
            yield from innermost(argument, around or found.func.name)


@pytest.mark.parametrize(("title", "expression"), list(expressions()))
def test_a_second_server_that_speaks_for_the_same_leaders_changes_nothing(
    title: str, expression: str
) -> None:
    for name, op in innermost(promql_parser.parse(expression)):
        if not name.startswith("commitlog_http_"):
            assert op in ("max", "min", "absent"), f"{title}: {name} of two servers is added up"


@pytest.mark.parametrize(("title", "expression"), list(expressions()))
def test_board_and_alerts_ask_for_what_there_is(
    title: str, expression: str, families: dict[str, Any]
) -> None:
    names = names_in(promql_parser.parse(expression))
    assert names, title
    unlabelled = {"commitlog_table_rebases", "commitlog_refusals"}  # nothing was rebased or refused
    for name in names:
        plain = name
        for suffix in SUFFIXES:
            plain = plain.removesuffix(suffix)
        assert {name, plain} & (families.keys() | unlabelled), f"{title}: nobody has {name}"


@pytest.mark.slow
def test_each_alert_is_tried_with_made_up_series() -> None:
    """`promtool` runs these; a machine that has none sees at least that none is missing."""
    rules = yaml.safe_load((WATCH / "alerts.yaml").read_text())["groups"][0]["rules"]
    tried = (WATCH / "alerts_test.yaml").read_text()
    fires = set(re.findall(r"alertname=\"(\w+)\", alertstate=\"firing\"", tried))
    assert fires == {rule["alert"] for rule in rules}
    promtool = promtool_path()
    if promtool is None:
        pytest.skip("no promtool; `python -m infra.promtool` fetches one")
    for arguments in (
        ["check", "rules", "alerts.yaml"],
        ["check", "config", "prometheus.yaml"],
        ["test", "rules", "alerts_test.yaml"],
    ):
        done = ended([promtool, *arguments], cwd=WATCH, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_board_and_the_alerts_are_whole() -> None:
    board = json.loads((WATCH / "grafana.json").read_text())
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    assert all(panel["type"] == "row" or panel["description"] for panel in board["panels"])
    rules = [
        rule
        for group in yaml.safe_load((WATCH / "alerts.yaml").read_text())["groups"]
        for rule in group["rules"]
    ]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"].keys() == {"summary", "description"}
