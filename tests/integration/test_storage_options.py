"""Tables in a store that the environment doesn't know: each process by its own storage options."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import lance_namespace
import pytest
from lance import LanceOperation

from commitlog import CommitLog, InvalidTransaction, NoSuchTable, Unavailable, use_storage_options
from commitlog.adapters.storage import store_for
from commitlog.adapters.storage_options import storage_options
from commitlog.client.rows import excerpts
from commitlog.client.rows.rows import prepare_delete
from commitlog.codecs.manifest_file import VERSIONS_DIRECTORY
from commitlog.model.records import Status
from commitlog.spark.files import target_of, write_files
from tests.installed import need
from tests.integration.test_up import Service, log_on, run, service
from tests.object_store import BUCKET, KEY, REGION, SECRET, s3_server
from tests.service import SCHEMA, ids_of, rows

need("moto", "obstore")
pytestmark = [
    pytest.mark.broker,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]

T = "ns$t"
KNOWN = f"s3://{BUCKET}/known"
"""What the service's storage file names."""
UNKNOWN = f"s3://{BUCKET}/unknown"


@dataclass(frozen=True)
class Far:
    """A service, a client, and what it takes to reach the store."""

    running: Service
    client: CommitLog
    options: dict[str, str]
    file: Path


@pytest.fixture(scope="module")
def far(broker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    """Run a service whose file knows a store, in an environment that names another one."""
    folder = tmp_path_factory.mktemp("far")
    with s3_server(is_in_environment=False) as endpoint, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ENDPOINT", "http://127.0.0.1:9")
        patch.setenv("FAR_SECRET", SECRET)
        file = folder / "storage.toml"
        file.write_text(
            f'[stores."{KNOWN}"]\nendpoint = "{endpoint}"\nregion = "{REGION}"\n'
            f'access_key_id = "{KEY}"\nsecret_access_key = {{ env = "FAR_SECRET" }}\n'
            f'[options."{KNOWN}"]\nendpoint = "{endpoint}"\nregion = "{REGION}"\n'
            f'allow_http = "true"\naccess_key_id = "{KEY}"\nsecret_access_key = "{SECRET}"\n'
        )
        options = {
            "endpoint": endpoint,
            "region": REGION,
            "access_key_id": KEY,
            "secret_access_key": SECRET,
        }
        with (
            service(folder / "root", "--storage-file", str(file), *log_on(broker)) as running,
            running.connect() as client,
        ):
            yield Far(running, client, options, file)
        use_storage_options(f"{KNOWN}/t.lance", {})


def test_a_table_lives_in_a_store_of_its_own(far: Far) -> None:
    client, location = far.client, f"{KNOWN}/t.lance"
    made = client.create_table(
        T, SCHEMA, location=location, primary_key="id", storage_options=far.options
    )
    assert (made.status, client.table(T).location) == (Status.COMMITTED, location)
    client.append(T, rows(0, 1, 2, 3))
    dataset = lance.dataset(location, storage_options={**far.options, "allow_http": "true"})
    info = client.table(T)
    for prepared in [prepare_delete(info, dataset, f"id = {i}") for i in (0, 1)]:
        ticket = client.submit(
            T, prepared.operation, read_version=2, affected_rows=prepared.affected
        )
        ticket.result().raise_for_conflict()
    client.merge_insert(T, rows(2, 9, name="m"), "id").raise_for_conflict()
    client.open(T).delete("id = 3")
    assert ids_of(client.open(T)) == [2, 9]
    client.submit(T, LanceOperation.Restore(2)).result().raise_for_conflict()
    assert ids_of(client.open(T)) == [0, 1, 2, 3]
    clone = LanceOperation.Clone(False, None, 6, location, None)
    assert client.table("ns$t").properties == {}, "nothing of the options is in the log"
    assert SECRET not in far.running.errors.read_text()
    # A copy goes to the root's folder, read by the committer with its own options.
    assert client.submit("ns$copy", clone).result().status is Status.COMMITTED
    assert ids_of(client.open("ns$copy")) == [2, 9]

    names = lance_namespace.connect("rest", {"uri": f"http://127.0.0.1:{far.running.port}"})
    assert ids_of(lance.dataset(namespace_client=names, table_id=["ns", "t"])) == [0, 1, 2, 3]

    found = run(
        *("verify", "--root", str(far.running.root), "--storage-file", str(far.file)),
        *("--contents", "--json"),
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_doctor_tries_each_store(far: Far) -> None:
    found = run(
        *("doctor", "--root", str(far.running.root), "--storage-file", str(far.file), "--json")
    )
    stores = [check for check in json.loads(found.stdout) if check["name"] == "store"]
    assert [(check["level"], KNOWN in str(check)) for check in stores] == [("ok", True)]


def test_what_the_leader_cannot_reach_is_not_made(far: Far) -> None:
    with pytest.raises(Unavailable, match=r"storage file.*COMMITLOG_STORAGE_FILE") as raised:
        far.client.create_table(
            "ns$u", SCHEMA, location=f"{UNKNOWN}/u.lance", storage_options=far.options
        )
    use_storage_options(f"{UNKNOWN}/u.lance", {})
    assert SECRET not in str(raised.value)
    with pytest.raises(NoSuchTable):
        far.client.table("ns$u")


def test_an_option_that_no_store_knows_is_named(far: Far) -> None:
    with pytest.raises(InvalidTransaction, match="'regoin'") as raised:
        far.client.create_table(
            "ns$v", SCHEMA, location=f"{KNOWN}/v.lance", storage_options={"regoin": "x"}
        )
    assert raised.value.field == "storage_options"
    assert storage_options(f"{KNOWN}/v.lance") == {}, "what is no good isn't kept for a next try"


def test_executors_write_and_read_there(far: Far) -> None:
    location = f"{KNOWN}/spark.lance"
    far.client.create_table("ns$s", SCHEMA, location=location, storage_options=far.options)
    info = far.client.table("ns$s")
    target = target_of(info, "ns$s", info.schema, rows_per_file=10, bytes_per_file=1 << 20)
    files = write_files(rows(1, 2).to_batches(), target)
    far.client.submit("ns$s", LanceOperation.Append(files.metadata())).result().raise_for_conflict()
    head, fragments = excerpts.taken_apart(far.client.open("ns$s"))
    excerpt = excerpts.Excerpt(2, head, tuple(fragments.values()))
    assert ids_of(excerpt.open(location)) == [1, 2]
    store = store_for(location)
    for manifest in list(store.files(VERSIONS_DIRECTORY)):
        store.delete(manifest.path)
    excerpts.opened.cache_clear()
    assert ids_of(excerpt.open(location)) == [1, 2]
    use_storage_options(location, {})


def test_a_dataset_there_is_taken_over(far: Far) -> None:
    location = f"{KNOWN}/old.lance"
    options = {**far.options, "allow_http": "true"}
    lance.write_dataset(rows(7), location, storage_options=options)
    far.client.register_table("ns$old", location, storage_options=far.options)
    far.client.append("ns$old", rows(8))
    use_storage_options(location, {})
    assert ids_of(lance.dataset(location, storage_options=options)) == [7, 8]
