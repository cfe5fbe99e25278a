"""Can a root's tables be put into a bucket, and go on there, with their backup in another one?"""

from __future__ import annotations

from pathlib import Path

import lance
import pytest

from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.storage import store_for
from commitlog.errors import InvalidTransaction
from commitlog.model.records import OperationResult, Outcome
from consumers.partition.checkpoints.table_places import check_all
from consumers.runtime.places import RootMoved
from consumers.tools.backup import writer
from consumers.tools.backup.cut import Heads, cut
from consumers.tools.backup.saved import Backup, digest, files_of, need_backup, part
from consumers.tools.backup.writer import back_up
from consumers.tools.verify import VerifyOptions, verify
from tests.golden.make_roots import PLACE
from tests.golden.roots import golden
from tests.installed import need
from tests.object_store import s3_server
from tests.service import ids_of, rows

need("moto", "obstore")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

TABLES = "s3://bucket/lake/tables"
BACKUP = "s3://bucket/backup"


def results(log: MemoryLog) -> list[OperationResult]:
    found = log.read_outcomes(0).poll(records_max=1000, timeout_seconds=0)
    records = [one.record for one in found]
    return [result for one in records if isinstance(one, Outcome) for result in one.results]


def backed_up_whole(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Back up to the bucket, ended in the middle at first, and compare all of it."""
    copies = iter(range(3))
    with monkeypatch.context() as patched:
        original = writer._copy
        patched.setattr(writer, "_copy", lambda *given: (next(copies), original(*given))[1])
        with pytest.raises(RuntimeError):  # its machine is off
            back_up(log, BACKUP, None)
    store = store_for(BACKUP)
    assert Backup.read(store, BACKUP) is None
    done = back_up(log, BACKUP, None)
    backup = need_backup(store, BACKUP)
    assert backup.elsewhere == []
    assert cut(store, backup.partitions[0], Heads(), None, None).sequence == done.positions[0]
    copied = files_of(store, backup)
    assert {one.removeprefix("tables/") for one in copied} == set(store_for(TABLES).walk())
    for path, one in copied.items():
        assert digest(part(BACKUP, "tables"), path.removeprefix("tables/")) == one.sha256


def test_tables_are_put_into_a_bucket_and_backed_up_into_another_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server(), golden("protocol-4", tmp_path / "root", TABLES) as opened:
        log, client = opened.log, opened.client
        with pytest.raises(RootMoved, match=f"{TABLES}, to which .* is bound, and nothing is"):
            check_all(log, opened.root)
        assert not list(store_for(TABLES).walk()), "nothing is made at a place without its data"
        local = store_for(str(tmp_path / "root" / "tables"))
        for path in local.walk():
            store_for(TABLES).take(path, local)
        check_all(log, opened.root)
        opened.start()
        for name, versions in opened.expected.items():
            for version, ids in versions.items():
                assert ids_of(client.open(name, int(version))) == ids, (name, version)
        made = client.append("shop$orders", rows(9000))
        info = client.table("shop$orders")
        assert info.location.startswith(f"{TABLES}/")
        assert 9000 in ids_of(lance.dataset(info.location, version=made.version))
        client.open("shop$orders").delete("id = 9000")
        client.merge_insert("shop$orders", rows(5, 9001), "id").raise_for_conflict()
        mine = f"{TABLES}/mine.lance"
        client.create_table("mine", rows().schema, location=mine)
        assert client.append("mine", rows(1)).version == 2
        source = client.table("mine")
        shallow = lance.LanceOperation.Clone(True, None, 2, source.location, None)
        with pytest.raises(InvalidTransaction, match="shallow clone's files would name"):
            client.submit("copy", shallow)
        deep = lance.LanceOperation.Clone(False, None, 2, source.location, None)
        client.submit("copy", deep).result().raise_for_conflict()
        assert ids_of(client.open("copy")) == [1]
        # What is recorded doesn't depend on the binding.
        recorded = {result.location for result in results(opened.log) if result.location}
        assert all(one.startswith(f"{PLACE}/protocol-4/tables/") for one in recorded)
        backed_up_whole(opened.log, monkeypatch)
        opened.stop()
        verdict = verify(opened.log, 0, VerifyOptions(opened.root, contents=True))
        assert verdict.problems == []
        assert verdict.rows > 20
