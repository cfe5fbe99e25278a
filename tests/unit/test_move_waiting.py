"""Does a move say what it waits for, and end in time?"""

from __future__ import annotations

import socket

import pytest

from commitlog.adapters.kafka_settings import ClientSettings
from commitlog.errors import Unavailable
from consumers.tools import move


def test_a_cluster_that_does_not_answer_is_named_at_once_and_given_up_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(move, "SILENT_SECONDS", 0.0)
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        settings = ClientSettings(address, {})
        with pytest.raises(Unavailable, match=address):
            move.move(settings, settings, "log", address, answer_seconds=2.0, say=said.append)
    assert said == [
        f"waiting for the old cluster at {address}, which hasn't answered"
        " about log 'log' yet, for up to 2 s"
    ]
