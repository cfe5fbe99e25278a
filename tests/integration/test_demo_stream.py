"""The demo's streaming job on a real Spark."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyarrow.csv as pacsv
import pytest

from consumers.tools.demo import flights, flights_stream, source
from tests.spark_world import ON_SPARK, SparkWorld

pytestmark = ON_SPARK

EVERY = 100


def test_the_stream_makes_the_rows_that_plain_arrow_makes(
    world: SparkWorld,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with source.open_flights() as text:
        header, *lines = text.readlines()
    some = lines[::EVERY]
    slices = tmp_path / "slices"
    slices.mkdir()
    count = source.SLICES_PER_BATCH + 1
    for part in range(count):
        path = slices / f"{part}.csv"
        path.write_text(header + "".join(some[part::count]))
        os.utime(path, (1_600_000_000 + part,) * 2)
    world.create(flights.TABLE, flights.SCHEMA)
    session = world.spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")  # as the job's own has it
    monkeypatch.setattr(session, "stop", lambda: None)
    monkeypatch.setattr(flights_stream, "local_session", lambda name: session)
    monkeypatch.setattr(flights_stream, "end_with_parent", lambda: None)
    arguments = ["--slices", str(slices), "--checkpoint", str(tmp_path / "checkpoint")]
    arguments += ["--bootstrap-servers", world.bootstrap_servers, "--log", world.log]
    monkeypatch.setattr(sys, "argv", ["flights_stream", *arguments])
    flights_stream.main()
    whole = tmp_path / "whole.csv"
    whole.write_text(header + "".join(some))
    others = (source.data_file(f"{name}.csv") for name in ("airlines", "planes", "weather"))
    expected = flights.transform(flights.read_csv(whole), *map(flights.read_csv, others))
    found = flights.in_order(world.client.open(flights.TABLE).to_table())
    assert pacsv.read_csv(whole).num_rows == len(some)
    assert found == expected.combine_chunks()
    assert world.batches(flights.TABLE) == [0, 1]
    assert '"finished": true' in capsys.readouterr().out
