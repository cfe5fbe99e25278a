"""The streaming job: weekly CSV files through a transformation into `nyc$flights`.

    python -m consumers.tools.demo.flights_stream --slices D --checkpoint D --bootstrap-servers H:P

This is what a user's own job looks like: a source, a transformation, and format `commitlog` as the
sink. It says what it did on stdout, one JSON object per line. Killed anywhere and started again
with the same checkpoint, it continues, and each file's rows are in the table once.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from commitlog.spark import CommitLogDataSource, local_session
from consumers.tools.demo.children import end_with_parent
from consumers.tools.demo.flights import SCHEMA, TABLE, WEATHER, ZONE
from consumers.tools.demo.source import SLICES_PER_BATCH, data_file

FLIGHTS_COLUMNS = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int,"
    " sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string,"
    " origin string, dest string, air_time int, distance int, hour int, minute int,"
    " time_hour string"
)
POLL_SECONDS = 0.2


def main() -> None:
    """Run the job until every file is in the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slices", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--log", default="commitlog")
    arguments = parser.parse_args()
    end_with_parent()
    # So short a job ends before code of the second compiler pays for its making.
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
    spark = local_session("nyc flights")
    _say(started=True)
    spark.dataSource.register(CommitLogDataSource)
    query = (
        transformed(spark, read_stream(spark, arguments.slices))
        .writeStream.format("commitlog")
        .option("table", TABLE)
        .option("kafka.bootstrap.servers", arguments.bootstrap_servers)
        .option("log", arguments.log)
        .option("checkpointLocation", str(arguments.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    told = -1
    is_active = True
    while is_active:
        is_active = query.isActive
        for progress in query.recentProgress:
            if progress.batchId > told:
                told = progress.batchId
                _say(batch=told, rows=progress.numInputRows)
        time.sleep(POLL_SECONDS)
    error = query.exception()
    if error is not None:
        raise error
    _say(finished=True)
    spark.stop()


def read_stream(spark: SparkSession, slices: Path) -> DataFrame:
    """Return the weekly files as a stream, eight weeks per micro-batch."""
    return (
        spark.readStream.schema(FLIGHTS_COLUMNS)
        .option("header", "true")
        .option("nullValue", "NA")
        .option("maxFilesPerTrigger", SLICES_PER_BATCH)
        .csv(str(slices))
    )


def transformed(spark: SparkSession, flights: DataFrame) -> DataFrame:
    """Return flights with types, UTC timestamps, airline, plane and weather."""
    airlines = _static(spark, "airlines.csv").select("carrier", f.col("name").alias("airline"))
    planes = _static(spark, "planes.csv").select(
        "tailnum",
        "manufacturer",
        "model",
        f.col("year").cast("int").alias("plane_year"),
        f.col("seats").cast("int").alias("seats"),
    )
    weather = _static(spark, "weather.csv").select(
        "origin",
        f.col("time_hour").cast("timestamp").alias("hour_utc"),
        *(f.col(name).cast("double").alias(name) for name in WEATHER),
    )
    return (
        flights.withColumn("scheduled_departure", _instant(f.col("minute")))
        .withColumn("hour_utc", _instant(f.lit(0)))
        .withColumn(
            "departure", f.col("scheduled_departure") + f.expr("make_dt_interval(0,0,dep_delay,0)")
        )
        .withColumn("cancelled", f.col("dep_time").isNull())
        .join(f.broadcast(airlines.cache()), "carrier", "left")
        .join(f.broadcast(planes.cache()), "tailnum", "left")
        .join(f.broadcast(weather.cache()), ["origin", "hour_utc"], "left")
        .select(*SCHEMA.names)
    )


def _static(spark: SparkSession, name: str) -> DataFrame:
    return spark.read.option("header", "true").option("nullValue", "NA").csv(str(data_file(name)))


def _instant(minute: Column) -> Column:
    """Turn New York's wall clock into an instant."""
    second = f.lit(0).cast("decimal(16,6)")
    return f.make_timestamp(
        f.col("year"), f.col("month"), f.col("day"), f.col("hour"), minute, second, f.lit(ZONE)
    )


def _say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
