"""The transformation of the flights, twice: for Spark as a stream, and in plain Arrow.

Each flight gets types instead of text, UTC timestamps instead of New York wall-clock fields, its
airline's name, its plane's make, and the weather at its airport in the hour of its departure. The
two share names and types and nothing else, so that one checks the other.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from consumers.tools.demo.source import data_file, open_flights

ZONE = "America/New_York"
TABLE = "nyc$flights"
KEY = ("scheduled_departure", "origin", "carrier", "flight")
"""Unique over the year."""
INSTANT = pa.timestamp("us", "UTC")

SCHEMA = pa.schema(
    [
        pa.field("scheduled_departure", INSTANT),
        pa.field("departure", INSTANT),
        pa.field("carrier", pa.string()),
        pa.field("airline", pa.string()),
        pa.field("flight", pa.int32()),
        pa.field("tailnum", pa.string()),
        pa.field("manufacturer", pa.string()),
        pa.field("model", pa.string()),
        pa.field("plane_year", pa.int32()),
        pa.field("seats", pa.int32()),
        pa.field("origin", pa.string()),
        pa.field("dest", pa.string()),
        pa.field("dep_delay", pa.int32()),
        pa.field("arr_delay", pa.int32()),
        pa.field("air_time", pa.int32()),
        pa.field("distance", pa.int32()),
        pa.field("cancelled", pa.bool_()),
        pa.field("temp", pa.float64()),
        pa.field("wind_speed", pa.float64()),
        pa.field("precip", pa.float64()),
        pa.field("visib", pa.float64()),
    ]
)
WEATHER = ("temp", "wind_speed", "precip", "visib")
MINUTE_US = 60_000_000


def expected() -> pa.Table:
    """Return what the table must hold, computed without Spark, sorted by `KEY`."""
    with open_flights() as text:
        flights = read_csv(text.buffer)
    return transform(flights, _csv("airlines.csv"), _csv("planes.csv"), _csv("weather.csv"))


def transform(
    flights: pa.Table, airlines: pa.Table, planes: pa.Table, weather: pa.Table
) -> pa.Table:
    """Return the flights as the table holds them, from CSV tables as they are, sorted by `KEY`."""
    scheduled = _instant(flights, flights["minute"])
    delay = pc.multiply(flights["dep_delay"].cast(pa.int64()), MINUTE_US)
    departure = pc.add(scheduled.cast(pa.int64()), delay).cast(INSTANT)
    columns = {
        "scheduled_departure": scheduled,
        "departure": departure,
        "cancelled": pc.is_null(flights["dep_time"]),
        "hour_utc": _instant(flights, pa.scalar(0)),
    }
    for name in SCHEMA.names:
        if name in flights.column_names:
            columns[name] = flights[name].cast(SCHEMA.field(name).type)
    table = pa.table(columns)
    table = _look_up(table, ["carrier"], airlines, {"carrier": "carrier", "airline": "name"})
    makes = {"tailnum": "tailnum", "manufacturer": "manufacturer", "model": "model"}
    table = _look_up(table, ["tailnum"], planes, {**makes, "plane_year": "year", "seats": "seats"})
    weather = weather.set_column(
        weather.column_names.index("time_hour"), "hour_utc", weather["time_hour"].cast(INSTANT)
    )
    names = {name: name for name in ("origin", "hour_utc", *WEATHER)}
    table = _look_up(table, ["origin", "hour_utc"], weather, names)
    return in_order(table.select(SCHEMA.names).cast(SCHEMA))


def in_order(table: pa.Table) -> pa.Table:
    """Return the rows sorted by `KEY`."""
    return table.sort_by([(name, "ascending") for name in KEY]).combine_chunks()


def _look_up(table: pa.Table, keys: list[str], other: pa.Table, names: dict[str, str]) -> pa.Table:
    right = pa.table({name: other[column] for name, column in names.items()})
    return table.join(right, keys=keys, join_type="left outer")


def _instant(flights: pa.Table, minute: pa.ChunkedArray | pa.Scalar) -> pa.ChunkedArray:
    """Turn New York's wall clock into UTC."""
    day = pc.add(
        pc.multiply(flights["year"], 10_000),
        pc.add(pc.multiply(flights["month"], 100), flights["day"]),
    )
    midnight = pc.strptime(day.cast(pa.string()), format="%Y%m%d", unit="us")
    minutes = pc.add(pc.multiply(flights["hour"], 60), minute)
    local = pc.add(midnight.cast(pa.int64()), pc.multiply(minutes, MINUTE_US))
    zoned = pc.assume_timezone(local.cast(pa.timestamp("us")), ZONE)
    return zoned.cast(INSTANT)


def _csv(name: str) -> pa.Table:
    return read_csv(data_file(name))


def read_csv(source: object) -> pa.Table:
    """Read one file of the distribution's kind, `NA` being null."""
    convert = pacsv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
    return pacsv.read_csv(source, convert_options=convert)
