"""What the command line prints: results on standard output, everything else on standard error.

A listing is a table that fits the terminal, paged where it is longer than that; with `--json`, an
array; with `--csv`, rows for a spreadsheet; into a pipe, aligned columns of whole values, for
`grep` and `awk`. Colour appears on a terminal only, and never under NO_COLOR.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import json
import logging
import os
import select
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

from consumers.commands.columns import Column, Row, cut, fitting
from consumers.runtime.log_lines import is_json
from consumers.runtime.progress import OnCount, OnProgress, told_now_and_then

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID
    from rich.table import Table
    from rich.text import Text

logger = logging.getLogger(__name__)

_CHECK_WIDTH = len("leader's clock 0")

STYLES = {
    "committed": "green",
    "ok": "green",
    "retryable": "yellow",
    "superseded": "yellow",
    "warn": "yellow",
    "incompatible": "red",
    "rejected": "red",
    "fail": "red",
    "void": "dim",
}


def check_reader() -> None:
    """Raise BrokenPipeError if nobody reads what is printed any more, as after `| head -1`.

    A command that waits for news would otherwise learn it at the next line, which may never come.
    """
    try:
        descriptor = sys.stdout.fileno()
    except OSError:  # it is in memory
        return
    reader = select.poll()
    reader.register(descriptor, 0)
    if any(seen & (select.POLLERR | select.POLLHUP) for _, seen in reader.poll(0)):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def print_json(value: object) -> None:
    """Print one JSON document; a dataclass is an object of its fields."""
    print(json.dumps(value, indent=2 if sys.stdout.isatty() else None, default=_plain), flush=True)


def _plain(value: Any) -> object:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def print_listing(
    columns: Sequence[Column],
    rows: Sequence[Row],
    *,
    as_json: bool,
    nothing: str,
    as_csv: bool = False,
    names: Sequence[str] = (),
) -> None:
    """Print rows as a table, a JSON array or CSV; `nothing` is said when there are none.

    `names` are the columns of CSV where there is no row to tell them.
    """
    if as_json:
        print_json([dict(row) for row in rows])
    elif as_csv:
        _print_csv(rows, list(rows[0] if rows else names))
    elif not rows:
        note(nothing)
    elif sys.stdout.isatty():
        _print_table(columns, rows)
    else:
        _print_aligned(columns, rows)


def _print_csv(rows: Sequence[Row], header: Sequence[str]) -> None:
    """Print rows as CSV with a header; a list is a JSON array in its cell."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if header:
        writer.writerow(header)
    for row in rows:
        cells = (row[name] for name in header)
        writer.writerow(
            json.dumps(cell, default=str) if isinstance(cell, list | tuple | dict) else cell
            for cell in cells
        )
    sys.stdout.flush()


def print_facts(facts: Mapping[str, object], *, as_json: bool = False) -> None:
    """Print one JSON object, or names and values, one pair per line without empty values."""
    if as_json:
        print_json(facts)
        return
    shown = [(name, one_line(text(value))) for name, value in facts.items() if text(value)]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        print(f"{name:<{width}}  {value}")


def note(message: str) -> None:
    """Say something that isn't a result: on standard error, in the form of this part's log."""
    if is_json():
        logger.info(message)
        return
    with contextlib.suppress(OSError, ValueError):  # closed, for a timer that is late
        print(visible(message), file=sys.stderr, flush=True)


def text(value: object) -> str:
    """Return a value as people read it."""
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(text(one) for one in value)
    return str(value)


def day_and_time(row: Row) -> str:
    """Return a row's ISO 8601 time without year and fractions: `01-31 12:00:00`."""
    return clock(row["time"])[5:19]


def clock(value: object) -> str:
    """Return an ISO 8601 time without date separators' noise: `2026-01-31 12:00:00.123`."""
    return text(value).replace("T", " ").removesuffix("Z")


@contextlib.contextmanager
def progress(title: str) -> Iterator[OnProgress]:
    """Show a bar on a terminal, else a line now and then; call the value with (done, total)."""
    if not sys.stderr.isatty():
        far = 0, 0

        def reached(done: int, total: int) -> None:
            nonlocal far
            far = done, total

        with told_now_and_then(lambda: f"{title}: {far[0]:,} of {far[1]:,}", note):
            yield reached
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(title), BarColumn(), TextColumn("{task.completed:,.0f}"))
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextlib.contextmanager
def counts(title: str) -> Iterator[OnCount]:
    """Show how many of each kind are done, as `progress` does; call the value with (kind, done)."""
    if not sys.stderr.isatty():
        far: dict[str, int] = {}

        def how_far() -> str:
            counted = (f"{done:,} {kind}" for kind, done in far.copy().items())
            return f"{title}: {', '.join(counted) or 'nothing done yet'}"

        with told_now_and_then(how_far, note):
            yield far.__setitem__
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} {task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def show(kind: str, done: int) -> None:
            if kind not in tasks:
                tasks[kind] = bar.add_task(kind, total=None)
            bar.update(tasks[kind], completed=done)

        yield show


def _console() -> Console:
    """Return where results go: colour on a terminal only, and no escapes at all under NO_COLOR."""
    from rich.console import Console

    if os.environ.get("NO_COLOR"):
        return Console(highlight=False, color_system=None)
    return Console(highlight=False)


Part = str | tuple[Sequence[Column], Sequence[Row]]
"""A line, or a listing."""


@contextlib.contextmanager
def screen(*, live: bool) -> Iterator[Callable[[Sequence[Part]], None]]:
    """Show lines and listings again and again: in one place on a terminal if `live`."""
    console = _console()
    if not (live and sys.stdout.isatty()):
        yield lambda parts: _print_parts(parts, console)
        return
    from rich.console import Group
    from rich.live import Live

    with Live(console=console, screen=True, auto_refresh=False) as display:

        def show(parts: Sequence[Part]) -> None:
            shown = [one if isinstance(one, str) else _table(*one, console) for one in parts]
            display.update(Group(*shown), refresh=True)

        yield show


def _print_parts(parts: Sequence[Part], console: Console) -> None:
    for one in parts:
        if isinstance(one, str):
            print(one)
        elif one[1] and sys.stdout.isatty():
            console.print(_table(*one, console))
        elif one[1]:
            _print_aligned(*one)
    sys.stdout.flush()


def _print_table(columns: Sequence[Column], rows: Sequence[Row]) -> None:
    from rich.text import Text

    console = _console()
    table = _table(columns, rows, console)
    height = table.plain.count("\n") if isinstance(table, Text) else len(rows)
    if height < console.height:
        console.print(table)
        return
    # Colours, and no pager for what fits after all.
    os.environ.setdefault("LESS", "FRX")
    with console.pager(styles=True):
        console.print(table)


def _table(columns: Sequence[Column], rows: Sequence[Row], console: Console) -> Table | Text:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    cells = {
        column.title: [visible(text((column.brief or column.of)(row))) for row in rows]
        for column in columns
    }
    shown = fitting(columns, cells, console.width)
    if shown is None:
        return _below_each_other(columns, rows)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in shown:
        table.add_column(
            column.title,
            justify="right" if column.is_number else "left",
            overflow="fold" if column.gives_way else "ellipsis",
            no_wrap=not column.gives_way,
        )
    lines = [[cut(cell, width) for cell in cells[one.title]] for one, width in shown.items()]
    for line in zip(*lines, strict=True):
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in line))
    return table


def _below_each_other(columns: Sequence[Column], rows: Sequence[Row]) -> Text:
    """Return rows whose cells stand below each other, for a terminal too narrow for a table."""
    from rich.text import Text

    width = max(len(one.title) for one in columns)
    made = Text()
    for row in rows:
        for one in columns:
            if cell := visible(text(one.of(row))):
                made.append(f"{one.title:<{width}}  ").append(cell + "\n", STYLES.get(cell, ""))
        made.append("\n")
    made.right_crop(1)
    return made


def _print_aligned(columns: Sequence[Column], rows: Sequence[Row]) -> None:
    from rich.cells import cell_len

    lines = [[column.title for column in columns]]
    lines += [[one_line(text(column.of(row))) or "-" for column in columns] for row in rows]
    widths = [max(cell_len(line[position]) for line in lines) for position in range(len(columns))]
    for line in lines:
        cells = [
            _padded(cell, width - cell_len(cell), at_left=column.is_number)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ]
        print("  ".join(cells).rstrip())


def _padded(cell: str, spaces: int, *, at_left: bool) -> str:
    return " " * spaces + cell if at_left else cell + " " * spaces


def one_line(value: str) -> str:
    """Return a text in one line, in which nothing steers a terminal."""
    return visible(" ".join(value.split()))


def visible(value: str) -> str:
    """Return a text in which what would steer a terminal is shown as its escape."""
    if value.isprintable():
        return value
    return "".join(one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in value)


def print_check(name: str, level: str, message: str, advice: str = "") -> None:
    """Print one finding, with what to do below it."""
    begins = visible(f"{level:<4}  {name:<{_CHECK_WIDTH}}  ")
    _print_beside(begins, message, STYLES.get(level, ""))
    if advice and level != "ok":
        _print_beside(f"{'':<{len(begins)}}-> ", advice)


def _print_beside(begins: str, words: str, style: str = "") -> None:
    """Print words beside the beginning of a line, whose level has a style; wrapped on a terminal.

    In a pipe they are one line.
    """
    from rich.text import Text

    console, text = _console(), Text(visible(words))
    room = max(1, console.width - len(begins))
    for number, line in enumerate(text.wrap(console, room) if sys.stdout.isatty() else [text]):
        margin = (
            Text(" " * len(begins)) if number else Text.assemble((begins[:4], style), begins[4:])
        )
        console.print(margin + line, soft_wrap=True)
