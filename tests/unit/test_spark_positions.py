"""Which version did a table have as of a position in the log?"""

from __future__ import annotations

from pathlib import Path

from commitlog.model.records import Application
from commitlog.spark.versions import TableVersions, VersionWanted
from tests.service import SCHEMA, rows, service

T = "ns$t"


def test_an_answer_to_a_repeat_is_no_newer_version(tmp_path: Path) -> None:
    with service(tmp_path) as made:
        client, application = made.client, Application("job", 1)
        client.create_table(T, SCHEMA)
        first = client.append(T, rows(0), application=application)
        newer = client.append(T, rows(1))
        again = client.append(T, rows(2), application=application)
        assert again.answers == first.sequence
        versions = TableVersions(client.runtime(), client.table(T))
        for outcome, version in ((first, 2), (newer, 3), (again, 3)):
            assert versions.resolve(VersionWanted(position=outcome.sequence)) == version
