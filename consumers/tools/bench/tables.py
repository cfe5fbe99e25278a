"""The tables of each suite's report: the page and the terminal show the same ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Row = Mapping[str, Any]
Columns = Mapping[str, Callable[[Row], str]]


@dataclass(frozen=True, slots=True)
class Figure:
    """Shows a number of a row, and nothing where there is none."""

    key: str
    digits: int = 1

    def __call__(self, row: Row) -> str:
        value = row.get(self.key)
        return "" if value is None else f"{value:,.{self.digits}f}"


class SuiteTable(NamedTuple):
    """A part of a suite's report, as a table."""

    heading: str
    columns: Columns
    part: str
    """The key of its rows in the report."""
    on_page: bool = True
    """Whether the page has it too; a long one is for the terminal only."""


def text(key: str) -> Callable[[Row], str]:
    """Return what shows a word of a row."""
    return lambda row: str(row.get(key, ""))


def spread_of(key: str, digits: int = 0) -> Callable[[Row], str]:
    """Return what shows least / median / greatest."""

    def show(row: Row) -> str:
        found = row.get(key) or {}
        names = ("min", "median", "max")
        return " / ".join(f"{found[name]:,.{digits}f}" for name in names if name in found)

    return show


def _rates(name: str, times: str) -> Columns:
    """Return the columns of a comparison under load."""
    return {
        "system": text("system"),
        "writers": Figure("writers", 0),
        "commits/s": Figure("commits_per_second"),
        f"times {name}": Figure(times, 2),
        "p50 ms": Figure("p50_ms"),
        "p99 ms": Figure("p99_ms", 0),
        "failed": Figure("failures", 0),
        "wrong": Figure("wrong", 0),
    }


_FAIRNESS: Columns = {"fastest : slowest writer": Figure("fairness")}
_ROUNDS: Columns = {
    **_rates("pylance", "times_pylance"),
    "commits/s": spread_of("commits_per_second_spread"),
}
_LOADED: Columns = {
    "system": text("system"),
    "writers": Figure("writers", 0),
    "p50 : two hops": Figure("p50_times_two_hop", 2),
    **_FAIRNESS,
    "writer's CPU ms": Figure("writer_cpu_ms", 2),
}
_AT: Columns = {"by": text("curve"), "at": Figure("at", 0)}
_COMPARED: Columns = {name: Figure(name, 3) for name in ("median", "least", "greatest")}

TABLES: Mapping[str, Sequence[SuiteTable]] = {
    "commit": (
        SuiteTable(
            "Appends to one table.", {**_ROUNDS, "p50 ms": spread_of("p50_ms_spread", 1)}, "summary"
        ),
        SuiteTable("The same: fairness, and what it costs the writers.", _LOADED, "summary"),
    ),
    "merge": (
        SuiteTable(
            "Rows of one fragment, no row changed twice. `again` counts how often work was "
            "executed again per commit.",
            {**_ROUNDS, "again": Figure("redone_per_commit", 2), **_FAIRNESS},
            "summary",
        ),
    ),
    "rows": (
        SuiteTable(
            "Small upserts. `told` says when a write returns.",
            {
                "told": text("system"),
                "writers": Figure("writers", 0),
                "rows each": Figure("batch", 0),
                "keys": text("keys"),
                "of rows": Figure("rows", 0),
                "writes/s": Figure("writes_per_second", 0),
                "rows/s": Figure("rows_per_second", 0),
                "times pylance": Figure("times_pylance", 2),
                "p50 ms": Figure("p50_ms"),
                "p99 ms": Figure("p99_ms", 0),
                "failed": Figure("failures", 0),
            },
            "summary",
        ),
    ),
    "growth": (
        SuiteTable(
            "A lone writer through the whole service, until its commit is final (`committed`) and "
            "until its manifest is there (`readable`).",
            {
                **_AT,
                "committed p50 ms": Figure("committed_p50_ms", 2),
                "p99": Figure("committed_p99_ms"),
                "readable p50 ms": Figure("readable_p50_ms", 2),
                "p99 ms": Figure("readable_p99_ms"),
                "manifest bytes": Figure("manifest_bytes", 0),
            },
            "points",
        ),
        SuiteTable(
            "pylance's own commit of one append, alone.",
            {"fragments": Figure("at", 0), "p50 ms": Figure("p50_ms", 2)},
            "pylance",
        ),
        SuiteTable(
            "The machine alone, CPU of a decision and its application.",
            {
                **_AT,
                "CPU µs": Figure("cpu_us"),
                "manifest bytes": Figure("manifest_bytes", 0),
                "manifest's CPU ms": Figure("manifest_cpu_ms"),
            },
            "alone",
        ),
        SuiteTable(
            "The largest cost of each curve to its smallest one.",
            {"by": text("curve"), "of": text("of"), "ratio": Figure("ratio", 2)},
            "ratios",
        ),
    ),
    "server": (
        SuiteTable(
            "Commits over HTTP by unmodified pylance, beside pylance's reference server.",
            {**_rates("reference", "times_reference"), **_FAIRNESS},
            "summary",
        ),
        SuiteTable(
            "Questions about few rows, beside pylance in process and a bare round trip.",
            {
                "question": text("question"),
                "pylance ms": Figure("pylance_ms", 2),
                "round trip ms": Figure("round_trip_ms", 2),
                "served ms": Figure("served_ms", 2),
                "times both": Figure("times_both", 2),
                "times both in turn": Figure("times_in_turn", 2),
            },
            "reads",
        ),
    ),
    "iceberg": (
        SuiteTable(
            "Iceberg commits, beside pyiceberg's SqlCatalog on SQLite.",
            {
                **_rates("SqlCatalog", "times_sqlcatalog"),
                "tried": Figure("tried", 0),
                "writer's CPU ms": Figure("writer_cpu_ms"),
            },
            "summary",
        ),
        SuiteTable(
            "What deciding an append costs as a table's history grows.",
            {
                "snapshots": Figure("snapshots", 0),
                "evaluate CPU ms": Figure("evaluate_ms", 2),
                "whole commit CPU ms": Figure("commit_ms", 2),
                "metadata bytes": Figure("metadata_bytes", 0),
            },
            "snapshots",
        ),
    ),
    "spark": (
        SuiteTable(
            "Spark, beside plain Lance and Parquet in the same session.",
            {
                "what": text("what"),
                "commitlog": text("commitlog"),
                "other": text("other"),
                "times": Figure("ratio", 2),
                "failed": text("failed"),
            },
            "summary",
        ),
    ),
    "replay": (
        SuiteTable(
            "A generated log of appends, in memory; Kafka is not in it. One process.",
            {
                "work": text("work"),
                "per second": Figure("per_second", 0),
                "per second of CPU": Figure("per_cpu_second", 0),
            },
            "works",
        ),
    ),
    "index": (
        SuiteTable(
            "The version index, by the versions that it holds.",
            {
                "versions": Figure("versions", 0),
                "commit p50 ms": Figure("commit_p50_ms"),
                "p99 ms": Figure("commit_p99_ms"),
                "publish p50 ms": Figure("publish_p50_ms"),
                "publish p99 ms": Figure("publish_p99_ms"),
                "index MB": Figure("index_mb"),
                "segments MB": Figure("segments_mb"),
            },
            "costs",
        ),
    ),
    "conflicts": (
        SuiteTable(
            "Each check.",
            {
                "operation": text("operation"),
                "missed versions": Figure("missed_versions", 0),
                "fragments": Figure("fragments", 0),
                "look-ups": Figure("steps", 0),
                "CPU µs": Figure("microseconds"),
            },
            "points",
            on_page=False,
        ),
        SuiteTable(
            "A conflict check from 1 to 10,000 missed versions, and in tables of 1 to 100,000 "
            "fragments: the largest cost to the smallest.",
            {"curve": text("curve"), "look-ups": Figure("steps", 2), "CPU time": Figure("time", 2)},
            "ratios",
        ),
    ),
    "against": (
        SuiteTable(
            "Medians of both trees, and the ratios of each pair of rounds.",
            {
                "phase": text("phase"),
                "per commit": text("figure"),
                "this": Figure("this", 3),
                "other": Figure("other", 3),
                "ratio": Figure("ratio", 2),
                "least": Figure("least", 2),
                "greatest": Figure("greatest", 2),
                "pairs": Figure("pairs", 0),
            },
            "summary",
        ),
    ),
    "maintain": (
        SuiteTable("A compaction.", {"CPU seconds": text("figure"), **_COMPARED}, "summary"),
    ),
    "beside": (
        SuiteTable(
            "Medians of the rounds.",
            {"figure": text("figure"), "value": Figure("value", 2), "aim": text("aim")},
            "summary",
        ),
    ),
    "soak": (
        SuiteTable(
            "Medians of the run's thirds.",
            {
                "figure": text("figure"),
                "second": Figure("second", 2),
                "last": Figure("last", 2),
                "ratio": Figure("ratio", 2),
            },
            "summary",
        ),
    ),
    "rag": (
        SuiteTable(
            "Requests.",
            {
                "request": text("request"),
                "count": Figure("count", 0),
                "p50 ms": Figure("p50_ms", 0),
                "p99 ms": Figure("p99_ms", 0),
                "longest ms": Figure("max_ms", 0),
            },
            "summary",
        ),
    ),
}
