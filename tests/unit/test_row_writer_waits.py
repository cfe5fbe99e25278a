"""What a row writer says of writes that wait for a store or a leader."""

from typing import Any

import pytest

from commitlog.client.accepted.row_tail import Waiting
from commitlog.errors import Unavailable
from consumers.tools.rows import writer as row_writer
from consumers.tools.rows.writer import RowWriter


def test_writes_that_wait_are_said_to_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are tried again each second, for as long as a store is away."""
    client: Any = None
    writer, waiting = RowWriter(client), Waiting(("s", "t"), "one", 0, ())
    found: list[Exception | None] = [Unavailable("the store is away")] * 5 + [None]
    found += [Unavailable("the store is away")] * 2

    def apply(*_: object, **__: object) -> None:
        if (error := found.pop(0)) is not None:
            raise error

    monkeypatch.setattr(row_writer, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(writer, "apply", apply)
    said = []
    for _ in range(8):
        writer._try(waiting, {})
        said.append(len(caplog.records))
    assert said == [1, 1, 1, 1, 1, 1, 2, 2]
