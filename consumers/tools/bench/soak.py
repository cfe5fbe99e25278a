"""`commitlog bench soak`: writers at full speed for long, with maintenance on. Does all stay flat?

Writers of four kinds work on three tables that keep about as many rows as they have: one-row
appends with deletions of what is old, upserts by files, and writes of rows. Maintenance compacts,
indexes, expires versions, thins manifests and removes files beside them. Every so often the disk,
the memory of each process, the CPU that opening a table and asking it cost, and the maintenance
process's acts are looked at. A machine that does other work lengthens durations, so CPU is counted.

What ought to be flat is compared: its median in the last third of the run to that in the second.
The log itself and its index grow, by so many bytes per commit; that figure should stay the same.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from commitlog import CommitLog
from commitlog.errors import CommitLogError
from consumers.tools.bench.environment import environment, service_memory_bytes
from consumers.tools.bench.measure import Report
from consumers.tools.bench.service import PROGRAM, maintaining

KINDS = ("append", "append", "upsert", "rows")
TABLES = ("soak$append", "soak$upsert", "soak$rows")
SCHEMA = pa.schema([("key", pa.int64()), ("writer", pa.int64()), ("text", pa.string())])
KEPT_ROWS = 5_000
"""Rows that a writer of appends leaves; keys that the others change."""
DELETE_EVERY = 500
FIRST_ROWS = 20_000
BATCH_ROWS = 20
SAMPLES, SAMPLE_SECONDS_LEAST = 400, 3.0
OPENINGS = 5
POLICY = {"retain-versions": 200, "remove-after-days": 0.002, "small-fragments": 8}
LOOK_SECONDS, REMOVAL_SECONDS = 10.0, 60.0
STOP_SECONDS, VERIFY_SECONDS = 60.0, 1800.0
ACT = re.compile(r": (compact|optimize|expire|thin|remove) \(")
Sample = dict[str, float]


def run(
    servers: str, root: Path, pid: int, *, seconds: float, into: Path, report: Report = print
) -> dict[str, Any]:
    """Load a service in `root` for so long; write a page, and return a JSON-able report."""
    with CommitLog.connect(servers) as log:
        for table in TABLES:
            log.create_table(table, SCHEMA, primary_key="key", policy="latest")
            log.append(table, _rows(range(-FIRST_ROWS, 0), -1))
            log.create_index(table, "key", "BTREE")
        places = [Path(log.table(table).location) for table in TABLES]
    acts = root / "soak-maintenance.log"
    flags = ["--interval", str(LOOK_SECONDS), "--removal-interval", str(REMOVAL_SECONDS)]
    for name, value in POLICY.items():
        flags += ["--policy", f"{name}={value}"]
    looking = maintaining(servers, root, acts, *flags)
    with looking as maintainer, _writing(servers) as commits:
        samples = _sampled(root, places, pid, maintainer, commits, acts, seconds, report)
        failures = commits.failures()
    found = {
        "seconds": seconds,
        "failures": failures,
        "verified": "not yet",
        "samples": samples,
        "summary": summary(samples),
    }
    # A long log takes long to verify.
    into.write_text(page(found), encoding="utf-8")
    found["verified"] = _verified(servers, root)
    into.write_text(page(found), encoding="utf-8")
    report(f"verify --contents: {found['verified']}")
    return found


def summary(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Compare the last third of each figure to the second one."""
    third = len(samples) // 3
    if not third:
        return []
    rows = []
    for name in samples[-1]:
        if name == "minutes":
            continue
        middle = statistics.median(one.get(name, 0.0) for one in samples[third : 2 * third])
        last = statistics.median(one.get(name, 0.0) for one in samples[2 * third :])
        ratio = last / middle if middle else None
        rows.append({"figure": name, "second": middle, "last": last, "ratio": ratio})
    return rows


class _Commits:
    """What writers count, each in a place of its own."""

    def __init__(self, context: Any) -> None:
        self.done = context.Array("q", len(KINDS), lock=False)
        self.refused = context.Array("q", len(KINDS), lock=False)

    def __call__(self) -> int:
        return sum(self.done)

    def failures(self) -> dict[str, int]:
        """Return by writer how often it failed."""
        return {f"{kind} {n}": self.refused[n] for n, kind in enumerate(KINDS)}


@contextlib.contextmanager
def _writing(servers: str) -> Iterator[_Commits]:
    context = multiprocessing.get_context("spawn")
    stop, commits = context.Event(), _Commits(context)
    processes = [
        context.Process(
            target=_write, args=(servers, number, stop, commits.done, commits.refused), daemon=True
        )
        for number in range(len(KINDS))
    ]
    for process in processes:
        process.start()
    try:
        yield commits
    finally:
        stop.set()
        for process in processes:
            process.join(STOP_SECONDS)
            if process.is_alive():
                process.kill()


def _write(servers: str, number: int, stop: Any, done: Any, refused: Any) -> None:
    """Commit until `stop`; runs in a process of its own."""
    log = CommitLog.connect(servers)
    commit = _append if KINDS[number] == "append" else _upsert
    turn = 0
    while not stop.is_set():
        try:
            commit(log, number, turn)
            done[number] += 1
        except CommitLogError:
            refused[number] += 1
        turn += 1
    log.close()


def _append(log: CommitLog, number: int, turn: int) -> None:
    key = turn * len(KINDS) + number
    log.append(TABLES[0], _rows([key], number)).raise_for_conflict()
    if turn % DELETE_EVERY == DELETE_EVERY - 1:
        old = key - KEPT_ROWS * len(KINDS)
        log.delete(TABLES[0], f"writer = {number} AND key < {old}").raise_for_conflict()


def _upsert(log: CommitLog, number: int, turn: int) -> None:
    first = turn * BATCH_ROWS % KEPT_ROWS
    rows = _rows(range(first, first + BATCH_ROWS), turn)
    if KINDS[number] == "upsert":
        log.merge_insert(TABLES[1], rows, "key").raise_for_conflict()
    else:
        ticket = log.write_rows(TABLES[2], rows, mode="upsert")
        ticket.result(STOP_SECONDS, wait="committed").raise_for_conflict()


def _rows(keys: Sequence[int], writer: int) -> pa.Table:
    count = len(keys)
    return pa.table(
        {"key": list(keys), "writer": [writer] * count, "text": ["x" * 40] * count}, SCHEMA
    )


def _sampled(
    root: Path,
    places: Sequence[Path],
    pid: int,
    maintainer: int,
    commits: _Commits,
    acts: Path,
    seconds: float,
    report: Report,
) -> list[Sample]:
    began, samples = time.monotonic(), list[Sample]()
    pause = max(seconds / SAMPLES, SAMPLE_SECONDS_LEAST)
    while (passed := time.monotonic() - began) < seconds:
        before = time.monotonic()
        sample: Sample = {"minutes": passed / 60, "commits": float(commits())}
        sample |= _disk(root, places)
        grown = sample["disk MB, all else"] - (samples or [sample])[0]["disk MB, all else"]
        sample["disk B per commit, all else"] = grown * 1e6 / max(commits(), 1)
        for part, size in (service_memory_bytes(pid) | service_memory_bytes(maintainer)).items():
            sample[f"memory MB, {part}"] = size / 1e6
        for place in places:
            sample |= _asked(place)
        done = Counter(ACT.findall(acts.read_text(errors="replace")))
        for kind in ("compact", "optimize", "expire", "thin", "remove"):
            sample[f"acts, {kind}"] = float(done[kind])
        samples.append(sample)
        if len(samples) % 20 == 1:
            report(line(sample))
        time.sleep(max(pause - (time.monotonic() - before), 0.1))
    return samples


def line(sample: Mapping[str, float]) -> str:
    """Describe a sample in one line."""
    return (
        f"{sample['minutes']:6.1f} min  {sample['commits']:9,.0f} commits "
        f" tables {sample['disk MB, tables']:7.1f} MB  "
        f"all else {sample['disk B per commit, all else']:6.0f} B/commit  "
        f"acts {sum(value for name, value in sample.items() if name.startswith('acts')):5.0f}"
    )


def _disk(root: Path, places: Sequence[Path]) -> Sample:
    tables = {place: _size(place) for place in places}
    found = {f"disk MB, {_named(place)}": size / 1e6 for place, size in tables.items()}
    found["disk MB, tables"] = sum(tables.values()) / 1e6
    # The log, its index and its checkpoints.
    return found | {"disk MB, all else": (_size(root) - _size(root / "tables")) / 1e6}


def _size(place: Path) -> int:
    size = 0
    for folder, _, files in os.walk(place):
        for name in files:
            with contextlib.suppress(OSError):
                size += os.stat(f"{folder}/{name}").st_size
    return size


def _asked(place: Path) -> Sample:
    """Open a table by path and ask it; return what that cost, and what there is to open."""
    opening, asking, name = [], [], _named(place)
    for _ in range(OPENINGS):
        before = time.process_time()
        dataset = lance.dataset(str(place))
        opened = time.process_time()
        dataset.to_table(filter="key = 17")
        dataset.count_rows()
        opening.append(opened - before)
        asking.append(time.process_time() - opened)
    return {
        f"open CPU ms, {name}": statistics.median(opening) * 1e3,
        f"query CPU ms, {name}": statistics.median(asking) * 1e3,
        f"fragments, {name}": float(len(dataset.get_fragments())),
        f"manifests, {name}": float(sum(1 for _ in (place / "_versions").iterdir())),
        f"rows, {name}": float(dataset.count_rows()),
    }


def _named(place: Path) -> str:
    """Return a short name of a table's folder."""
    return next((t for t in ("append", "upsert", "rows") if t in place.name), place.name)


def _verified(servers: str, root: Path) -> str:
    command = [*PROGRAM, "verify", "--contents", "--bootstrap-servers", servers]
    done = subprocess.run(
        command, cwd=root, capture_output=True, text=True, timeout=VERIFY_SECONDS, check=False
    )
    return "ok" if done.returncode == 0 else f"FAILED: {(done.stdout + done.stderr)[-2_000:]}"


def page(found: Mapping[str, Any]) -> str:
    """Return a report with a plot of each figure, as one HTML file."""
    samples, rows = found["samples"], found["summary"]
    table = "".join(
        f"<tr><td>{row['figure']}<td>{row['second']:,.2f}<td>{row['last']:,.2f}"
        f"<td>{'' if row['ratio'] is None else format(row['ratio'], '.2f')}"
        for row in rows
    )
    plots = "".join(
        f"<figure><figcaption>{row['figure']}</figcaption>"
        f"{plot([(one['minutes'], one.get(row['figure'], 0.0)) for one in samples])}</figure>"
        for row in rows
    )
    commits = samples[-1]["commits"] if samples else 0
    return (
        "<!doctype html><meta charset=utf-8><title>Soak</title><style>body{font:14px sans-serif;"
        "margin:2em}td{padding:0 1em 0 0}td+td{text-align:right}figure{display:inline-block;"
        "margin:1em}</style>"
        f"<h1>{commits:,.0f} commits in {found['seconds'] / 60:,.0f} minutes</h1>"
        f"<p>verify --contents: {found['verified']}. Failed writes: {json.dumps(found['failures'])}"
        f"<p>{json.dumps(environment())}"
        "<table><tr><td>median of<td>second third<td>last third<td>ratio" + table + "</table>"
        f"{plots}"
    )


def plot(points: Sequence[tuple[float, float]], width: int = 320, height: int = 120) -> str:
    """Draw a line over time, on a scale from 0, as SVG."""
    right = max((x for x, _ in points), default=0.0) or 1.0
    top = max((y for _, y in points), default=0.0) or 1.0
    drawn = " ".join(f"{x / right * width:.1f},{height - y / top * height:.1f}" for x, y in points)
    return (
        f'<svg width="{width}" height="{height + 16}" viewBox="0 -12 {width} {height + 16}">'
        f'<line x1="0" y1="{height}" x2="{width}" y2="{height}" stroke="#bbb"/>'
        f'<polyline fill="none" stroke="#2b5d8c" points="{drawn}"/>'
        f'<text x="2" y="-2" font-size="10">{top:,.2f}</text>'
        f'<text x="{width}" y="-2" font-size="10" text-anchor="end">{right:,.0f} min</text></svg>'
    )
