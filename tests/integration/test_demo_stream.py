"""The demo's streaming job on a real Spark, over a stand-in for the log."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.csv as pacsv
import pytest

from consumers.tools.demo import flights, source
from tests.fakes.spark_log import FakeLog

pytestmark = [pytest.mark.spark, pytest.mark.slow]

REPOSITORY = Path(__file__).resolve().parents[2]
EVERY = 100
PROGRAM = """
from consumers.tools.demo import flights_stream
from tests.fakes.spark_log import FakeDataSource
flights_stream.CommitLogDataSource = FakeDataSource
flights_stream.main()
"""


def test_the_stream_makes_the_rows_that_plain_arrow_makes(tmp_path: Path) -> None:
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
    log = FakeLog(tmp_path)
    log.create_table(flights.TABLE, flights.SCHEMA)
    arguments = ["--slices", str(slices), "--checkpoint", str(tmp_path / "checkpoint")]
    arguments += ["--bootstrap-servers", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    whole = tmp_path / "whole.csv"
    whole.write_text(header + "".join(some))
    others = (source.data_file(f"{name}.csv") for name in ("airlines", "planes", "weather"))
    expected = flights.transform(flights.read_csv(whole), *map(flights.read_csv, others))
    found = flights.in_order(log.open(flights.TABLE).to_table())
    assert pacsv.read_csv(whole).num_rows == len(some)
    assert found == expected.combine_chunks()
    assert [entry["key"][2] for entry in log.journal()] == [0, 1]
    assert '"finished": true' in done.stdout
