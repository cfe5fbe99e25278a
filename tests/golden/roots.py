"""Golden roots as a test opens them: unpacked, with a log in memory, bound to where they are."""

from __future__ import annotations

import base64
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from commitlog import CommitLog
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import MemoryCluster, Partition, Stored, Topic
from commitlog.adapters.places import places_text, use_places
from tests.golden.make_roots import PLACE, REVISIONS, archive
from tests.service import Running, on_memory

NAMES = tuple(REVISIONS)


class Golden:
    """One root, and whoever runs on it."""

    def __init__(self, name: str, root: Path) -> None:
        """Unpack it."""
        with tarfile.open(archive(name)) as packed:
            packed.extractall(root, filter="data")
        self.root = root
        self.expected: dict[str, dict[str, list[int]]] = json.loads(
            (root / "expected.json").read_text()
        )
        self.cluster = _cluster(json.loads((root / "cluster.json").read_text()))
        self.log = MemoryLog(self.cluster)
        self.client = CommitLog(lambda: MemoryLog(self.cluster))
        self.running: list[Running] = []

    def start(self) -> None:
        """Have a committer lead it."""
        self.running.append(on_memory(self.cluster, self.root).await_leading())

    def stop(self) -> None:
        """End what was started."""
        while self.running:
            self.running.pop().stop()


@contextmanager
def golden(name: str, root: Path, tables: str = "") -> Iterator[Golden]:
    """Unpack a root, and bind the place of its tables to the one in it, or to another one."""
    before = places_text()
    use_places(f"{PLACE}/{name}/tables={tables or root / 'tables'}")
    opened = Golden(name, root)
    try:
        yield opened
    finally:
        opened.client.close()
        opened.stop()
        use_places(before)


def _cluster(kept: dict[str, object]) -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.cluster_id = str(kept["cluster_id"])
    topics: dict[str, dict[str, object]] = kept["topics"]  # type: ignore[assignment]
    for name, topic in topics.items():
        partitions = [
            [
                Stored(offset, time_ms, _bytes(key), _bytes(value))
                for offset, time_ms, key, value in one
            ]
            for one in topic["partitions"]  # type: ignore[attr-defined]
        ]
        cluster.topics[name] = Topic(
            [Partition(records, 0, records[-1].offset + 1) for records in partitions],
            dict(topic["settings"]),  # type: ignore[call-overload]
            str(topic["id"]),
        )
    return cluster


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
