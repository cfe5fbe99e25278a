"""Spark jobs on one table, killed and started again at random; then every row is accounted for.

    python -m tests.spark_chaos --minutes 10 --seed 1

Four streaming queries append, two batch jobs append, a MERGE loop updates and inserts, and a
compaction rewrites fragments, all on one table of a whole service (`commitlog up`). Each job is a
process of its own and is killed with -9, Spark's JVM with it, at random moments: mostly one that
has committed since it was started, so that none of them starves, and now and then any. At the end
all of them finish their work undisturbed, and the table must hold exactly the rows that the plain
model has. A job that ends by itself other than well, on a conflict say, is a failure, and so is one
that committed less than a few times.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import lance
import pyarrow as pa

from commitlog import CommitLog
from consumers.tools.demo.children import end_with_parent

TABLE = "chaos$rows"
SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64())])
STREAMS, BATCH_JOBS = 4, 2
JOBS = ("streams", "batches", "merges", "compaction")
STREAM_FILE_ROWS, BATCH_ROWS, MERGED_KEYS = 50, 40, 30
COMMITS_MIN = 3
"""How often each job must commit."""
FILES_PER_BATCH = 25
FILE_SECONDS = 3.0
KILL_SECONDS = (5.0, 30.0)
"""Between two kills."""
LOST_RACE = ("conflict", "too many concurrent writers")
"""What pylance says when a rewrite lost to other writers, once or until it gave up."""
RASH_KILLS = 0.15
"""How many of the kills take any job, in the middle of its start perhaps."""
LATER_SECONDS = 600.0
"""How much longer it may go on, until each job has committed often enough."""
FINISH_SECONDS = 900.0
"""For what is left to do when the kills end; a job needs a minute to start on a busy machine."""


@dataclass
class Job:
    """One job's process, and how often it was killed."""

    name: str
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    kills: int = 0
    deaths: list[str] = field(default_factory=list)
    """Ends that nobody asked for."""
    commits_before: int = 0
    """How often the job had committed when its process was started."""


def main() -> int:
    """Run it and print what came of it; 0 if all holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--job", choices=JOBS, help=argparse.SUPPRESS)
    parser.add_argument("--servers", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        run_job(arguments.job, arguments.servers, arguments.folder)
        return 0
    with tempfile.TemporaryDirectory(prefix="commitlog-chaos-") as folder:
        report = run(Path(folder), minutes=arguments.minutes, seed=arguments.seed)
    print(json.dumps(report, indent=2))
    return 0 if report["ok"] else 1


def run(folder: Path, *, minutes: float, seed: int) -> dict[str, Any]:
    """Run all jobs for a while, let them finish, and compare the table with the model."""
    choose = random.Random(seed)
    print(f"seed {seed}", file=sys.stderr, flush=True)
    for number in range(STREAMS):
        (folder / f"source-{number}").mkdir()
    with service(folder) as servers, CommitLog.connect(servers) as log:
        log.create_table(TABLE, SCHEMA, primary_key="key")
        jobs = [start(name, servers, folder) for name in JOBS]
        try:
            files = disturb(jobs, servers, folder, choose, minutes * 60)
            (folder / "finish").touch()
            finish(jobs)
        finally:
            for job in jobs:
                kill(job)
        report = compare(log, folder, files)
    report["seed"] = seed
    report["kills"] = {job.name: job.kills for job in jobs}
    report["commits"] = commits(folder)
    report["starved"] = starved(folder)
    report["failed_jobs"] = {job.name: job.deaths for job in jobs if job.deaths}
    wrong = ("lost", "repeated", "wrong", "failed_jobs", "starved")
    report["ok"] = not any(report[name] for name in wrong)
    if report["failed_jobs"]:
        report["said"] = {name: tail(folder / f"{name}.log") for name in report["failed_jobs"]}
    return report


@contextmanager
def service(folder: Path) -> Iterator[str]:
    """Run `commitlog up`; yield its Kafka address."""
    command = [sys.executable, "-m", "consumers.cli", "up", "--root", str(folder / "root")]
    with (folder / "up.log").open("wb") as log:
        up = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, stderr=log)
        try:
            assert up.stdout is not None
            ready = up.stdout.readline().decode().split()
            assert len(ready) > 3, tail(folder / "up.log")
            yield ready[3]
        finally:
            up.terminate()
            up.wait(60)


def start(name: str, servers: str, folder: Path) -> Job:
    """Start a job in a process group of its own, so that its JVM can be killed with it."""
    output = (folder / f"{name}.log").open("ab")
    return Job(name, _spawn(name, servers, folder, output), output)


def _spawn(name: str, servers: str, folder: Path, output: IO[bytes]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.spark_chaos", "--job", name, "--servers", servers]
    command += ["--folder", str(folder)]
    return subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)


def kill(job: Job) -> None:
    """Kill a job and all that it started."""
    try:
        os.killpg(job.process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    job.process.wait(120)


def disturb(
    jobs: list[Job], servers: str, folder: Path, choose: random.Random, seconds: float
) -> int:
    """Feed the streams and kill jobs for a while; return how many files each stream got."""
    begin, files = time.monotonic(), 0
    next_file, next_kill = 0.0, begin + choose.uniform(*KILL_SECONDS)
    while True:
        now = time.monotonic()
        is_late = now > begin + seconds + LATER_SECONDS
        if now > begin + seconds and (is_late or not starved(folder)):
            return files
        if now >= next_file:
            feed(folder, files)
            files, next_file = files + 1, now + FILE_SECONDS
        for job in jobs:
            code = job.process.poll()
            if code is not None:
                job.deaths.append(f"exit code {code}")
                job.process = _spawn(job.name, servers, folder, job.output)
        if now >= next_kill:
            is_rash = choose.random() < RASH_KILLS
            victims = [job for job in jobs if is_rash or moves(job, folder)]
            if victims:
                again(choose.choice(victims), servers, folder)
            next_kill = now + choose.uniform(*KILL_SECONDS)
        time.sleep(0.1)


def moves(job: Job, folder: Path) -> bool:
    """Return whether a job has committed since it was started."""
    return committed(job.name, folder) > job.commits_before


def again(job: Job, servers: str, folder: Path) -> None:
    """Kill a job and start it again."""
    kill(job)
    job.kills += 1
    job.commits_before = committed(job.name, folder)
    job.process = _spawn(job.name, servers, folder, job.output)


def committed(name: str, folder: Path) -> int:
    """Return how often a job, with all its parts, has committed."""
    return sum(count for part, count in commits(folder).items() if part.startswith(name))


def commits(folder: Path) -> dict[str, int]:
    """Return how often each part of each job has committed, as it noted itself."""
    found = {}
    for number in range(STREAMS):
        noted = (folder / f"checkpoint-{number}" / "commits").glob("[0-9]*")
        found[f"streams-{number}"] = max((int(path.name) + 1 for path in noted), default=0)
    names = [f"batches-{number}" for number in range(BATCH_JOBS)] + ["merges", "compaction"]
    return found | {name: progress(folder, name) for name in names}


def starved(folder: Path) -> list[str]:
    """Return which parts of the jobs have not committed often enough."""
    return [name for name, count in commits(folder).items() if count < COMMITS_MIN]


def feed(folder: Path, number: int) -> None:
    """Give each stream another file."""
    for stream in range(STREAMS):
        source = folder / f"source-{stream}"
        lines = [
            json.dumps({"key": f"s{stream}:{number}:{row}", "value": row})
            for row in range(STREAM_FILE_ROWS)
        ]
        part = source / f".{number:06}.json"
        part.write_text("\n".join(lines))
        part.rename(source / f"{number:06}.json")


def finish(jobs: list[Job]) -> None:
    """Let every job come to its end."""
    deadline = time.monotonic() + FINISH_SECONDS
    for job in jobs:
        try:
            code = job.process.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            job.deaths.append(f"not at its end after {FINISH_SECONDS:.0f} s")
            continue
        if code != 0:
            job.deaths.append(f"exit code {code}")


def compare(log: CommitLog, folder: Path, files: int) -> dict[str, Any]:
    """Compare the table with what the jobs should have made of it."""
    expected: dict[str, int] = {
        f"s{stream}:{number}:{row}": row
        for stream in range(STREAMS)
        for number in range(files)
        for row in range(STREAM_FILE_ROWS)
    }
    for job in range(BATCH_JOBS):
        for number in range(progress(folder, f"batches-{job}")):
            expected |= {f"b{job}:{number}:{row}": row for row in range(BATCH_ROWS)}
    expected |= merged(progress(folder, "merges"))
    info = log.table(TABLE)
    table = lance.dataset(info.location).to_table().to_pylist()
    counted = Counter(row["key"] for row in table)
    found = {row["key"]: row["value"] for row in table}
    return {
        "rows": len(table),
        "versions": info.version,
        "files_per_stream": files,
        "lost": sorted(expected.keys() - found.keys())[:10],
        "repeated": [key for key, count in counted.items() if count > 1][:10],
        "wrong": sorted(key for key in found if expected.get(key) != found[key])[:10],
    }


def merged(count: int) -> dict[str, int]:
    """Return the rows that so many merges make: each has all keys' values and adds one key."""
    if not count:
        return {}
    kept = {f"m:{key}": count - 1 for key in range(MERGED_KEYS)}
    return kept | {f"m:new:{number}": number for number in range(count)}


def progress(folder: Path, name: str) -> int:
    """Return how many steps a job noted as done."""
    path = folder / f"{name}.done"
    return int(path.read_text()) if path.exists() else 0


def goes_on(folder: Path, name: str) -> bool:
    """Return whether a job has something to do: until the end, and some steps at least."""
    return not (folder / "finish").exists() or progress(folder, name) < COMMITS_MIN


def note(folder: Path, name: str, count: int) -> None:
    """Note that so many steps are done."""
    part = folder / f"{name}.part"
    part.write_text(str(count))
    part.replace(folder / f"{name}.done")


def tail(path: Path) -> str:
    """Return the end of a file."""
    return path.read_text(errors="replace")[-3000:]


def run_job(name: str, servers: str, folder: Path) -> None:
    """Be one of the jobs."""
    end_with_parent()
    if name == "compaction":
        compact(servers, folder)
        return
    from commitlog.spark import CommitLogDataSource, local_session

    spark = local_session(name, memory="512m")
    spark.dataSource.register(CommitLogDataSource)
    options = {"kafka.bootstrap.servers": servers, "timeoutSeconds": "900"}
    {"streams": stream_rows, "batches": append_batches, "merges": merge_rows}[name](
        spark, options, folder
    )
    spark.stop()


def stream_rows(spark: Any, options: dict[str, str], folder: Path) -> None:
    """Four streaming queries, until all files are in the table."""
    while True:
        is_last = (folder / "finish").exists()
        queries = [_stream(spark, options, folder, number) for number in range(STREAMS)]
        for query in queries:
            query.awaitTermination()
        if is_last:
            return


def _stream(spark: Any, options: dict[str, str], folder: Path, number: int) -> Any:
    rows = spark.readStream.schema("key string, value long")
    rows = rows.option("maxFilesPerTrigger", FILES_PER_BATCH)
    sink = rows.json(str(folder / f"source-{number}")).writeStream.format("commitlog")
    sink = sink.options(**options).option("table", TABLE)
    sink = sink.option("checkpointLocation", str(folder / f"checkpoint-{number}"))
    return sink.trigger(availableNow=True).start()


def append_batches(spark: Any, options: dict[str, str], folder: Path) -> None:
    """Two batch jobs by turns: each batch has a number, so that it lands once."""
    while goes_on(folder, "batches-1"):
        for job in range(BATCH_JOBS):
            number = progress(folder, f"batches-{job}")
            key = f"concat('b{job}:{number}:', id)"
            frame = spark.range(BATCH_ROWS).selectExpr(f"{key} AS key", "id AS value")
            writer = frame.write.format("commitlog").options(**options).option("table", TABLE)
            writer = writer.options(txnAppId=f"batches-{job}", txnVersion=number)
            writer.mode("append").save()
            note(folder, f"batches-{job}", number + 1)


def merge_rows(spark: Any, options: dict[str, str], folder: Path) -> None:
    """Set all of its keys to the merge's number and insert another key."""
    from commitlog.spark import merge

    while goes_on(folder, "merges"):
        number = progress(folder, "merges")
        rows = [(f"m:{key}", number) for key in range(MERGED_KEYS)]
        rows.append((f"m:new:{number}", number))
        source = spark.createDataFrame(rows, "key string, value long")
        # Every third on the executors.
        merge(source, TABLE, "key", options=options, rows_in_driver=0 if number % 3 == 0 else 1000)
        note(folder, "merges", number + 1)


def compact(servers: str, folder: Path) -> None:
    """Rewrite small fragments; a rewrite that loses to another writer is simply done again."""
    with CommitLog.connect(servers) as log:
        while not (folder / "finish").exists():
            table = log.open(TABLE)
            try:
                done = table.optimize.compact_files(target_rows_per_fragment=100_000)
                if done.fragments_removed:
                    note(folder, "compaction", progress(folder, "compaction") + 1)
            except (OSError, RuntimeError) as error:
                if not any(word in str(error).lower() for word in LOST_RACE):
                    raise
            time.sleep(1.0)


if __name__ == "__main__":
    raise SystemExit(main())
