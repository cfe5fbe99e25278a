"""Pictures of what `commitlog bench all` measured, as SVG (extra `plots`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consumers.tools.bench.aims import PIPELINED, Suites, rows_of
from consumers.views.plots import figure_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 8
OURS, OTHERS = ("#2f7d4f", "#7fb894"), ("#2b5d8c", "#d9902f", "#7a5aa6", "#8a8a8a")


def draw(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw what there is to draw into a folder; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    suites: Suites = found.get("suites", {})
    made = []
    for name, figure in _figures(suites):
        path = folder / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None})
        made.append(path)
    return made


def _figures(suites: Suites) -> Iterator[tuple[str, Figure]]:
    commits = [r for r in rows_of(suites, "commit", "summary") if r["system"] != PIPELINED]
    if commits:
        yield "commits", _by_writers(commits, "commits_per_second", "commits per second")
        yield "latency", _by_writers(commits, "p99_ms", "p99, ms")
    merges = rows_of(suites, "merge", "summary")
    if merges:
        yield "merges", _by_writers(merges, "commits_per_second", "commits per second")
    if rows_of(suites, "growth", "points", curve="fragments"):
        yield "growth", _growth(suites)


def _by_writers(rows: Sequence[Mapping[str, Any]], key: str, label: str) -> Figure:
    """Draw a bar for each system at each number of writers, on a scale of powers of ten."""
    figure, [axes] = figure_of(width=WIDTH)
    counts = sorted({row["writers"] for row in rows})
    systems = list(dict.fromkeys(row["system"] for row in rows))
    colors = _colors(systems)
    width = 0.8 / len(systems)
    for place, system in enumerate(systems):
        mine = {row["writers"]: row[key] for row in rows if row["system"] == system}
        at = [counts.index(count) + (place + 0.5) * width - 0.4 for count in mine]
        bars = axes.bar(at, list(mine.values()), width * 0.92, label=system, color=colors[place])
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=7)
    axes.set_xticks(range(len(counts)), [f"{n} writer{'s' * (n > 1)}" for n in counts])
    axes.set_yscale("log")
    axes.set_ylim(bottom=min([1.0, *(row[key] for row in rows if row[key] > 0)]))
    axes.set_ylabel(label)
    figure.legend(loc="outside upper center", ncols=4, fontsize=8, frameon=False)
    return figure


def _growth(suites: Suites) -> Figure:
    figure, [axes] = figure_of(width=WIDTH)
    points = rows_of(suites, "growth", "points", curve="fragments")
    at = [point["at"] for point in points]
    for key, color in (("committed_p50_ms", OURS[0]), ("readable_p50_ms", OURS[1])):
        label = f"commitlog, {key.split('_')[0]}"
        axes.plot(at, [point[key] for point in points], "o-", label=label, color=color)
    peers = rows_of(suites, "growth", "pylance")
    if peers:
        heights = [peer["p50_ms"] for peer in peers]
        axes.plot([peer["at"] for peer in peers], heights, "s--", label="pylance", color=OTHERS[0])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("fragments of the table")
    axes.set_ylabel("a lone writer's commit, p50 ms")
    figure.legend(loc="outside upper center", ncols=3, fontsize=8, frameon=False)
    return figure


def _colors(systems: Sequence[str]) -> list[str]:
    ours = [name for name in systems if "commitlog" in name]
    others = [name for name in systems if name not in ours]
    chosen = {name: OURS[n % len(OURS)] for n, name in enumerate(ours)}
    chosen |= {name: OTHERS[n % len(OTHERS)] for n, name in enumerate(others)}
    return [chosen[name] for name in systems]
