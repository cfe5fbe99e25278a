"""A leader counts the HTTP servers that ask it."""

from __future__ import annotations

from consumers.socket.http_servers import SERVERS_MAX, SILENT_SECONDS, HttpServers


def test_a_server_that_goes_on_asking_stays_counted_however_many_there_are() -> None:
    time = 0.0
    servers = HttpServers(lambda: time)
    for turn in range(5):
        time = turn * SILENT_SECONDS / 2
        for one in range(SERVERS_MAX):
            servers.count(str(one))
    assert servers.count("one more") == SERVERS_MAX
