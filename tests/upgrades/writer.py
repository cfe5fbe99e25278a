"""A writer of whichever program is installed: `tests.upgrades` runs this file by its path.

    python writer.py SERVERS NAME JOURNAL

Commits until it is terminated. Each line of the journal is what was acknowledged: the ids that a
table gained and those that it lost. Only public names that older programs have are used here.
"""

from __future__ import annotations

import itertools
import json
import signal
import sys
import threading
from pathlib import Path

import pyarrow as pa

from commitlog import CommitLog
from commitlog.errors import RetryableConflict

ANSWER_SECONDS = 300.0
ATTEMPTS = 30
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
SHARED, OTHER = "shop$orders", "fast"


def rows(number: int, name: str) -> pa.Table:
    """Return one row."""
    return pa.table({"id": [number], "name": [name]}, schema=SCHEMA)


def write(servers: str, name: str, journal: Path, stop: threading.Event) -> None:
    """Commit by all ways of writing in turn until `stop`, and note what was acknowledged."""
    base = int.from_bytes(name.encode()[:4], "big") * 1_000_000
    with CommitLog.connect(servers) as log, journal.open("a") as out:

        def note(table: str, gained: list[int], lost: list[int]) -> None:
            out.write(json.dumps({"table": table, "gained": gained, "lost": lost}) + "\n")
            out.flush()

        for step in itertools.count():
            if stop.is_set():
                return
            one, two = base + 2 * step, base + 2 * step + 1
            if step % 4 == 0:
                with log.transact() as both:
                    both.append(SHARED, rows(one, name))
                    both.append(OTHER, rows(two, name))
                note(SHARED, [one], [])
                note(OTHER, [two], [])
            elif step % 4 == 1:
                log.append(SHARED, rows(one, name))
                note(SHARED, [one], [])
                again(lambda one=one: log.update(SHARED, {"name": "'changed'"}, f"id = {one}"))
            elif step % 4 == 2:
                again(lambda one=one: log.merge_insert(SHARED, rows(one, name), "id"))
                note(SHARED, [one], [])
            else:
                log.append(OTHER, rows(one, name))
                note(OTHER, [one], [])
                again(lambda one=one: log.delete(OTHER, f"id = {one}"))
                note(OTHER, [], [one])


def again(act: object) -> None:
    """Do something that others' commits may refuse, until it is committed."""
    for attempt in range(ATTEMPTS):
        try:
            act()  # type: ignore[operator]
        except RetryableConflict:
            if attempt == ATTEMPTS - 1:
                raise
        else:
            return


def main(servers: str, name: str, journal: str) -> None:
    """Write until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    write(servers, name, Path(journal), stop)


if __name__ == "__main__":
    main(*sys.argv[1:])
