"""Whatever has more files open than `select` can name waits for its processes all the same."""

import contextlib
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumers.broker.child import BrokerProcess
from consumers.servers.page.sql import Failed, SqlProcess, SqlSettings

SELECT_MAX = 1024


@pytest.fixture(autouse=True)
def many_open() -> Iterator[None]:
    """Have all the descriptors open that `select` takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * SELECT_MAX
    if soft < wanted:
        if hard < wanted:
            pytest.skip(f"this process may have {hard} files open")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    with contextlib.ExitStack() as opened:
        while opened.enter_context(open(os.devnull)).fileno() < SELECT_MAX:
            pass
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_broker_starts(tmp_path: Path) -> None:
    process = BrokerProcess([sys.executable, "-c", ""], output=tmp_path / "log", inherited=())
    assert process.pid
    assert process.wait(60)


@pytest.mark.slow
def test_sql_is_answered(tmp_path: Path) -> None:
    process = SqlProcess(tmp_path, SqlSettings(seconds=60))
    try:
        # There is no index here; the process says so, where it was not even waited for.
        with contextlib.suppress(Failed):
            assert "rows" not in process.ask("SELECT 1", [])
    finally:
        process.close()
