"""What the eight desks do to two tables, as pure values, and what must come of it.

Each desk keeps the weather observations of its own hours, so whatever order the desks' commits get
the same rows remain; but their rows are in the same fragments, and all bump the same three rows of
`nyc$airports`, so they meet all the time. A desk's steps are a function of the data alone: run
again after a crash, step 17 asks for what step 17 asked for before.

`Ledger` is the plain model: dictionaries, one row at a time, no Lance and no log. It is fed the
steps that were acknowledged, and says which rows the tables must hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import pyarrow as pa

from consumers.tools.demo.source import read_rows

WEATHER = "nyc$weather"
AIRPORTS = "nyc$airports"
DESK_COUNT = 8
ROUND_COUNT = 10
STATIONS = ("EWR", "JFK", "LGA")
CALIBRATION = 0.875
"""A power of two divides it, so that every engine computes the same double."""
YEAR_STARTS = datetime(2013, 1, 1, tzinfo=UTC)
LATE_STARTS = datetime(2013, 7, 1, tzinfo=UTC)
"""Observations before this are loaded at the start; the desks bring the others."""
ROUND = timedelta(days=18)

INSTANT = pa.timestamp("us", "UTC")
MEASURED = (
    "temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib",
)  # fmt: skip
WEATHER_SCHEMA = pa.schema(
    [
        pa.field("origin", pa.string(), nullable=False),
        pa.field("time_hour", INSTANT, nullable=False),
        pa.field("desk", pa.int32()),
        *(pa.field(name, pa.float64()) for name in MEASURED),
        pa.field("revision", pa.int32()),
    ]
)
WEATHER_KEY = ("origin", "time_hour")
AIRPORTS_SCHEMA = pa.schema(
    [
        pa.field("faa", pa.string(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("lat", pa.float64()),
        pa.field("lon", pa.float64()),
        pa.field("alt", pa.int64()),
        pa.field("tzone", pa.string()),
        pa.field("reports", pa.int64()),
        pa.field("observations", pa.int64()),
    ]
)
AIRPORTS_KEY = ("faa",)
Key = tuple[str, datetime]


@dataclass(frozen=True, slots=True)
class StationHour:
    """One hour at one station."""

    origin: str
    time_hour: datetime
    desk: int
    measured: tuple[float | None, ...]
    revision: int = 0

    @property
    def key(self) -> Key:
        """What names it."""
        return self.origin, self.time_hour


@dataclass(frozen=True, slots=True)
class Airport:
    """An airport, and what the desks published for it."""

    faa: str
    about: tuple[str | float | int, ...]
    reports: int = 0
    observations: int = 0


class StepKind(StrEnum):
    """What a step does."""

    PUBLISH = "publish"
    """Append observations and count them at the airport: two tables, one transaction."""
    CORRECT = "correct"
    APPEND = "append"
    DELETE = "delete"
    UPSERT = "upsert"


@dataclass(frozen=True, slots=True)
class DeskStep:
    """One transaction of a desk. `rows` is for those that bring rows, the window for the others."""

    desk: int
    number: int
    kind: StepKind
    station: str = ""
    since: datetime = YEAR_STARTS
    until: datetime = YEAR_STARTS
    rows: tuple[StationHour, ...] = ()

    def where(self) -> str:
        """Return the window as SQL."""
        return (
            f"desk = {self.desk} AND origin = '{self.station}'"
            f" AND time_hour >= {_sql_instant(self.since)}"
            f" AND time_hour < {_sql_instant(self.until)}"
        )

    def covers(self, row: StationHour) -> bool:
        """Return True if a row is in the window."""
        mine = row.desk == self.desk and row.origin == self.station
        return mine and self.since <= row.time_hour < self.until


def read_observations() -> list[StationHour]:
    """Return the year's weather, each row given to the desk that keeps its hour."""
    rows = []
    for row in read_rows("weather.csv"):
        at = datetime.fromisoformat(row["time_hour"])
        desk = int(at.timestamp()) // 3600 % DESK_COUNT
        measured = tuple(None if row[n] == "NA" else float(row[n]) for n in MEASURED)
        rows.append(StationHour(row["origin"], at, desk, measured))
    return rows


def read_airports() -> list[Airport]:
    """Return the airports."""
    return [
        Airport(
            row["faa"],
            (row["name"], float(row["lat"]), float(row["lon"]), int(row["alt"]), row["tzone"]),
        )
        for row in read_rows("airports.csv")
    ]


def plan(desk: int, observations: Sequence[StationHour]) -> list[DeskStep]:
    """Return a desk's steps in order."""
    mine = sorted(
        (r for r in observations if r.desk == desk), key=lambda r: (r.time_hour, r.origin)
    )
    early = [row for row in mine if row.time_hour < LATE_STARTS]
    late = [row for row in mine if row.time_hour >= LATE_STARTS]
    steps: list[DeskStep] = []

    def add(kind: StepKind, **what: object) -> None:
        steps.append(DeskStep(desk, len(steps), kind, **what))  # type: ignore[arg-type]

    per_round = len(late) // ROUND_COUNT + 1
    for number in range(ROUND_COUNT):
        since = YEAR_STARTS + number * ROUND
        station, other = (STATIONS[(desk + number + i) % len(STATIONS)] for i in range(2))
        brought = late[number * per_round : (number + 1) * per_round]
        published = tuple(row for row in brought if row.origin == station)
        appended = tuple(row for row in brought if row.origin == other)
        missed = tuple(row for row in brought if row.origin not in (station, other))
        repaired = tuple(_repaired(early, since, since + ROUND))
        add(StepKind.PUBLISH, station=station, rows=published)
        add(StepKind.UPSERT, rows=repaired + missed)
        add(StepKind.CORRECT, station=station, since=since, until=since + ROUND / 2)
        add(StepKind.APPEND, rows=appended)
        add(StepKind.CORRECT, station=other, since=since + ROUND / 2, until=since + ROUND)
        add(StepKind.DELETE, station=other, since=since, until=since + ROUND / 6)
    return steps


@dataclass
class Ledger:
    """The rows that the tables must hold after the steps it was told of."""

    weather: dict[Key, StationHour] = field(default_factory=dict)
    airports: dict[str, Airport] = field(default_factory=dict)

    @classmethod
    def at_start(cls, observations: Iterable[StationHour], airports: Iterable[Airport]) -> Ledger:
        """Return what the tables hold before the first step."""
        early = {row.key: row for row in observations if row.time_hour < LATE_STARTS}
        return cls(early, {airport.faa: airport for airport in airports})

    def apply(self, step: DeskStep) -> None:
        """Do a step."""
        if step.kind in (StepKind.PUBLISH, StepKind.APPEND):
            for row in step.rows:
                assert row.key not in self.weather, row
                self.weather[row.key] = row
        if step.kind is StepKind.PUBLISH:
            airport = self.airports[step.station]
            self.airports[step.station] = replace(
                airport,
                reports=airport.reports + 1,
                observations=airport.observations + len(step.rows),
            )
        if step.kind is StepKind.UPSERT:
            self.weather.update((row.key, row) for row in step.rows)
        if step.kind in (StepKind.CORRECT, StepKind.DELETE):
            self._window(step)

    def _window(self, step: DeskStep) -> None:
        for key in [key for key, row in self.weather.items() if step.covers(row)]:
            if step.kind is StepKind.DELETE:
                del self.weather[key]
            else:
                self.weather[key] = corrected(self.weather[key])

    def tables(self) -> tuple[pa.Table, pa.Table]:
        """Return weather and airports, sorted by their keys."""
        weather = sorted(self.weather.values(), key=lambda row: row.key)
        airports = sorted(self.airports.values(), key=lambda airport: airport.faa)
        return weather_table(weather), airports_table(airports)


def corrected(row: StationHour) -> StationHour:
    """Return a row with its wind calibrated, as `CORRECTION` says it in SQL."""
    position = MEASURED.index("wind_speed")
    speed = row.measured[position]
    measured = list(row.measured)
    measured[position] = None if speed is None else speed * CALIBRATION
    return replace(row, measured=tuple(measured), revision=row.revision + 1)


CORRECTION = {"wind_speed": f"wind_speed * {CALIBRATION}", "revision": "revision + 1"}


def weather_table(rows: Sequence[StationHour]) -> pa.Table:
    """Return observations as the table holds them."""
    columns: dict[str, list[object]] = {
        "origin": [row.origin for row in rows],
        "time_hour": [row.time_hour for row in rows],
        "desk": [row.desk for row in rows],
        "revision": [row.revision for row in rows],
    }
    for position, name in enumerate(MEASURED):
        columns[name] = [row.measured[position] for row in rows]
    return pa.table({n: columns[n] for n in WEATHER_SCHEMA.names}, schema=WEATHER_SCHEMA)


def airports_table(rows: Sequence[Airport]) -> pa.Table:
    """Return airports as the table holds them."""
    about = [list(column) for column in zip(*(row.about for row in rows), strict=True)]
    columns = [
        [row.faa for row in rows],
        *about,
        [row.reports for row in rows],
        [row.observations for row in rows],
    ]
    return pa.table(dict(zip(AIRPORTS_SCHEMA.names, columns, strict=True)), schema=AIRPORTS_SCHEMA)


def _repaired(rows: Sequence[StationHour], since: datetime, until: datetime) -> list[StationHour]:
    """Return the window's rows that lack a pressure, with the station's last one filled in."""
    position = MEASURED.index("pressure")
    last: dict[str, float] = {}
    found = []
    for row in sorted(rows, key=lambda row: row.time_hour):
        pressure = row.measured[position]
        if pressure is not None:
            last[row.origin] = pressure
        elif since <= row.time_hour < until and row.origin in last:
            measured = list(row.measured)
            measured[position] = last[row.origin]
            found.append(replace(row, measured=tuple(measured), revision=1))
    return found


def _sql_instant(at: datetime) -> str:
    return f"arrow_cast('{at:%Y-%m-%dT%H:%M:%SZ}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
