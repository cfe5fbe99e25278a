"""Pictures of a log, as PNG or SVG: what was committed and refused, growth, who meets whom.

matplotlib draws them (extra `plots`); it is imported when a picture is asked for.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commitlog.errors import CommitLogError
from consumers import history
from consumers.history import Row
from consumers.runtime.config import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
BUCKETS = 120
GROWTH_POINTS = 400
WRITERS_MAX = 16
"""The busiest ones; a map of more cannot be read."""
DPI = 144
COLORS = {
    "committed": "#2f7d4f",
    "retryable": "#d9902f",
    "incompatible": "#b8433b",
    "rejected": "#7a5aa6",
    "superseded": "#8a8a8a",
}
"""Told apart by those who see red and green alike, by lightness."""

TIMES = """
WITH span AS (SELECT epoch_ms(min(time)) AS low, epoch_ms(max(time)) AS high
              FROM {source}),
placed AS (
    SELECT status, least((epoch_ms(time) - low) * {buckets} // greatest(high - low, 1),
                         {buckets} - 1) AS bucket
    FROM {source}, span WHERE status <> 'repeated')
SELECT bucket, status, count(*) AS n, any_value(low) AS low, any_value(high) AS high
FROM placed, span GROUP BY bucket, status ORDER BY bucket, status
"""
RIVALS = """
SELECT principal, winner_principal, count(*) AS n FROM {source}
GROUP BY ALL ORDER BY n DESC, principal, winner_principal
"""
ALL = "n := 9223372036854775807"
"""As many as a macro has; it knows a table by all its names."""


class NothingToPlot(CommitLogError):
    """The log has nothing of the kind that was asked for."""


def plot(
    kind: str, root: str | os.PathLike[str], table: str | None, file: str | os.PathLike[str]
) -> Path:
    """Draw a picture (`commits`, `growth` or `conflicts`) into a file; return its path.

    Raises:
        ConfigurationError: the kind or the file's ending is unknown, or growth names no table.
        NothingToPlot: there is nothing to show.
        NoSuchTable: the index doesn't know the table.
        ModuleNotFoundError: matplotlib is not installed.
    """
    path = Path(file)
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigurationError(
            f"a picture's file ends with {' or '.join(SUFFIXES)}, not {path.name!r}"
        )
    if kind not in KINDS:
        raise ConfigurationError(f"there is no picture {kind!r}; there are {', '.join(KINDS)}")
    figure = KINDS[kind](root, table)
    # Nothing of the day it was drawn: the same log gives the same bytes.
    metadata: dict[str, Any] = {"Date": None} if path.suffix.lower() == ".svg" else {}
    try:
        figure.savefig(path, dpi=DPI, metadata=metadata)
    except OSError as error:
        error.filename = str(path)  # of a full disk the system names no file
        raise
    return path


def figure_of(rows: int = 1, *, width: float = 10) -> tuple[Figure, list[Axes]]:
    """Return an empty picture of so many axes below each other."""
    import matplotlib

    # No window, and no state shared with other drawings of this process.
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "commitlog"
    figure = Figure(figsize=(width, 3.2 * rows + 0.8), layout="constrained")
    found = figure.subplots(rows, 1, sharex=True, squeeze=False)
    axes = [one for (one,) in found]
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(axis="y", alpha=0.25)
    return figure, axes


def _commits(root: str | os.PathLike[str], table: str | None) -> Figure:
    source = f"history(?, {ALL})" if table else "operations"
    values = [table, table] if table else []
    rows = history.query(root, TIMES.format(source=source, buckets=BUCKETS), values)
    if not rows:
        if table:
            history.history(root, table, limit=1)  # an unknown one is told as such
        raise NothingToPlot("nothing was decided yet")
    low, high = int(str(rows[0]["low"])), int(str(rows[0]["high"]))
    width = max(high - low, 1) / BUCKETS
    counts: Mapping[str, dict[int, int]] = defaultdict(dict)
    for row in rows:
        counts[str(row["status"])][int(str(row["bucket"]))] = int(str(row["n"]))
    figure, axes = figure_of(2)
    places = [_moment(low + width * (n + 0.5)) for n in range(BUCKETS)]
    for axis, names in ((axes[0], ["committed"]), (axes[1], [*COLORS][1:])):
        below = [0] * BUCKETS
        for name in names:
            if name not in counts:
                continue
            heights = [counts[name].get(n, 0) for n in range(BUCKETS)]
            bar = timedelta(milliseconds=width)
            axis.bar(places, heights, bar, below, label=name, color=COLORS[name])  # type: ignore[arg-type]
            below = [one + more for one, more in zip(below, heights, strict=True)]
        if any(name in counts for name in names):
            axis.legend(loc="upper left")
    axes[0].set_title(f"Commits and refusals{f' of {table}' if table else ''}", loc="left")
    axes[0].set_ylabel(f"operations per {_duration(width)}")
    axes[1].set_ylabel("refused")
    axes[1].set_xlabel("log time, UTC")
    return figure


def _growth(root: str | os.PathLike[str], table: str | None) -> Figure:
    if not table:
        raise ConfigurationError("growth is of one table; name it: plot growth TABLE")
    rows = history.growth(root, table, points=GROWTH_POINTS)
    if not rows:
        raise NothingToPlot(f"{table} has no data yet")
    figure, axes = figure_of(3)
    times: list[Any] = [datetime.fromisoformat(str(row["time"])) for row in rows]
    for axis, name in zip(axes, ("rows", "files", "bytes"), strict=True):
        values = [float(str(row[name] or 0)) for row in rows]
        axis.step(times, values, where="post", color="#2b5d8c")
        axis.fill_between(times, values, step="post", color="#2b5d8c", alpha=0.15)
        axis.set_ylabel(name)
        axis.set_ylim(bottom=0)
    axes[0].set_title(f"Growth of {table}", loc="left")
    axes[-1].set_xlabel("log time, UTC")
    return figure


def _conflicts(root: str | os.PathLike[str], table: str | None) -> Figure:
    source = f"conflicts_of(?, {ALL})" if table else "conflicts"
    rows = history.query(root, RIVALS.format(source=source), [table] if table else [])
    if not rows:
        if table:
            history.history(root, table, limit=1)
        raise NothingToPlot("no conflicts")
    losers = _busiest(rows, "principal")
    winners = _busiest(rows, "winner_principal")
    counts = {(str(r["principal"]), str(r["winner_principal"])): int(str(r["n"])) for r in rows}
    grid = [[counts.get((loser, winner), 0) for winner in winners] for loser in losers]
    from matplotlib.figure import Figure

    size = (3.5 + 0.55 * len(winners), 2.6 + 0.45 * len(losers))
    figure = Figure(figsize=size, layout="constrained")
    axis = figure.subplots()
    picture = axis.imshow(grid, cmap="Blues", vmin=0)
    axis.set_xticks(range(len(winners)), [one or "(unnamed)" for one in winners], rotation=90)
    axis.set_yticks(range(len(losers)), [one or "(unnamed)" for one in losers])
    middle = max(max(line) for line in grid) / 2
    for y, line in enumerate(grid):
        for x, count in enumerate(line):
            if count:
                color = "white" if count > middle else "black"
                axis.text(x, y, str(count), ha="center", va="center", color=color, fontsize=8)
    axis.set_xlabel("won")
    axis.set_ylabel("lost")
    axis.set_title(f"Who lost to whom{f' on {table}' if table else ''}", loc="left")
    figure.colorbar(picture, ax=axis, label="conflicts")
    return figure


KINDS: Mapping[str, Callable[[str | os.PathLike[str], str | None], Figure]] = {
    "commits": _commits,
    "growth": _growth,
    "conflicts": _conflicts,
}
"""What can be drawn, by name."""


def _busiest(rows: Sequence[Row], name: str) -> list[str]:
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        counts[str(row[name])] += int(str(row["n"]))
    return sorted(sorted(counts, key=lambda one: (-counts[one], one))[:WRITERS_MAX])


def _moment(milliseconds: float) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _duration(milliseconds: float) -> str:
    for unit, size in (("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if milliseconds >= size:
            return f"{milliseconds / size:.3g} {unit}"
    return f"{milliseconds:.3g} ms"
