"""The demo from beginning to end.

    prepare the input ▸ start the service ▸ make and fill tables ▸ stream and desks at once
    ▸ compare every row ▸ report

Every part can be killed with -9, the demo too: what was committed is committed, and running the
demo again continues from there and ends with the same rows.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from commitlog.errors import Unavailable
from commitlog.model.records import Application
from consumers.tools.demo import check, flights, report
from consumers.tools.demo.children import ChildFailed, DemoProcess, DemoService, Fact
from consumers.tools.demo.desks import (
    AIRPORTS,
    AIRPORTS_KEY,
    AIRPORTS_SCHEMA,
    DESK_COUNT,
    LATE_STARTS,
    WEATHER,
    WEATHER_KEY,
    WEATHER_SCHEMA,
    airports_table,
    plan,
    read_airports,
    read_observations,
    weather_table,
)
from consumers.tools.demo.run import Run, open_run
from consumers.tools.demo.source import FLIGHTS_ROWS, SLICES_PER_BATCH, prepare_slices

if TYPE_CHECKING:
    from commitlog import CommitLog

POLL_SECONDS = 0.2
INDEX_SECONDS = 60.0
FIRST_BATCH_SECONDS = 60.0
PIPE_WIDTH = 120
SET_UP_STEPS = ((flights.TABLE, 0), (WEATHER, 1), (AIRPORTS, 2))


def run_demo(root: Path, *, stay: bool) -> int:
    """Run the demo on a root; return the exit code: 0 if every row and count is as it must be.

    With `stay` the service and its page continue until Ctrl-C.
    """
    console = _console()
    started = time.monotonic()
    root = root.absolute()
    run, how = open_run(root)
    console.print(_greeting(run, how))
    logs = run.folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with _progress(console) as progress:
        bar = progress.add_task("cutting a year of flights into weekly files", total=FLIGHTS_ROWS)
        slices = prepare_slices(run.slices, lambda rows: progress.update(bar, completed=rows))
        progress.update(bar, completed=FLIGHTS_ROWS)
        bar = progress.add_task("starting broker, leader, index and server", total=1)
        service = DemoService(root, log=logs / "up.log")
        progress.update(bar, completed=1)
        with contextlib.ExitStack() as stack:
            stack.callback(service.stop)
            log = _connect(service.kafka)
            bar = progress.add_task("making and filling tables", total=len(SET_UP_STEPS))
            run = _set_up(log, run, lambda: progress.advance(bar))
            _work(service, run, logs, progress, -(-len(slices) // SLICES_PER_BATCH))
            bar = progress.add_task("comparing every row with the source", total=1)
            compared = check.compare(log, run.folder)
            _await_index(log, root)
            counts = check.counts(root, run.first_sequence)
            progress.update(bar, completed=1)
            progress.stop()
            report.show(console, root, run.first_sequence, compared, counts)
            is_good = not report.problems(compared, counts)
            if is_good:
                run.finished()
                report.rates(console, report.measure(log, service.kafka, run.folder))
                took = time.monotonic() - started
                console.print(f"\n[green]All as it must be[/], after {took:.0f} s.")
            report.page(console, root, service.http, stays=stay)
            if stay:
                keep_open(service)
    return 0 if is_good else 1


def keep_open(service: DemoService) -> None:
    """Look after the service until Ctrl-C."""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            service.check()
            time.sleep(POLL_SECONDS)


def _console() -> Console:
    """Return a console that is wide enough where there is no terminal to fit."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPE_WIDTH)


def _greeting(run: Run, how: str) -> str:
    said = {
        "first": "the first run",
        "resumed": f"going on with run {run.number}, which was interrupted",
        "next": f"run {run.number}; the earlier ones stay in the tables' history",
    }
    return (
        f"[bold]A year of New York flights through the log, with {DESK_COUNT} writers beside it"
        f"[/] ({said[how]})\nroot {run.root}"
    )


def _connect(kafka: str) -> CommitLog:
    from commitlog import CommitLog

    return CommitLog.connect(kafka, principal="demo")


def _set_up(log: CommitLog, run: Run, on_step: Callable[[], None]) -> Run:
    """Make the tables, empty them if an earlier run filled them, and load what the desks edit."""
    observations = [row for row in read_observations() if row.time_hour < LATE_STARTS]
    tables: tuple[tuple[str, Any, tuple[str, ...], Any], ...] = (
        (flights.TABLE, flights.SCHEMA, (), None),
        (WEATHER, WEATHER_SCHEMA, WEATHER_KEY, weather_table(observations)),
        (AIRPORTS, AIRPORTS_SCHEMA, AIRPORTS_KEY, airports_table(read_airports())),
    )
    for number, (name, schema, key, rows) in enumerate(tables):
        log.create_table(name, schema, primary_key=list(key) or None, exist_ok=True)
        emptied = _empty(log, name, _application(run, 2 * number))
        if not run.first_sequence:
            run = run.with_start(emptied)
        if rows is not None:
            log.append(name, rows, application=_application(run, 2 * number + 1))
        on_step()
    return run


def _empty(log: CommitLog, table: str, application: Application) -> int:
    """Take out an earlier run's rows, as one commit; return its position."""
    import lance

    operation = lance.LanceOperation.Overwrite(log.table(table).schema, [])
    outcome = log.submit(table, operation, application=application).result()
    return outcome.raise_for_conflict().sequence


def _application(run: Run, step: int) -> Application:
    return Application(f"demo-{run.seed}-set-up", step, run.seed)


def _work(service: DemoService, run: Run, logs: Path, progress: Progress, batch_count: int) -> None:
    """Run the stream and the desks until all are done."""
    observations = read_observations()
    steps = sum(len(plan(desk, observations)) for desk in range(DESK_COUNT))
    stream_bar = progress.add_task("Spark: weekly files into nyc$flights", total=batch_count)
    desk_bar = progress.add_task("eight desks: nyc$weather and nyc$airports", total=steps)
    progress.update(desk_bar, completed=len(check.journals(run.folder)))
    progress.update(stream_bar, completed=_batches_done(run))

    is_flowing = threading.Event()

    def on_batch(fact: Fact) -> None:
        if "batch" in fact:
            is_flowing.set()
            progress.update(stream_bar, completed=int(fact["batch"]) + 1)

    def on_step(fact: Fact) -> None:
        if "step" in fact:
            progress.advance(desk_bar)

    where = ["--bootstrap-servers", service.kafka]
    stream = ["-m", "consumers.tools.demo.flights_stream", "--slices", str(run.slices)]
    stream += ["--checkpoint", str(run.checkpoint), *where]
    with contextlib.ExitStack() as stack:
        children = [DemoProcess("the stream", stream, log=logs / "stream.log", on_fact=on_batch)]
        stack.callback(children[0].stop)
        _await_flow(children[0], service, is_flowing)
        for number in range(DESK_COUNT):
            desk = ["-m", "consumers.tools.demo.desk", "--desk", str(number)]
            desk += ["--folder", str(run.folder), "--seed", run.seed, *where]
            name = f"desk {number}"
            child = DemoProcess(name, desk, log=logs / f"desk-{number}.log", on_fact=on_step)
            stack.callback(child.stop)
            children.append(child)
        running = children
        while running:
            time.sleep(POLL_SECONDS)
            service.check()
            running = [child for child in running if not child.check()]
    progress.update(stream_bar, completed=batch_count)
    progress.update(desk_bar, completed=len(check.journals(run.folder)))


def _await_flow(stream: DemoProcess, service: DemoService, is_flowing: threading.Event) -> None:
    """Wait for the stream's first batch, so that stream and desks commit at the same time."""
    deadline = time.monotonic() + FIRST_BATCH_SECONDS
    while time.monotonic() < deadline and not is_flowing.wait(POLL_SECONDS):
        service.check()
        if stream.check():
            return


def _batches_done(run: Run) -> int:
    """Return how many batches the stream's checkpoint says are done."""
    commits = run.checkpoint / "commits"
    return sum(path.name.isdigit() for path in commits.iterdir()) if commits.is_dir() else 0


def _await_index(log: CommitLog, root: Path) -> None:
    """Wait until the version index knows every table's head."""
    heads = {name: log.table(name).version for name in (flights.TABLE, WEATHER, AIRPORTS)}
    deadline = time.monotonic() + INDEX_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(Unavailable):
            indexed = check.indexed_versions(root)
            if all(indexed.get(name, 0) >= version for name, version in heads.items()):
                return
        time.sleep(POLL_SECONDS)
    raise ChildFailed(f"the version index did not reach {heads}; see {root}/index.log")


@contextlib.contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield progress
