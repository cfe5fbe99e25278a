"""Tables in an object store that has no put-if-absent: the log alone orders them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lance
import pytest
from lance import LanceOperation

from commitlog import CommitLog
from commitlog.adapters.storage import store_for
from commitlog.client.rows.rows import prepare_delete
from commitlog.codecs.manifest_file import manifest_name
from commitlog.model.records import Status
from consumers.tools import doctor
from tests.installed import need
from tests.object_store import ROOT, Conditions, log_over_objects, s3_server
from tests.service import SCHEMA, ids_of, on_memory, rows

need("moto", "obstore")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

T = "ns$t"


@pytest.fixture(scope="module", params=[Conditions.REFUSED, Conditions.IGNORED])
def conditions(request: pytest.FixtureRequest) -> Iterator[Conditions]:
    """Run a store that doesn't hold conditions; one that ignores them has to be told of."""
    found: Conditions = request.param
    with s3_server(found), pytest.MonkeyPatch.context() as environment:
        if found is Conditions.IGNORED:
            environment.setenv("AWS_CONDITIONAL_PUT", "disabled")
        yield found


def test_a_name_is_looked_at_before_it_is_put(conditions: Conditions) -> None:
    store = store_for(f"{ROOT}/plain")
    assert store.create("a", b"1")
    assert not store.create("a", b"2")
    assert store.read("a") == b"1"
    assert not store.has_put_if_absent
    assert "has no put-if-absent" in doctor._probe(ROOT)


def test_a_store_that_ignores_conditions_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_CONDITIONAL_PUT", raising=False)
    with s3_server(Conditions.IGNORED), pytest.raises(OSError, match="does not hold"):
        doctor._probe(ROOT)


def test_a_table_lives_there(conditions: Conditions, tmp_path: Path) -> None:
    with log_over_objects(tmp_path) as (cluster, client):
        client.create_table(T, SCHEMA, primary_key="id")
        client.append(T, rows(0, 1, 2, 3))
        location = client.table(T).location
        carried_over(client, location)
        client.merge_insert(T, rows(2, 9, name="m"), "id").raise_for_conflict()
        client.open(T).delete("id = 3")
        native = client.table(T).version
        restored = client.submit(T, LanceOperation.Restore(2)).result()
        assert (restored.status, restored.version) == (Status.COMMITTED, native + 1)
        assert ids_of(lance.dataset(location)) == [0, 1, 2, 3]
        # Lost, it is written again, and the same; by another process beside the leader's.
        store, path = store_for(location), f"_versions/{manifest_name(native)}"
        before = store.read(path)
        store.delete(path)
        second = on_memory(cluster, tmp_path / "second")
        client.append(T, rows(50)).raise_for_conflict()
        assert ids_of(client.open(T, native)) == [2, 9]
        assert store.read(path) == before
        second.stop()
        assert ids_of(lance.dataset(location)) == [0, 1, 2, 3, 50]


def carried_over(client: CommitLog, location: str) -> None:
    """Delete two rows of one fragment by writers that don't know of each other."""
    info, dataset = client.table(T), lance.dataset(location)
    for prepared in [prepare_delete(info, dataset, f"id = {i}") for i in (0, 1)]:
        ticket = client.submit(
            T, prepared.operation, read_version=2, affected_rows=prepared.affected
        )
        ticket.result().raise_for_conflict()
    assert ids_of(lance.dataset(location)) == [2, 3]
