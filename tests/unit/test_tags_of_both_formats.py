"""What a tag names, whoever keeps it: Iceberg in the log, Lance beside the table."""

from __future__ import annotations

import threading
from pathlib import Path

import lance
import pytest

from commitlog.adapters.lance_refs import lance_tags
from commitlog.adapters.memory import MemoryLog
from commitlog.errors import NoSuchTable, NoSuchVersion
from consumers import history
from consumers.views.version_index import IndexPosition, VersionIndex, run_index
from consumers.views.version_index.rows import no_recordings
from tests.service import SCHEMA, rows, service
from tests.unit.test_version_index_iceberg import DECIDED


@pytest.mark.slow
def test_a_tag_of_lance_is_followed_where_lance_keeps_it(tmp_path: Path) -> None:
    with service(tmp_path) as running:
        running.client.create_table("ns$t", SCHEMA)
        for number in range(3):
            running.client.append("ns$t", rows(number))
        stop = threading.Event()
        run_index(
            MemoryLog(running.cluster),
            tmp_path,
            stop=stop,
            on_progress=lambda done, total: stop.set() if done >= total else None,
        )
        location = running.location("ns$t")
        assert lance_tags(str(location)) == {}
        tags = lance.dataset(str(location)).tags
        tags.create("v1.0", 2)
        assert lance_tags(str(location)) == {"v1.0": 2}
        found = history.table_at_tag(tmp_path, "ns$t", "v1.0")
        assert (found["version"], found["operation"], found["name"]) == (2, "Append", "v1.0")
        tags.update("v1.0", 4)
        assert history.table_at_tag(tmp_path, "ns$t", "v1.0")["version"] == 4
        with pytest.raises(NoSuchVersion, match=r"no tag 'v1'; it has v1\.0"):
            history.table_at_tag(tmp_path, "ns$t", "v1")
        tags.delete("v1.0")
        with pytest.raises(NoSuchVersion, match=r"no tag 'v1\.0'$"):
            history.table_at_tag(tmp_path, "ns$t", "v1.0")
        with pytest.raises(NoSuchTable):
            history.table_at_tag(tmp_path, "ns$nobody", "v1.0")


def test_rubbish_among_the_tags_is_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "_refs" / "tags"
    folder.mkdir(parents=True)
    files = {"a.json": "{", "b.json": "[]", "c.json": "{}", "d.txt": "", "e.json": '{"version": 3}'}
    files["on-a-branch.json"] = '{"version": 3, "branch": "x"}'
    for name, text in files.items():
        (folder / name).write_text(text)
    assert lance_tags(str(tmp_path)) == {"e": 3}


def test_a_tag_of_iceberg_stands_in_the_log(tmp_path: Path) -> None:
    with VersionIndex(tmp_path) as index:
        index.apply(DECIDED, IndexPosition(0, len(DECIDED)), recordings=no_recordings)
        index.publish()
    assert history.table_at_tag(tmp_path, "ns$facts", "v1")["snapshot_id"] == 8
    with pytest.raises(NoSuchVersion, match="no tag 'v2'"):
        history.table_at_tag(tmp_path, "ns$facts", "v2")
