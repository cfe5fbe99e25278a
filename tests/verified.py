"""A service that did a little of everything and was stopped: something to verify and replay."""

from __future__ import annotations

import shutil
from pathlib import Path

import lance

from commitlog.core.iceberg.reading import dump_json
from commitlog.model.operations import IcebergChange
from commitlog.model.records import Code, Status, TableVersionIs
from commitlog.ports import Log
from consumers.views.version_index import run_index
from tests.service import SCHEMA, Service, rows, service
from tests.unit.iceberg_examples import create_updates
from tests.waiting import up_to_end

INDEXED_SECONDS = 180.0
ORDERS = "shop$orders"
ICE = ("shop", "ice")
STEP = '[{"action":"set-properties","updates":{"step":"1"}}]'


def fill(made: Service) -> None:
    """Commit a little of everything that makes manifests, in all the ways that there are."""
    log = made.client
    log.create_table(ORDERS, SCHEMA, primary_key="id")
    log.create_table("fast", SCHEMA, policy="latest")
    log.append(ORDERS, rows(*range(10)))
    for number in range(4):
        log.append("fast", rows(number))
    location = str(made.location(ORDERS))
    dataset = lance.dataset(location)
    staged = []
    for predicate in ("id = 1", "id = 2", "id = 1"):
        image = dataset.get_fragments()[0].delete(predicate)
        assert image is not None
        staged.append(lance.LanceOperation.Delete([image], [], predicate))
    # The second is rebased over the first one's deletion vector, the third loses to it.
    ended = [log.submit(ORDERS, one, read_version=2).result().status for one in staged]
    assert ended == [Status.COMMITTED, Status.COMMITTED, Status.RETRYABLE]
    log.update(ORDERS, {"name": "'z'"}, "id = 5")
    log.merge_insert(ORDERS, rows(5, 5000), "id")
    with log.transact() as both:
        both.append(ORDERS, rows(7000))
        both.append("fast", rows(7000))
    more = lance.LanceOperation.Append(lance.fragment.write_fragments(rows(9), location))
    late = log.submit(ORDERS, more, expects=[TableVersionIs(("shop", "orders"), 1)]).result()
    assert late.code is Code.EXPECTATION_FAILED
    lance.write_dataset(rows(1, 2), str(made.root / "elsewhere"))
    log.register_table("taken", str(made.root / "elsewhere"))
    log.append("taken", rows(3))
    place = str(made.root / "tables" / "shop.ns" / "ice")
    ice = IcebergChange(ICE, '[{"type":"assert-create"}]', dump_json(create_updates(place)))
    log.submit(None, ice).result().raise_for_conflict()
    with log.transact() as both:
        both.append("fast", rows(8))
        both.submit(None, IcebergChange(ICE, "[]", STEP))
    log.create_table("gone", SCHEMA)
    log.append("gone", rows(1))
    log.drop_table("gone")


def filled_service(root: Path) -> Service:
    """Return a service that was stopped in its second term, with its index."""
    with service(root) as running:
        fill(running)
        running.running.pop().stop()
        running.start().await_leading()
        running.client.append(ORDERS, rows(8000))
        index_whole(running.log, running.root)
    # The files of a table that was dropped may be removed.
    shutil.rmtree(place(root, "gone"))
    return running


def index_whole(log: Log, root: Path) -> None:
    """Bring an index up to the log's end."""
    run_index(log, root, **up_to_end())


def place(root: Path, prefix: str) -> Path:
    """Return a table's folder."""
    [found] = [path for path in (root / "tables").rglob(f"{prefix}*") if (path / "data").is_dir()]
    return found
