"""The columns of a listing, and which of them a terminal has room for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]

_FOLDED_WIDTH = 24
_NAME_WIDTH = 24
"""To which a long name is cut before any other column leaves, or a number is cut."""
_BETWEEN = 3
"""Cells between two columns of a table; the last one has two beside it."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a listing."""

    title: str
    show: Callable[[Row], object] | str = ""
    """What it shows of a row, or what that is called there; nothing: as the column."""
    is_number: bool = False
    gives_way: bool = False
    """Whether it is folded where the terminal is narrow."""
    leaves: int = 0
    """Where the terminal is too narrow for all, the column with the highest number leaves first; 0
    stays, and its texts are cut in the middle."""
    brief: Callable[[Row], object] | None = None
    """What a terminal shows instead."""

    def of(self, row: Row) -> object:
        """Return what it shows of a row."""
        return self.show(row) if callable(self.show) else row[self.show or self.title]


def fitting(
    columns: Sequence[Column], cells: Mapping[str, Sequence[str]], width: int
) -> dict[Column, int] | None:
    """Return the columns that there is room for, each with the cells that a text may take.

    None if the terminal is too narrow for those that never leave.
    """
    from rich.cells import cell_len

    widths = {one: max(map(cell_len, [one.title, *cells[one.title]])) for one in columns}
    names = [one for one in columns if not (one.is_number or one.gives_way or one.leaves)]
    folded = {one: _FOLDED_WIDTH for one in columns if one.gives_way}
    least = {**folded, **dict.fromkeys(names, _NAME_WIDTH)}

    def room() -> int:
        taken = (min(widths[one], least.get(one, widths[one])) + _BETWEEN for one in widths)
        return width + 1 - sum(taken)

    while room() < 0 and (leaving := max(widths, key=lambda one: one.leaves)).leaves:
        del widths[leaving]
    if room() < 0:
        return None
    # What is left over is for the names, the shortest first.
    for done, one in enumerate(sorted(names, key=lambda one: widths[one])):
        least[one] = _NAME_WIDTH + max(0, room()) // (len(names) - done)
    return {one: least[one] if one in names else sys.maxsize for one in widths}


def cut(value: str, width: int) -> str:
    """Return a text in so many cells, with an ellipsis in its middle if it is longer."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(value) <= width or "\n" in value:
        return value
    tail = set_cell_size(value[::-1], (width - 1) // 2)[::-1]
    return f"{set_cell_size(value, width // 2)}…{tail}"
