"""Does `commitlog up` serve Iceberg: the document's cases, pyiceberg as it is, both formats?"""

from __future__ import annotations

import contextlib
import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from commitlog import CommitLog
from commitlog.errors import CommitConflict
from commitlog.model.operations import IcebergChange
from tests.histories.iceberg import Tally, live
from tests.histories.iceberg_java import java_iceberg
from tests.histories.iceberg_layouts import compare
from tests.iceberg_cases import DATA, World, run_case
from tests.iceberg_server import IcebergServer
from tests.integration.test_up import NO_ROW_PROCESSES, Service, log_on, run, service
from tests.waiting import at_once

pytestmark = [
    pytest.mark.broker,
    pytest.mark.filterwarnings("ignore:::pyiceberg.*", "ignore::DeprecationWarning"),
]

_ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", "c"]})
_WRITERS = 8
_APPENDS = 2
_HISTORIES = 4
_LAYOUTS = 300
_ONE_TRY = {"commit.retry.num-retries": "0"}
"""What is refused isn't tried again by the client."""


@dataclass(frozen=True)
class Up:
    """A running `commitlog up`."""

    root: Path
    server: IcebergServer
    connect: Callable[[], CommitLog]
    restart: Callable[[], None]

    @property
    def tables(self) -> Path:
        return self.root / "tables"

    def catalog(self, name: str = "ours") -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog(name, type="rest", uri=self.server.uri)


@pytest.fixture(scope="module")
def up(broker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    root = tmp_path_factory.mktemp("iceberg") / "root"
    flags = (*NO_ROW_PROCESSES, *log_on(broker))
    with contextlib.ExitStack() as stack:

        def start() -> Service:
            return stack.enter_context(service(root, *flags))

        running = start()

        def restart() -> None:
            assert running.stop()[0] == 0
            assert start().line == running.line, "it is where it was"

        yield Up(root, IcebergServer(running.port), running.connect, restart)


def test_the_cases_of_the_document_hold_over_the_log(up: Up) -> None:
    server = up.server
    assert server.ask("POST", "/v1/namespaces", {"namespace": ["analytics"]}).status == 200
    world = World(server, str(up.tables / "bucket"))
    failed = {}
    with_copies = (case for case in DATA["cases"] if case["id"] == "lim-100-tables")
    apart = ((case, replace(world, copies_files=True)) for case in with_copies)
    for case, of_case in (*((case, world) for case in DATA["cases"]), *apart):
        try:
            run_case(case, of_case)
        except AssertionError as error:
            failed[case["id"], of_case.copies_files] = str(error)[:500]
        world.forget_tables()
    assert not failed, failed


_MERGES = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}


@pytest.mark.parametrize("properties", [{}, {"format-version": "1"}, _MERGES])
def test_appends_never_race(up: Up, properties: dict[str, str]) -> None:
    """Each of many writers' appends commits at its first try, over snapshots that it never saw."""
    pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
    catalog = up.catalog()
    name = f"many-{uuid.uuid4()}"
    catalog.create_namespace(name)
    catalog.create_table(f"{name}.t", _ROWS.schema, properties={**_ONE_TRY, **properties})
    failed: list[Exception] = []

    def write(number: int) -> None:
        mine = up.catalog(f"writer-{number}").load_table(f"{name}.t")
        for turn in range(_APPENDS):
            ids = pa.array([3 * (_APPENDS * number + turn) + i for i in range(3)], pa.int64())
            try:
                mine.append(_ROWS.set_column(0, "id", ids))
            except Exception as error:
                failed.append(error)

    at_once(write, range(_WRITERS))
    assert not failed
    table = catalog.load_table(f"{name}.t")
    ids = table.scan().to_arrow().column("id").to_pylist()
    assert sorted(ids) == list(range(3 * _WRITERS * _APPENDS))
    assert len(table.snapshots()) == _WRITERS * _APPENDS
    for snapshot in table.snapshots():
        rows = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows
        assert snapshot.summary is not None
        assert str(rows) == snapshot.summary["total-records"]
    said = [s.summary.additional_properties for s in table.snapshots() if s.summary is not None]
    assert any("commitlog.rebased-over" in one for one in said)
    verified = run("verify", "--root", str(up.root), timeout=300)
    assert verified.returncode == 0, (verified.stdout, verified.stderr)


@pytest.mark.slow
def test_what_is_rebased_is_what_the_java_library_commits(
    up: Up, seed: int, report_line: Callable[[str], None]
) -> None:
    tally = Tally()
    with java_iceberg(up.server.uri) as java:
        for number in range(seed, seed + _HISTORIES):
            print(f"seed {number}")
            live(java, number, tally)
        told = compare(java, random.Random(seed), _LAYOUTS)
    report_line(f"Iceberg's Java library as the judge: {tally}; layouts: {dict(told)}")
    assert tally.accepted.total() > 0
    assert min(told["opened"], told["refused"]) > 0


def test_both_formats_commit_in_one_record(up: Up) -> None:
    server = up.server
    assert server.ask("POST", "/v1/namespaces", {"namespace": ["both"]}).status == 200
    fields = [{"id": 1, "name": "id", "required": False, "type": "long"}]
    body = {"name": "ice", "schema": {"type": "struct", "fields": fields}}
    made = server.ask("POST", "/v1/namespaces/both/tables", body)
    assert made.status == 200, made.data
    found = made.json["metadata"]["table-uuid"]
    update = '[{"action":"set-properties","updates":{"lance":"2"}}]'

    def wants(id_: str) -> IcebergChange:
        requirement = f'[{{"type":"assert-table-uuid","uuid":"{id_}"}}]'
        return IcebergChange(("both", "ice"), requirement, update)

    def commit_both(log: CommitLog, id_: str) -> None:
        with log.transact() as both:
            both.append("both$lance", _ROWS)
            both.submit(None, wants(id_))

    with up.connect() as log:
        log.create_table("both$lance", _ROWS.schema)
        with pytest.raises(CommitConflict) as refused:
            commit_both(log, str(uuid.uuid4()))
        assert refused.value.outcome.failed_requirements
        assert log.table("both$lance").version == 1
        commit_both(log, found)
        assert log.open("both$lance").count_rows() == 3
    loaded = server.ask("GET", "/v1/namespaces/both/tables/ice").json
    assert loaded["metadata"]["properties"]["lance"] == "2"


def test_files_elsewhere_are_nobodys_business(up: Up, tmp_path: Path) -> None:
    server = up.server
    assert server.ask("POST", "/v1/namespaces", {"namespace": ["places"]}).status == 200
    outside = tmp_path / "x.metadata.json"
    outside.write_text('{"secret": 1}')
    body = {"name": "t", "metadata-location": str(outside)}
    reply = server.ask("POST", "/v1/namespaces/places/register", body)
    assert reply.status == 400
    assert "secret" not in reply.data.decode()
    wanted = {
        "name": "t",
        "location": str(tmp_path / "t"),
        "schema": {"type": "struct", "fields": []},
    }
    assert server.ask("POST", "/v1/namespaces/places/tables", wanted).status == 400
    assert not (tmp_path / "t").exists()


def test_tables_are_there_after_a_restart(up: Up) -> None:
    made = {"name": "t", "schema": {"type": "struct", "fields": []}}
    address = "/v1/namespaces/kept/tables"
    server = up.server
    assert server.ask("POST", "/v1/namespaces", {"namespace": ["kept"]}).status == 200
    before = server.ask("POST", address, made).json
    up.restart()
    assert server.ask("GET", f"{address}/t").json == before
    change = {
        "requirements": [],
        "updates": [{"action": "set-properties", "updates": {"a": "b"}}],
    }
    assert server.ask("POST", f"{address}/t", change).status == 200
