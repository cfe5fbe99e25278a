"""The demo's input, and its transformation in plain Arrow beside one row at a time."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from consumers.tools.demo import flights, source
from consumers.tools.demo.source import FLIGHTS_ROWS, open_flights, prepare_slices, read_rows

LINES = 2_000
FLOATS = ("temp", "wind_speed", "precip", "visib")
INTEGERS = ("flight", "dep_delay", "arr_delay", "air_time", "distance")


def plain(row: dict[str, str], lookup: dict[str, dict[Any, dict[str, str]]]) -> dict[str, Any]:
    """Transform one flight, one field at a time."""

    def value(text: str | None, kind: Any = str) -> Any:
        return None if text in (None, "NA") else kind(text)

    year, month, day, local_hour = (int(row[n]) for n in ("year", "month", "day", "hour"))
    zone = ZoneInfo(flights.ZONE)
    hour = datetime(year, month, day, local_hour, tzinfo=zone).astimezone(UTC)
    scheduled = hour + timedelta(minutes=int(row["minute"]))
    delay = value(row["dep_delay"], int)
    plane = lookup["planes"].get(row["tailnum"], {})
    weather = lookup["weather"].get((row["origin"], hour.strftime("%Y-%m-%dT%H:%M:%SZ")), {})
    return {
        "scheduled_departure": scheduled,
        "departure": None if delay is None else scheduled + timedelta(minutes=delay),
        "carrier": row["carrier"],
        "airline": lookup["airlines"][row["carrier"]]["name"],
        "tailnum": value(row["tailnum"]),
        "manufacturer": value(plane.get("manufacturer")),
        "model": value(plane.get("model")),
        "plane_year": value(plane.get("year"), int),
        "seats": value(plane.get("seats"), int),
        "origin": row["origin"],
        "dest": row["dest"],
        "cancelled": row["dep_time"] == "NA",
        **{name: value(row[name], int) for name in INTEGERS},
        **{name: value(weather.get(name), float) for name in FLOATS},
    }


def plain_lookup() -> dict[str, dict[Any, dict[str, str]]]:
    return {
        "airlines": {row["carrier"]: row for row in read_rows("airlines.csv")},
        "planes": {row["tailnum"]: row for row in read_rows("planes.csv")},
        "weather": {(row["origin"], row["time_hour"]): row for row in read_rows("weather.csv")},
    }


@pytest.fixture(scope="module")
def some_lines() -> str:
    """The header, and lines from all over the year."""
    with open_flights() as text:
        header, *lines = text.readlines()
    assert len(lines) == FLIGHTS_ROWS
    return header + "".join(lines[:: FLIGHTS_ROWS // LINES])


@pytest.mark.slow
def test_each_flight_is_what_plain_python_makes_of_it(tmp_path: Path, some_lines: str) -> None:
    path = tmp_path / "some.csv"
    path.write_text(some_lines)
    found = flights.transform(
        flights.read_csv(path),
        *(
            flights.read_csv(source.data_file(f"{n}.csv"))
            for n in ("airlines", "planes", "weather")
        ),
    )
    lookup = plain_lookup()
    rows = [plain(row, lookup) for row in csv.DictReader(io.StringIO(some_lines))]
    rows.sort(key=lambda row: [row[name] for name in flights.KEY])
    assert found.schema == flights.SCHEMA
    for was, should in zip(found.to_pylist(), rows, strict=True):
        assert was == should


@pytest.mark.slow
def test_slices_hold_every_line_once_and_in_order(
    tmp_path: Path, some_lines: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "open_flights", lambda: io.StringIO(some_lines))
    partial = tmp_path / "flights.partial"
    partial.mkdir()
    (partial / "left-from-a-crash").touch()
    slices = prepare_slices(tmp_path / "flights")
    header, *lines = some_lines.splitlines()
    cut = [path.read_text().splitlines() for path in slices]
    assert {tuple(part[:1]) for part in cut} == {(header,)}
    assert sorted(line for part in cut for line in part[1:]) == sorted(lines)
    assert len(slices) == 53
    times = [path.stat().st_mtime for path in slices]
    assert times == sorted(set(times))
    assert prepare_slices(tmp_path / "flights") == slices


def test_the_data_is_named_if_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "DISTRIBUTION", "no-such-distribution")
    with pytest.raises(source.NoData, match=r"lance-commitlog\[demo\]"):
        source.data_file("planes.csv")
