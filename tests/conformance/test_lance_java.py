"""Lance's library for Java, unmodified: the tables that it writes through the server, alone and by
many threads at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumers.broker.errors import JarsUnavailable
from infra import namespace_clients
from tests.child import ended
from tests.namespace_world import World

WRITERS = 4
RUN_SECONDS = 240

pytestmark = pytest.mark.slow


def test_what_the_library_writes_is_what_it_and_others_read(world: World, tmp_path: Path) -> None:
    try:
        command = namespace_clients.java_program(
            namespace_clients.LIBRARY_SOURCE, namespace_clients.LIBRARY_PINS
        )
    except (JarsUnavailable, namespace_clients.NoCompiler) as error:
        pytest.skip(f"Lance's library for Java is not tested: {error}")
    # It unpacks its machine code for each run.
    program = [command[0], f"-Djava.io.tmpdir={tmp_path}", *command[1:]]
    ran = ended([*program, world.uri, str(WRITERS)], timeout=RUN_SECONDS)
    assert ran.returncode == 0, (ran.stdout, ran.stderr[-3000:])
    assert ran.stdout.splitlines() == [
        "create: 1 100",
        "append: 2 150",
        "delete: 3 140",
        "merge: 4 150",
        "config: 5 {k=v}",
        "columns: 6 Schema<id: Int(64, true), twice: Int(64, true)>",
        "index: 7 [by_id]",
        "compact: 1 150",
        "tag: 2 150",
        "tags: [first]",
        "renamed: Schema<number: Int(64, true)>",
        "restore: 150 Schema<id: Int(64, true)>",
        "overwrite: 5",
        "count: 5",
        f"crowd: {WRITERS * 10 * 8}",
    ]
    rows = world.open(["java", "crowd"]).to_table()["id"].to_pylist()
    kept = [one for one in rows if one >= 1000 and one % 10 > 1]
    assert len(kept) == len(set(kept)) == WRITERS * 10 * 8
