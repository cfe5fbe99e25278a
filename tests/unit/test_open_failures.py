"""Opening a dataset says in the log's own error why the log could not be asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from commitlog.client.native import LogVersions
from commitlog.errors import LogMoved
from tests.service import SCHEMA, rows, service


@pytest.mark.parametrize("asked", ["head", "materialize"])
def test_a_log_that_moves_while_a_table_is_opened_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    with service(tmp_path) as running:
        log = running.client
        log.create_table("t", SCHEMA)
        log.append("t", rows(1))
        good, calls = getattr(LogVersions, asked), []

        def moves(self: LogVersions, *arguments: int) -> object:
            calls.append(asked)
            # The first call to materialize is the client's own, before pylance asks.
            if asked == "head" or len(calls) > 1:
                raise LogMoved("the log was moved", "elsewhere:9092")
            return good(self, *arguments)

        monkeypatch.setattr(LogVersions, asked, moves)
        with pytest.raises(LogMoved, match="the log was moved"):
            log.open("t")
        monkeypatch.undo()
        assert log.open("t").count_rows() == 1
