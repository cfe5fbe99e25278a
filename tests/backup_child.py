"""Backs up a golden root or a log, or restores one, and ends by SIGKILL at a point."""

import json
import os
import shutil
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from commitlog.adapters import kafka_restore
from commitlog.adapters.kafka import KafkaLog
from commitlog.adapters.kafka_moved import Moves
from commitlog.adapters.kafka_restore import RestoredTopics
from commitlog.adapters.storage_remote import RemoteStore
from consumers import cli
from consumers.tools.backup import saved, writer
from tests.golden.roots import golden
from tests.move_child import after, half


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(point: str) -> None:
    copied = iter(range(1_000_000))
    whole_copy, whole_write = shutil.copyfile, saved.write_checked
    whole_take = RemoteStore.take

    def copy(source: str, target: str) -> None:
        if point == "file" and next(copied) == 4:
            data = Path(source).read_bytes()
            Path(target).write_bytes(data[: len(data) // 2])
            die()
        whole_copy(source, target)

    def take(store: RemoteStore, path: str, source: saved.Store) -> None:
        if point == "file" and next(copied) == 2:
            die()
        whole_take(store, path, source)

    def write(store: saved.Store, path: str, data: bytes, **more: Any) -> None:
        if path.startswith(point):
            die()
        whole_write(store, path, data, **more)

    shutil.copyfile = copy  # type: ignore[assignment]
    saved.write_checked = write
    setattr(writer, "write_checked", write)  # noqa: B010
    setattr(RemoteStore, "take", take)  # noqa: B010


def golden_root(folder: Path) -> None:
    with golden("protocol-4", folder / "root") as opened:
        done = writer.back_up(opened.log, str(folder / "backup"), None)
        print(done.positions[0], done.files_in_all)


def on_cluster(servers: str, log: str, place: str) -> None:
    done = writer.back_up(KafkaLog.connect(servers, log), place, None)
    print(json.dumps(asdict(done)))


def restored(point: str, arguments: list[str]) -> None:
    """Run a restore to its end, or up to a point."""
    if point != "nowhere":
        RESTORE_POINTS[point]()
    sys.exit(cli.main(["restore", *arguments]))


RESTORE_POINTS = {
    "two topics put": after(RestoredTopics, "put", 2),
    "arrived": after(Moves, "arrive"),
    "one topic finished": half(kafka_restore),
    "finished": after(RestoredTopics, "finish"),
}

if __name__ == "__main__":
    if sys.argv[1] == "restore":
        restored(sys.argv[2], sys.argv[3:])
    main(sys.argv[1])
    golden_root(Path(sys.argv[2])) if len(sys.argv) == 3 else on_cluster(*sys.argv[2:])
