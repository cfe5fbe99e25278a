"""Does this program continue what the programs of each protocol and release left?"""

from __future__ import annotations

from pathlib import Path

import duckdb
import lance
import pytest

from commitlog import CommitLog
from commitlog.client.history.roots import roots_of
from commitlog.core.iceberg.reading import dump_json
from commitlog.model.limits import PROTOCOL_SUPPORTED
from commitlog.model.operations import IcebergChange
from consumers.partition.checkpoints.checkpoint import Checkpoints
from consumers.partition.checkpoints.checkpoint_heads import FORMAT, HEAD
from consumers.partition.checkpoints.table_places import check_tables
from consumers.runtime.places import RootMoved
from consumers.tools.backup.writer import back_up
from consumers.tools.upgrade import check_upgrade
from consumers.tools.verify import VerifyOptions, verify
from tests.golden.make_roots import PLACE, REVISIONS
from tests.golden.roots import NAMES, Golden, golden
from tests.service import applying, ids_of, on_memory, rows
from tests.unit.iceberg_examples import create_updates
from tests.verified import index_whole


def is_whole(opened: Golden) -> bool:
    verdict = verify(opened.log, 0, VerifyOptions(opened.root, contents=True))
    assert verdict.problems == []
    assert verdict.decided_again > 20
    assert verdict.rows == sum(
        max((int(version), len(ids)) for version, ids in versions.items())[1]
        for versions in opened.expected.values()
    )
    return verdict.is_whole


def apply_rows(client: CommitLog) -> None:
    """Have a row writer apply what the older program left waiting, and what comes now."""
    waits = ids_of(client.open("stock"))
    with applying(client):
        client.write_rows("stock", rows(6)).result()
    assert ids_of(client.open("stock")) == sorted([*waits, 5, 6])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_root_of_each_protocol_and_release_goes_on(name: str, tmp_path: Path) -> None:
    protocol = REVISIONS[name][0]
    with golden(name, tmp_path / "root") as opened:
        genesis = opened.log.genesis()
        saved = Checkpoints(opened.root, opened.log.identity(), genesis).load()
        assert saved is not None, "the old checkpoint opens"
        assert saved.machine.rules.protocol == protocol
        copied = back_up(opened.log, str(tmp_path / "backup"), opened.root)
        assert copied.checkpoint_files > 0, "an old root is backed up before anything else"
        opened.start()
        client = opened.client
        assert {info.name for info in client.tables()} == set(opened.expected)
        for table, versions in opened.expected.items():
            for version, ids in versions.items():
                assert ids_of(client.open(table, int(version))) == ids, (table, version)
        assert is_whole(opened)
        place = f"{PLACE}/{name}/tables"
        assert roots_of(opened.log) == ({place: "tables"} if name == "protocol-5" else {})
        todo = [one.name for one in check_upgrade(opened.log, opened.root) if one.advice]
        assert todo == ([] if protocol == PROTOCOL_SUPPORTED else ["rules"])
        made = client.append("shop$orders", rows(9000))
        info = client.table("shop$orders")
        assert info.location.startswith(str(opened.root))
        assert 9000 in ids_of(lance.dataset(info.location, version=made.version))
        if "stock" in opened.expected:
            apply_rows(client)
        client.delete("taken", "id = 20")
        client.create_index("shop$orders", "id", "BTREE")
        new = lance.fragment.write_fragments(rows(30), client.open("taken"))
        overwrite = lance.LanceOperation.Overwrite(rows().schema, new)  # built by pylance
        client.submit("taken", overwrite).result().raise_for_conflict()
        client.create_table("fresh", rows().schema)
        client.append("fresh", rows(1))
        opened.stop()
        index_whole(opened.log, opened.root)
        with duckdb.connect(str(opened.root / "index.duckdb"), read_only=True) as index:
            [[count]] = index.execute("SELECT max(sequence) FROM transactions").fetchall()
        assert count > saved.machine.sequence
        verdict = verify(opened.log, 0, VerifyOptions(opened.root, state=tmp_path / "state"))
        assert verdict.problems == []
        assert verdict.index_rows > 20
        assert not (PLACE / name).exists(), "nothing is made at the old place"


def test_the_check_of_an_upgrade_names_what_is_older_in_the_order_of_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with golden("protocol-3", tmp_path / "root") as opened:
        # Programs of before said nothing of themselves.
        monkeypatch.setattr("commitlog.wire.program", dict)
        opened.start()
        assert opened.client.tables()
        head = opened.root / "checkpoints" / "0" / HEAD
        head.write_bytes(head.read_bytes().replace(b'"format": %d' % FORMAT, b'"format": 2'))
        found = [one for one in check_upgrade(opened.log, opened.root) if one.advice]
        assert [one.name for one in found] == ["connected", "checkpoint", "rules"]
        assert "× a program that doesn't say" in found[0].message
        assert found[2].advice.startswith("once everything above is new")


def test_a_root_without_a_tables_files_is_refused_by_the_tables_name(tmp_path: Path) -> None:
    with golden("protocol-3", tmp_path / "root") as opened:
        assert check_tables(opened.log, opened.root) == len(opened.expected)
        place = tmp_path / "root" / "tables" / "elsewhere.lance"
        place.rename(tmp_path / "lost")
        with pytest.raises(RootMoved, match="^table taken: the files are missing") as refused:
            check_tables(opened.log, opened.root)
        assert str(place) in str(refused.value)


def test_tables_whose_files_name_places_are_not_bound_to_others(tmp_path: Path) -> None:
    with golden("protocol-4", tmp_path / "root") as opened:
        opened.start()
        place = f"{PLACE}/protocol-4/tables/ice"
        create = dump_json(create_updates(place))
        ice = IcebergChange(("shop", "lake"), '[{"type":"assert-create"}]', create)
        opened.client.submit(None, ice).result().raise_for_conflict()
        opened.stop()
        with pytest.raises(RootMoved, match=r"table shop\$lake can't be moved by binding places"):
            check_tables(opened.log, opened.root)
        refused = on_memory(opened.cluster, opened.root)
        refused.await_end()
        assert isinstance(refused.failure, RootMoved)
