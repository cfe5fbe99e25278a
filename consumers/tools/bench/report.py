"""`commitlog bench report`: what `commitlog bench all` measured, as a page for people.

Every figure comes from the file; what was not run is said to be missing, and where a peer was
faster that is said too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from commitlog.errors import InvalidRequest
from consumers.tools.bench.aims import (
    LATEST,
    MeasuredAim,
    Suites,
    busiest_cpu,
    judge,
    rows_of,
    value_of,
)
from consumers.tools.bench.everything import SUITES
from consumers.tools.bench.tables import TABLES, Columns, Figure, Row

NOT_MEASURED = (
    "More machines than one: broker, leader, index and writers share the cores of this one, and "
    "the broker is the only copy of the log.",
    "A broker that waits for the disk: acknowledged means in the operating system's memory, as "
    "with pylance, which doesn't fsync either. The floors include the disk's fsync.",
    "Object stores: all tables are on the local disk.",
    "Writing data: commits name files that were written before, except where a table says so.",
    "Other programs: nothing else should have run. The load average before the run is given above; "
    "don't trust absolute figures of a loaded machine, and its ratios only a little.",
)


def page(found: Mapping[str, Any]) -> str:
    """Return the page of a report of `everything.run`."""
    suites: Suites = found.get("suites", {})
    lines = [
        "# Benchmarks",
        "",
        "Generated; don't edit. `commitlog bench all --into bench.json` measures (ten minutes with "
        "`--quick`); `commitlog bench report bench.json --into infra/BENCHMARKS.md --plots DIR` "
        "makes this page and draws pictures.",
        "",
        *_environment(found),
        "## Aims",
        "",
        *_aims(judge(suites)),
        "Why aims were missed, by profile, and what would help: [speed](../docs/speed.md).",
        "",
        *_lost(suites),
    ]
    for name in SUITES:
        lines += [f"## {name}", "", *_suite(name, suites)]
    lines += ["## What isn't measured", "", *(f"- {one}" for one in NOT_MEASURED), ""]
    return "\n".join(lines)


def table(columns: Columns, rows: Sequence[Row]) -> list[str]:
    """Return a table in Markdown, or a word if there is nothing."""
    if not rows:
        return ["Not measured.", ""]
    made = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for row in rows:
        cells = [of(row).replace("|", "\\|") for of in columns.values()]
        made.append(f"| {' | '.join(cells)} |")
    return [*made, ""]


def _environment(found: Mapping[str, Any]) -> Iterator[str]:
    machine: Row = found.get("environment", {})
    versions = machine.get("versions", {})
    yield from (
        f"Measured {machine.get('taken_at', 'at an unknown time')} in "
        f"{found.get('took_seconds', 0) / 60:.0f} minutes"
        f"{', with small sizes (`--quick`)' if found.get('is_quick') else ''}, on "
        f"{machine.get('cores', '?')} cores of {machine.get('cpu', 'an unknown processor')}, "
        f"{machine.get('memory_gib', '?')} GiB, {machine.get('platform', '?')}; load average "
        f"before: {', '.join(map(str, machine.get('load_average', ())))}.",
        "",
        f"Python {machine.get('python', '?')}, "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + ". Several numbers in a cell are the minimum / median / maximum of the "
        "rounds; single ones are medians. Rounds of all systems alternate in one run.",
        "",
    )


def _aims(judged: Sequence[MeasuredAim]) -> list[str]:
    columns: Columns = {
        "aim": lambda row: row["text"],
        "measured": lambda row: row["figure"],
        "verdict": lambda row: row["verdict"],
        "more": lambda row: row["about"],
    }
    rows = [
        {"text": j.text, "figure": j.figure, "verdict": j.verdict, "about": j.about} for j in judged
    ]
    return table(columns, rows)


def _lost(suites: Suites) -> Iterator[str]:
    """Say where others were faster."""
    lost = [*_lost_commits(suites), *_lost_rows(suites)]
    for suite, key, ours in (
        ("merge", "times_pylance", ": commitlog"),
        ("server", "times_reference", "commitlog"),
        ("iceberg", "times_sqlcatalog", ""),
    ):
        for row in rows_of(suites, suite, "summary"):
            times = row.get(key)
            if times is not None and times < 1 and str(row["system"]).endswith(ours):
                lost.append(
                    f"{suite}: {row['system']}, {row['writers']} writers, reaches {times:.2f} "
                    f"times the rate of {key.removeprefix('times_')}."
                )
    for row in rows_of(suites, "spark", "summary"):
        if row["ratio"] > 1:
            lost.append(f"spark: {row['what']}: {row['commitlog']} against {row['other']}.")
    yield "### Where a peer is faster"
    yield ""
    if not any("summary" in one for one in suites.values()):
        yield "Nothing was compared."
    elif not lost:
        yield "Nowhere in this run."
    yield from (f"- {one}" for one in lost)
    yield ""


def _lost_commits(suites: Suites) -> Iterator[str]:
    for peer in rows_of(suites, "commit", "summary", is_peer=True):
        mine = rows_of(suites, "commit", "summary", is_peer=False, writers=peer["writers"])
        for own in mine:
            if peer["p50_ms"] < own["p50_ms"] and own["system"] != "commitlog pipelined":
                yield (
                    f"commit, {peer['writers']} writers: {peer['system']}'s p50 is "
                    f"{peer['p50_ms']:.1f} ms, {own['system']}'s {own['p50_ms']:.1f} ms (p99: "
                    f"{peer['p99_ms']:,.0f} and {own['p99_ms']:,.0f} ms)."
                )


def _lost_rows(suites: Suites) -> Iterator[str]:
    for own in rows_of(suites, "rows", "summary", system="accepted"):
        load = {key: own[key] for key in ("writers", "batch", "rows", "keys")}
        for peer in rows_of(suites, "rows", "summary", **load):
            if (
                peer["writes_per_second"] > own["writes_per_second"]
                and peer["system"] != "readable"
            ):
                yield (
                    f"rows: {own['writers']} writers, {own['batch']} rows each, {own['keys']} keys "
                    f"of {own['rows']:,}: {peer['system']} takes {peer['writes_per_second']:,.0f} "
                    f"writes/s, commitlog accepts and applies {own['writes_per_second']:,.0f}."
                )


def _suite(name: str, suites: Suites) -> Iterator[str]:
    found = suites.get(name)
    if found is None:
        yield from ("Not run.", "")
        return
    for word in ("skipped", "error"):
        if word in found:
            yield from (f"Not measured: {found[word]}.", "")
            return
    if "taken_apart_at" in found:
        yield from (f"Measured apart from the others, {found['taken_apart_at']}.", "")
    if "loop_ms" in found:
        loop = f"{found['loop_ms']:.0f} ms"
        yield from (f"Before it, a million steps of a bare loop took this machine {loop}.", "")
    for one in TABLES[name]:
        if one.on_page:
            yield from (one.heading, "")
            yield from table(one.columns, rows_of(suites, name, one.part))
    for line in figures(name, suites):
        yield from (line, "")


def figures(name: str, suites: Suites) -> Iterator[str]:
    """Yield what a suite measured that is in none of its tables, in sentences."""
    if name in FIGURES:
        yield from FIGURES[name](suites)


def _commit_figures(suites: Suites) -> Iterator[str]:
    two_hop = value_of(suites, "commit", "two_hop_p50_ms") or 0.0
    fsync = value_of(suites, "commit", "fsync_p50_ms") or 0.0
    yield (
        f"Floors: a bare two-hop round trip through the broker takes {two_hop:.2f} ms (p50); "
        f"4 KiB appended to a file and fsynced {fsync:.2f} ms."
    )
    other = [p["name"] for p in rows_of(suites, "commit", "peers") if not p["is_same_work"]]
    if other:
        yield f"{', '.join(other)} writes a data file of 100 rows per commit; the others don't."
    if most := busiest_cpu(suites):
        parts = ", ".join(
            f"{name} {ms:.2f}" for name, ms in sorted(most["ms_per_commit"].items()) if ms >= 0.005
        )
        yield f"CPU of the service, {most['writers']} writers, ms per commit: {parts}."


def _server_figures(suites: Suites) -> Iterator[str]:
    many = suites["server"]["tables"]
    yield (
        f"A version of each of {many['tables']} tables takes {many['single_ms']:.0f} ms by single "
        f"requests, {many['batch_ms']:.0f} ms by one batch-commit."
    )


def _iceberg_figures(suites: Suites) -> Iterator[str]:
    many = suites["iceberg"]["tables"]
    yield (
        f"{many['tables']} tables in one transaction: p50 {many['p50_ms']:.1f} ms, "
        f"p99 {many['p99_ms']:.1f} ms."
    )


def _replay_figures(suites: Suites) -> Iterator[str]:
    replay = suites["replay"]
    takeover, made, decision = replay["takeover"], replay["generated"], replay["decision"]
    yield (
        f"The bare machine takes {decision['decide_us']:.1f} µs of CPU to decide an append and "
        f"{decision['apply_us']:.1f} µs to apply it, {decision['prefetch_us']:.1f} µs before that "
        "to name the files that it will look at."
    )
    yield (
        f"The log has {replay['transactions']:,} appends. A takeover with "
        f"{takeover['behind_checkpoint']:,} transactions behind the checkpoint "
        f"({takeover['checkpoint_bytes'] / 1e6:.1f} MB) and {takeover['after_checkpoint']:,} after "
        f"it took {takeover['seconds']:.2f} s ({takeover['cpu_seconds']:.2f} s of CPU). One append "
        f"is {made['transaction_bytes']:.0f} bytes in the transactions topic, and "
        f"{made['outcome_bytes']:.0f} in the outcomes topic."
    )


def _index_figures(suites: Suites) -> Iterator[str]:
    fresh = suites["index"]["freshness"]
    yield (
        f"At {fresh['commits_per_second']:.0f} commits/s and {fresh['versions']:,} versions a "
        f"reader sees a commit after {fresh['fresh_p50_ms']:.0f} ms (p50), "
        f"{fresh['fresh_p99_ms']:.0f} ms (p99), {fresh['max_ms']:.0f} ms at most; the index takes "
        f"{fresh['cpu_ms_per_commit']:.2f} ms of CPU per commit."
    )


FIGURES: Mapping[str, Callable[[Suites], Iterator[str]]] = {
    "commit": _commit_figures,
    "server": _server_figures,
    "iceberg": _iceberg_figures,
    "replay": _replay_figures,
    "index": _index_figures,
}


def _writers_of(row: Row) -> str:
    return f"{row['writers']} writer{'s' if row['writers'] > 1 else ''}"


def _fairness(row: Row) -> str:
    found = row["fairness"]
    return "" if row["writers"] == 1 else f"{found:,.{1 if found < 10 else 0}f}"


_README_COLUMNS: Columns = {
    "two cores for everything": _writers_of,
    "system": lambda row: "pylance's own commit" if row["is_peer"] else "commitlog, `latest`",
    "commits/s": Figure("commits_per_second", 0),
    "p50 ms": Figure("p50_ms"),
    "p99 ms": Figure("p99_ms", 0),
    "gave up": Figure("failures", 0),
    "fastest : slowest writer": _fairness,
}


def with_table(text: str, found: Mapping[str, Any]) -> str:
    """Return a page whose table of commits beside pylance, the README's, shows this report.

    Raises InvalidRequest if there is no such table, or not what it shows.
    """
    suites = found.get("suites", {})
    rows = [
        row
        for writers in (32, 1)
        for system in ("pylance", LATEST)
        for row in rows_of(suites, "commit", "summary", system=system, writers=writers)
    ]
    head, rule, *body = table(_README_COLUMNS, rows)[:-1] if rows else ("", "")
    lines = text.splitlines()
    if len(rows) != 4 or lines.count(head) != 1:
        raise InvalidRequest(
            "the page has no table of commits beside pylance, or the report no rows for it",
            field="readme",
            advice="Name the README, and a report with the suite `commit` at 32 writers and 1",
        )
    start = end = lines.index(head)
    while end < len(lines) and lines[end].startswith("|"):
        end += 1
    return "\n".join([*lines[:start], head, rule, *body, *lines[end:]]) + "\n"
