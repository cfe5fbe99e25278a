"""What was aimed at, beside what was measured: each aim is met, missed, or was not measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Suites = Mapping[str, Mapping[str, Any]]
LATEST, EVERY, PIPELINED = "commitlog latest", "commitlog every", "commitlog pipelined"
MET, MISSED, UNKNOWN = "met", "missed", "not measured"
SMALLER = "met at a smaller size"
MILLION = 1_000_000
PARTITIONS, BROKERS, BROKER_CORES, COPIES = 8, 3, 16, 3
"""A cluster that one machine can't show."""
TIMES = "times_pylance"


@dataclass(frozen=True, slots=True)
class Aim:
    """One sentence with a number in it."""

    text: str
    limit: float
    is_least: bool
    """Whether the limit is the least that will do; else it is the most."""
    figure: Callable[[Suites], float | None]
    """None: the suite did not run, or not at this size."""
    show: str = "{:,.1f}"
    about: Callable[[Suites], str] = lambda suites: ""
    is_whole: Callable[[Suites], bool] = lambda suites: True
    """Whether it was measured at the size that was aimed at."""


@dataclass(frozen=True, slots=True)
class MeasuredAim:
    """An aim beside its figure."""

    text: str
    figure: str
    verdict: str
    about: str = ""


def judge(suites: Suites) -> list[MeasuredAim]:
    """Return every aim with its figure and verdict; what was not run is said to be unknown."""
    found = []
    for aim in AIMS:
        value = aim.figure(suites)
        if value is None:
            found.append(MeasuredAim(aim.text, "", UNKNOWN))
            continue
        fits = value >= aim.limit if aim.is_least else value <= aim.limit
        verdict = (MET if aim.is_whole(suites) else SMALLER) if fits else MISSED
        found.append(MeasuredAim(aim.text, aim.show.format(value), verdict, aim.about(suites)))
    return found


def rows_of(suites: Suites, suite: str, part: str, **wanted: Any) -> list[Mapping[str, Any]]:
    """Return the rows of a part of a suite's report that have these values."""
    rows: Sequence[Mapping[str, Any]] = suites.get(suite, {}).get(part) or ()
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def value_of(suites: Suites, suite: str, *path: str) -> float | None:
    """Return a number from a suite's report, None if it isn't there."""
    found: Any = suites.get(suite)
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return None if found is None else float(found)


def _row(key: str, suite: str, **wanted: Any) -> Callable[[Suites], float | None]:
    def figure(suites: Suites) -> float | None:
        rows = rows_of(suites, suite, "summary", **wanted)
        found = rows[0].get(key) if rows else None
        return None if found is None else float(found)

    return figure


def _total(key: str, suite: str, **wanted: Any) -> Callable[[Suites], float | None]:
    def figure(suites: Suites) -> float | None:
        rows = rows_of(suites, suite, "summary", **wanted)
        return float(sum(row[key] for row in rows)) if rows else None

    return figure


def _at(path: Sequence[str], suite: str) -> Callable[[Suites], float | None]:
    return lambda suites: value_of(suites, suite, *path)


def _curve(curve: str) -> Callable[[Suites], float | None]:
    """Return a curve's largest cost to its smallest one, if it has more than one point."""

    def figure(suites: Suites) -> float | None:
        part = "alone" if curve.startswith("machine") else "points"
        if len(rows_of(suites, "growth", part, curve=curve)) < 2:
            return None
        return float(rows_of(suites, "growth", "ratios", curve=curve)[0]["ratio"])

    return figure


def _curve_ends(curve: str) -> Callable[[Suites], str]:
    def about(suites: Suites) -> str:
        part, key, unit = "points", "committed_p50_ms", "ms"
        if curve.startswith("machine"):
            part, key, unit = "alone", "cpu_us", "µs of CPU"
        rows = rows_of(suites, "growth", part, curve=curve)
        return ", ".join(f"{row['at']:,}: {row[key]:,.2f} {unit}" for row in rows)

    return about


def _to_pylance_at_1_000(suites: Suites) -> float | None:
    """Return a lone writer's p50 to pylance's at 1,000 fragments and more, the worst of them."""
    peers = rows_of(suites, "growth", "pylance")
    ratios = (
        ours["readable_p50_ms"] / peer["p50_ms"]
        for peer in peers
        for ours in rows_of(suites, "growth", "points", curve="fragments", at=peer["at"])
        if peer["at"] >= 1_000
    )
    return max(ratios, default=None)


def _both_at(suites: Suites) -> str:
    peers = {row["at"]: row["p50_ms"] for row in rows_of(suites, "growth", "pylance")}
    ours = rows_of(suites, "growth", "points", curve="fragments")
    return ", ".join(
        f"{row['at']:,} fragments: {row['readable_p50_ms']:.2f} ms, pylance {peers[row['at']]:.2f}"
        for row in ours
        if row["at"] in peers
    )


_BEHIND = ("replay", "takeover", "behind_checkpoint")


def _behind(suites: Suites) -> str:
    count = value_of(suites, *_BEHIND)
    return f"with {count:,.0f} transactions behind the checkpoint" if count else ""


def _commit(count: int, times: float) -> list[Aim]:
    """Return what is aimed at with so many writers."""
    own: dict[str, Any] = {"system": LATEST, "writers": count}
    start = f"{count} writers with one commit in flight each"
    return [
        Aim(
            f"{start}: at least {times:.0f} times pylance's rate",
            times,
            True,
            _row(TIMES, "commit", **own),
        ),
        Aim(f"{start}: p99 below 50 ms", 50, False, _row("p99_ms", "commit", **own)),
        Aim(f"{start}: none failed", 0, False, _total("failures", "commit", **own), "{:.0f}"),
        Aim(
            f"{start}: fastest writer at most 1.5 times the slowest",
            1.5,
            False,
            _row("fairness", "commit", **own),
            "{:.2f}",
        ),
    ]


def busiest_cpu(suites: Suites) -> Mapping[str, Any] | None:
    """Return what the service's parts took per commit of the round with the most writers."""
    found = rows_of(suites, "commit", "service_cpu", system=LATEST)
    return max(found, key=lambda row: row["writers"], default=None)


def _scaling(suites: Suites) -> float | None:
    """Return how many times what one partition takes many take, by the CPU of a commit.

    Each has a leader with a core of its own; what they share are the brokers.
    """
    cpu = busiest_cpu(suites)
    spent = cpu["ms_per_commit"] if cpu else {}
    leader, broker = spent.get("committer", 0.0), spent.get("broker", 0.0)
    if not leader or not broker:
        return None
    # A follower that copies costs its broker as much as an append: an upper bound.
    shared = BROKERS * BROKER_CORES / (COPIES * broker)
    return float(min(PARTITIONS / leader, shared) / min(1 / leader, shared))


def _merge(work: str) -> list[Aim]:
    own: dict[str, Any] = {"system": f"{work}: commitlog", "writers": 32}
    named = {
        "delete": "deletes of one fragment's rows",
        "merge": "merges of one fragment's rows",
        "prepared": "prepared deletes of one fragment's rows",
    }[work]
    return [
        Aim(
            f"{named}, 32 writers: at least 20 times pylance's rate",
            20,
            True,
            _row(TIMES, "merge", **own),
        ),
        Aim(f"{named}: no re-execution", 0, False, _total("redone", "merge", **own), "{:.0f}"),
    ]


def _small_writes(wait: str, until: str) -> list[Aim]:
    own: dict[str, Any] = {"system": wait, "writers": 32, "batch": 1, "keys": "uniform"}
    start = f"32 writers of one row each, until {until}"
    return [
        Aim(f"{start}: at least 50 times pylance's rate", 50, True, _row(TIMES, "rows", **own)),
        Aim(f"{start}: p99 below 50 ms", 50, False, _row("p99_ms", "rows", **own)),
    ]


def _reaches(curve: str, most: int) -> Callable[[Suites], bool]:
    part = "alone" if curve.startswith("machine") else "points"
    return lambda suites: any(
        row["at"] >= most for row in rows_of(suites, "growth", part, curve=curve)
    )


def _flat(text: str, curve: str, most: int, limit: float = 1.3) -> Aim:
    about, is_whole = _curve_ends(curve), _reaches(curve, most)
    return Aim(text, limit, False, _curve(curve), "{:.2f}", about, is_whole)


_LONE: dict[str, Any] = {"system": LATEST, "writers": 1}

AIMS: Sequence[Aim] = (
    *_commit(32, 100),
    *_commit(64, 200),
    Aim(
        "10,000 transactions/s through one partition, many in flight",
        10_000,
        True,
        _row("commits_per_second", "commit", system=PIPELINED),
        "{:,.0f}",
    ),
    Aim(
        "the decision alone: 50,000/s on one core",
        50_000,
        True,
        _at(("decision", "per_cpu_second"), "replay"),
        "{:,.0f}",
    ),
    Aim(
        "one lone writer: p50 within 1.5 times the bare two-hop round trip",
        1.5,
        False,
        _row("p50_times_two_hop", "commit", **_LONE),
        "{:.2f}",
    ),
    Aim(
        "one lone writer: p50 below pylance's own commit at 1,000 fragments and more",
        1.0,
        False,
        _to_pylance_at_1_000,
        "{:.2f} times",
        _both_at,
    ),
    *_merge("delete"),
    *_merge("merge"),
    *_merge("prepared"),
    *_small_writes("accepted", "accepted, and then applied"),
    *_small_writes("readable", "readable in a version"),
    Aim(
        "32 writers of a hundred rows each: at least 50,000 rows/s accepted, and then applied",
        50_000,
        True,
        _row("rows_per_second", "rows", system="accepted", writers=32, batch=100, keys="uniform"),
        "{:,.0f}",
    ),
    _flat("p50 at 10, 1,000 and 100,000 fragments within 1.3 times", "fragments", 100_000),
    _flat("p50 at 10 and 1,000,000 versions within 1.3 times", "versions", MILLION),
    _flat("p50 of a writer 0 and 10,000 versions behind within 1.3", "versions behind", 10_000),
    _flat("the decision's CPU by fragments within 1.3 times", "machine by fragments", 100_000),
    _flat("the decision's CPU by versions within 1.3 times", "machine by versions", MILLION),
    _flat("a transaction over 100 tables below 3 times one over one", "tables", 100, 3.0),
    Aim(
        "200,000 transactions/s verified, the chain",
        200_000,
        True,
        _at(("chain", "per_second"), "replay"),
        "{:,.0f}",
    ),
    Aim(
        "50,000 transactions/s verified, every outcome recomputed",
        50_000,
        True,
        _at(("decided_again", "per_second"), "replay"),
        "{:,.0f}",
    ),
    Aim(
        "takeover with a million transactions behind a checkpoint below 2 s",
        2,
        False,
        _at(("takeover", "seconds"), "replay"),
        "{:.2f} s",
        _behind,
        lambda suites: (value_of(suites, *_BEHIND) or 0) >= MILLION,
    ),
    Aim(
        f"{PARTITIONS} partitions on a cluster take at least 7 times what one takes",
        7,
        True,
        _scaling,
        "{:.1f}",
        lambda suites: (
            f"computed from the CPU that a commit took here: {BROKERS} brokers of {BROKER_CORES} "
            f"cores, {COPIES} copies"
        ),
    ),
)
