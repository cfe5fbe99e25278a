"""Backs up a golden root, and ends by SIGKILL at a point that its parent names."""

import os
import shutil
import signal
import sys
from pathlib import Path

from consumers.tools.backup import saved, writer
from tests.golden.roots import golden


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(folder: Path, point: str) -> None:
    copied = iter(range(1_000_000))
    whole_copy, whole_write = shutil.copyfile, saved.write_checked

    def copy(source: str, target: str) -> None:
        if point == "file" and next(copied) == 4:
            data = Path(source).read_bytes()
            Path(target).write_bytes(data[: len(data) // 2])
            die()
        whole_copy(source, target)

    def write(store: saved.Store, path: str, data: bytes) -> None:
        if path.startswith(point):
            die()
        whole_write(store, path, data)

    shutil.copyfile = copy  # type: ignore[assignment]
    saved.write_checked = write
    setattr(writer, "write_checked", write)  # noqa: B010
    with golden(4, folder / "root") as opened:
        done = writer.back_up(opened.log, str(folder / "backup"), None)
        print(done.positions[0], done.files_in_all)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
