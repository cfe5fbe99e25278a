"""Makes the golden roots: small logs with tables, checkpoints and index, by protocols and releases.

`python tests/golden/make_roots.py` writes the ones that are missing, each by the program of its
revision, which git has. What is there is never made again: it is what that program wrote.
"""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REVISIONS = {
    "protocol-1": (1, "e68921a6"),
    "protocol-2": (2, "5017205e"),
    "protocol-3": (3, "6c5988c7"),
    "protocol-4": (4, "c303446d"),
    "release-0.2.0": (4, "6c211e5"),
    "protocol-5": (5, "655efe4"),
    "protocol-6": (6, "6bb36d13"),
    "protocol-7": (7, "89856f1b"),
    "protocol-8": (8, "ea0cb116"),
    "protocol-9": (9, "d40760dd"),
}
"""The last programs of protocols that weren't released, and the releases: protocol and commit."""
PLACE = Path("/tmp/commitlog-golden")
"""Where they are made. Their logs name it, and the tests bind it to where they unpack."""
KEPT = ("checkpoints", "index", "index.duckdb", "tables", "cluster.json", "expected.json")
INDEXED_SECONDS = 120.0
HOUR_MS = 3_600_000


def archive(name: str) -> Path:
    """Return where a golden root is kept."""
    return HERE / f"root-of-{name}.tar.xz"


def make(name: str) -> None:
    """Have a program make its root, and pack it."""
    root = PLACE / name
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(
            ["git", "archive", REVISIONS[name][1]],
            cwd=HERE.parents[1],
            stdout=subprocess.PIPE,
            check=True,
        )
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as tree:
            tree.extractall(folder, filter="data")
        try:
            subprocess.run(
                [sys.executable, __file__, str(root)],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": folder},
                check=True,
            )
            with tarfile.open(archive(name), "w:xz", preset=9) as out:
                for kept in KEPT:
                    if (root / kept).exists():
                        out.add(root / kept, kept)
        finally:
            shutil.rmtree(root, ignore_errors=True)


def fill(made: Any) -> None:
    """Commit what every protocol knows, by the program that is imported."""
    import lance

    from commitlog.core.iceberg.reading import dump_json
    from commitlog.model.operations import AlterProperties, DropTable, IcebergChange
    from tests.service import SCHEMA, rows
    from tests.unit.iceberg_examples import create_updates

    log = made.client
    log.create_table("shop$orders", SCHEMA, primary_key="id")
    log.create_table("fast", SCHEMA, policy="latest")
    log.append("shop$orders", rows(*range(10)))
    for number in range(4):
        log.append("fast", rows(number))
    location = log.table("shop$orders").location
    dataset = lance.dataset(location)
    read = dataset.version
    for predicate in ("id = 1", "id = 2", "id = 1"):  # the last one loses
        image = dataset.get_fragments()[0].delete(predicate)
        assert image is not None
        operation = lance.LanceOperation.Delete([image], [], predicate)
        log.submit("shop$orders", operation, read_version=read).result()
    log.update("shop$orders", {"name": "'z'"}, "id = 5")
    log.merge_insert("shop$orders", rows(5, 5000), "id")
    with log.transact() as both:
        both.append("shop$orders", rows(7000))
        both.append("fast", rows(7000))
    lance.write_dataset(rows(20, 21), str(made.root / "tables" / "elsewhere.lance"))
    log.register_table("taken", str(made.root / "tables" / "elsewhere.lance"))
    log.open("taken").create_scalar_index("id", "BTREE")
    log.append("taken", rows(22))
    # Iceberg's metadata names absolute places, so what is left of it is its records.
    place, name = str(made.root / "tables" / "ice"), ("shop", "ice")
    ice = IcebergChange(name, '[{"type":"assert-create"}]', dump_json(create_updates(place)))
    log.submit(None, ice).result().raise_for_conflict()
    log.submit(None, DropTable(name)).result().raise_for_conflict()
    log.create_table("gone", SCHEMA)
    log.append("gone", rows(1))
    log.drop_table("gone")
    log.submit(None, AlterProperties(("fast",), upserts=(("owner", "golden"),))).result()


def fill_by_release(made: Any) -> None:
    """Commit what came with 0.2.0."""
    from consumers.tools.rows import writer as row_writer
    from tests.service import SCHEMA, rows

    # Else it may end while its last request waits, which would apply what comes next.
    row_writer.END_SECONDS = INDEXED_SECONDS
    log = made.client
    log.create_table("stock", SCHEMA, primary_key="id", properties={"rows": "log"})
    stop = threading.Event()
    writer = threading.Thread(target=row_writer.RowWriter(log).run, args=(stop,))
    writer.start()
    log.write_rows("stock", rows(1, 2, 3), mode="upsert").result()
    with log.transact() as both:
        both.write_rows("stock", rows(2), mode="delete")
        both.append("fast", rows(7100))
    log.write_rows("stock", rows(4)).result()
    stop.set()
    writer.join(INDEXED_SECONDS)
    log.write_rows("stock", rows(5)).result(wait="accepted")  # nobody has applied this one
    log.tag("before")
    log.append("fast", rows(666))
    log.restore("fast", "before")
    log.hold("report", "taken")
    log.create_table("back", SCHEMA)
    log.append("back", rows(1))
    log.drop_table("back")
    log.undrop("back")
    log.open("taken").tags.create("first", 1)


def fill_by_protocol_5(made: Any) -> None:
    """Commit what came with protocol 5."""
    from commitlog.adapters.places import use_places
    from consumers.partition.checkpoints.table_places import check_all
    from tests.service import SCHEMA, rows

    log, place = made.client, str(made.root / "tables")
    log.create_table("wide", SCHEMA)
    log.append("wide", rows(1, 2))
    log.add_columns("wide", {"twice": "id * 2"})
    use_places("", tables=place)
    check_all(made.log, made.root)
    log.bind_place(place)


def fill_by_protocol_6(made: Any) -> None:
    """Commit what came with protocol 6."""
    from tests.service import SCHEMA, rows

    log = made.client
    log.create_table("small", SCHEMA)
    for number in range(4):
        log.append("small", rows(number))
    log.delete("small", "id = 2")
    log.compact("small")
    log.expire_versions("taken", retain_versions=1)


def fill_by_protocol_7(made: Any) -> None:
    """Commit what came with protocol 7, and columns of a table that protocol 8 would refuse."""
    from commitlog.model.operations import DropTable
    from tests.service import SCHEMA, rows

    log = made.client
    log.create_table("again", SCHEMA)
    log.append("again", rows(1, 2))
    log.open("again").drop_columns(["name"])
    log.add_columns("again", {"other": "id * 2"})
    log.drop_table("again")
    log.undrop("again")
    ice = _with_a_partitions_column(made)
    log.submit(None, ice).result().raise_for_conflict()
    log.submit(None, DropTable(ice.table)).result().raise_for_conflict()


def fill_by_protocol_8(made: Any) -> None:
    """Have refused what came with protocol 8, and ids forgotten by a broker's clock."""
    import time
    from dataclasses import replace

    from commitlog.client.rows.lance_request import new_transaction_id
    from commitlog.model.operations import AlterProperties
    from consumers.tools.rules import put_in_force

    log, forgotten = made.client, new_transaction_id()
    assert log.submit(None, _with_a_partitions_column(made)).result().code == "INVALID_OPERATION"

    def alter(value: str, transaction_id: str | None = None) -> Any:
        altered = AlterProperties(("fast",), upserts=(("owner", value),))
        return log.submit(None, altered, transaction_id=transaction_id).result()

    alter("forgotten", forgotten).raise_for_conflict()
    put_in_force(log, lambda rules: replace(rules, id_horizon_ms=2 * HOUR_MS))
    right_ms, made.cluster.now_ms = (
        made.cluster.now_ms,
        lambda: time.time_ns() // 1_000_000 + 24 * HOUR_MS,
    )
    for number in range(4):
        alter(str(number)).raise_for_conflict()
    alter("forgotten", forgotten)  # who asks is told of the commit, which the log no longer knows
    alter("last").raise_for_conflict()
    assert made.log.last_outcome_records(0, 2)[0].record.code == "TOO_OLD"
    made.cluster.now_ms = right_ms
    put_in_force(log, lambda rules: replace(rules, id_horizon_ms=7 * 24 * HOUR_MS))


def fill_by_protocol_9(made: Any) -> None:
    """Commit names of more parts than protocol 10 takes."""
    from commitlog.model.operations import AlterProperties, CreateNamespace, RenameTable
    from tests.service import SCHEMA, rows

    log, deep = made.client, ("deep", *map(str, range(200)))
    owned = AlterProperties(deep, upserts=(("owner", "golden"),), is_namespace=True)
    for operation in (CreateNamespace(deep, (("of", "9"),)), owned):
        log.submit(None, operation).result().raise_for_conflict()
    name = (*deep, "orders")
    log.create_table("moved", SCHEMA)
    log.submit(None, RenameTable(("moved",), name)).result().raise_for_conflict()
    log.append("$".join(name), rows(1, 2))


def _with_a_partitions_column(made: Any) -> Any:
    """Return an Iceberg table with a column that has the name of its partition field."""
    from commitlog.core.iceberg.reading import dump_json
    from commitlog.model.operations import IcebergChange
    from tests.unit.iceberg_examples import create_updates

    place, name = str(made.root / "tables" / "split"), ("shop", "split")
    part = {"source-id": 1, "transform": "bucket[4]", "name": "b"}
    fields = [
        {"id": number, "name": column, "required": False, "type": "long"}
        for number, column in ((1, "id"), (9, "b"))
    ]
    made_updates = [
        *create_updates(place),
        {"action": "add-spec", "spec": {"fields": [part]}},
        {"action": "add-schema", "schema": {"type": "struct", "fields": fields}},
        {"action": "set-current-schema", "schema-id": -1},
    ]
    return IcebergChange(name, '[{"type":"assert-create"}]', dump_json(made_updates))


def index(made: Any) -> None:
    """Bring the index up to the log's end."""
    try:
        from consumers.views.version_index import run_index
    except ImportError:  # where it was until protocol 3
        from consumers.version_index import run_index  # type: ignore[no-redef,import-untyped]
    stop, done = threading.Event(), threading.Event()

    def on_progress(read: int, total: int) -> None:
        if read >= total:
            done.set()

    thread = threading.Thread(
        target=run_index,
        args=(made.log, made.root),
        kwargs={"stop": stop, "on_progress": on_progress},
    )
    thread.start()
    assert done.wait(INDEXED_SECONDS)
    stop.set()
    thread.join(INDEXED_SECONDS)


def leave(root: Path) -> None:
    """Make a root with the program that is imported, and note what it holds."""
    from tests.service import ids_of, rows, service

    with service(root) as made:
        fill(made)
        if root.name == "release-0.2.0" or root.name >= "protocol-5":
            fill_by_release(made)
        if root.name == "protocol-5":
            fill_by_protocol_5(made)
        if root.name == "protocol-6":
            fill_by_protocol_6(made)
        if root.name == "protocol-7":
            fill_by_protocol_7(made)
        if root.name == "protocol-8":
            fill_by_protocol_8(made)
        if root.name == "protocol-9":
            fill_by_protocol_9(made)
        made.running.pop().stop()  # a second term
        made.start().await_leading()
        made.client.append("fast", rows(8000))
        held = {
            info.name: {
                str(version): ids_of(made.client.open(info.name, version))
                for version in (1, info.version)
            }
            for info in made.client.tables()
        }
        made.running.pop().stop()  # with a checkpoint at its end
        index(made)
        topics = {
            name: {
                "id": topic.topic_id,
                "settings": topic.settings,
                "partitions": [
                    [[r.offset, r.time_ms, _text(r.key), _text(r.value)] for r in one.records]
                    for one in topic.partitions
                ],
            }
            for name, topic in made.cluster.topics.items()
        }
        cluster = {"cluster_id": made.cluster.cluster_id, "topics": topics}
        (root / "cluster.json").write_text(json.dumps(cluster))
        (root / "expected.json").write_text(json.dumps(held))


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        leave(Path(sys.argv[1]))
    else:
        for root in REVISIONS:
            if not archive(root).exists():
                make(root)
