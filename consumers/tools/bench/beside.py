"""`commitlog bench maintain --writers 8`: do compactions land beside writers, and at what cost?

Rounds with maintenance and without it alternate, each on a fresh table. Writers commit one after
another: one-row appends, and now and then a deletion or an update of rows of their own, which are
in the fragments that are being compacted. Maintenance is a process of its own, which looks every
other second. After a round the compactions are counted, with how often each one was tried, and the
table's rows are compared with what the writers left.
"""

from __future__ import annotations

import contextlib
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from commitlog import CommitLog
from consumers.tools.bench.measure import Commit, Report, Round, run_round
from consumers.tools.bench.service import maintaining

SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.float64())])
DELETE_EVERY, UPDATE_EVERY = 20, 30
LOOK_SECONDS = 2.0
TRIES_MAX, P99_MAX = 2, 1.3
"""The aims: a compaction lands within two tries; the writers' p99 grows by less than a third."""
COMPACTED = re.compile(r": compact \(.*\): (?P<came>.*), [0-9.]+ s$", re.MULTILINE)
REFUSED = re.compile(r"after (\d+) refused tries")
GIVEN_UP = re.compile(r" was left for later: ")
WITHOUT, WITH = "without", "with"


def run(
    servers: str,
    root: Path,
    *,
    writers: int = 8,
    seconds: float = 20.0,
    rounds: int = 5,
    report: Report = print,
) -> dict[str, Any]:
    """Measure and return a JSON-able report."""
    measured: list[Round] = []
    tries, given_up, ratios = Counter[int](), 0, list[float]()
    with CommitLog.connect(servers) as log:
        report("warming up")
        with _table(log) as table:
            _round(log, servers, table, WITHOUT, writers, min(seconds, 5.0))
        for number in range(rounds):
            p99 = {}
            for system in (WITHOUT, WITH) if number % 2 else (WITH, WITHOUT):
                acts = root / f"bench-maintenance-{number}.log"
                looking = maintaining(servers, root, acts, "--interval", str(LOOK_SECONDS))
                with _table(log) as table, looking if system is WITH else contextlib.nullcontext():
                    one = _round(log, servers, table, system, writers, seconds)
                measured.append(one)
                p99[system] = one.p99_ms
                report(str(one))
                if system is WITH:
                    text = acts.read_text(errors="replace")
                    tries += Counter(tries_of(text))
                    given_up += len(GIVEN_UP.findall(text))
            ratios.append(p99[WITH] / p99[WITHOUT])
            report(f"p99 {ratios[-1]:.2f} times; compactions by tries: {_by(tries)}")
    return {
        "writers": writers,
        "rounds": [one.to_json() for one in measured],
        "tries": {str(count): number for count, number in sorted(tries.items())},
        "given_up": given_up,
        "summary": summary(measured, ratios, tries, given_up),
    }


def tries_of(text: str) -> Iterator[int]:
    """Yield from maintenance's log how many tries each compaction took that landed."""
    for found in COMPACTED.finditer(text):
        if found["came"].startswith("version "):
            refused = REFUSED.search(found["came"])
            yield 1 + (int(refused[1]) if refused else 0)


def summary(
    measured: list[Round], ratios: list[float], tries: Counter[int], given_up: int
) -> list[dict[str, Any]]:
    """Return each figure beside its aim."""
    landed = sum(tries.values())
    late = sum(number for count, number in tries.items() if count > TRIES_MAX) + given_up

    figures: list[tuple[str, float, str]] = []
    for name in ("commits_per_second", "p99_ms"):
        for system in (WITHOUT, WITH):
            found = [one.to_json()[name] for one in measured if one.system == system]
            figures.append((f"{name} {system} maintenance", statistics.median(found), ""))
    figures += [
        ("p99 with : without", statistics.median(ratios), f"<= {P99_MAX}"),
        ("compactions that landed", landed, ""),
        (f"after more than {TRIES_MAX} tries, or never", late, "0"),
    ]
    return [{"figure": name, "value": value, "aim": aim} for name, value, aim in figures]


def prepare(servers: str, table: str, number: int) -> Commit:
    """Return what commits once; rows of each writer are its own."""
    log = CommitLog.connect(servers)
    turn = 0

    def commit() -> None:
        nonlocal turn
        turn += 1
        own = number * 10**9
        if turn % DELETE_EVERY == 0:
            log.delete(table, f"id = {own + turn - DELETE_EVERY // 2}").raise_for_conflict()
        elif turn % UPDATE_EVERY == 1:
            changed = log.update(table, {"x": "x + 1"}, f"id = {own + turn - 2}")
            changed.raise_for_conflict()
        else:
            rows = pa.table({"id": [own + turn], "x": [0.0]}, SCHEMA)
            log.append(table, rows).raise_for_conflict()

    return commit


@contextlib.contextmanager
def _table(log: CommitLog) -> Iterator[str]:
    """Make a table, the only one that maintenance finds; drop it once that has ended."""
    table = f"bench$beside{time.time_ns()}"
    log.create_table(table, SCHEMA, policy="latest")
    yield table
    log.drop_table(table)


def _round(
    log: CommitLog, servers: str, table: str, system: str, writers: int, seconds: float
) -> Round:
    one = run_round(system, writers, seconds, prepare, servers, table)
    dataset = lance.dataset(log.open(table).uri)
    ids = dataset.to_table(columns=["id"])["id"].to_pylist()
    by_writer = Counter(value // 10**9 for value in ids)
    is_right = len(set(ids)) == len(ids) and len(by_writer) == writers
    return one.judged(is_right, f"{len(ids):,} rows in {len(dataset.get_fragments()):,} fragments")


def _by(tries: Counter[int]) -> str:
    return ", ".join(f"{number} in {count}" for count, number in sorted(tries.items())) or "none"
