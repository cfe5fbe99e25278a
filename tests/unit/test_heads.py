"""Heads follow what is acknowledged, however far the machine is ahead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.core.decisions import ChangeKind, Noted
from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.iceberg.views import IcebergView
from commitlog.core.partition.effects import E_TAGS_KEPT
from commitlog.core.tables.by_name import ByName
from commitlog.errors import NoSuchTable
from commitlog.model.operations import DropTable, RenameTable
from commitlog.model.table import TableId
from consumers.partition.files.catalogue import PartitionHeads, no_such_table
from tests.core_world import World, append


def test_a_table_that_was_renamed_and_then_dropped_leaves_no_head() -> None:
    """Both were decided before the first of them was acknowledged."""
    world = World()
    world.create()
    heads = PartitionHeads(world.machine.tables)
    seen = len(world.changes)
    world.ask("append", append(1, "1.lance"))
    world.ask("rename", RenameTable(("t",), ("u",)))
    world.ask("again", RenameTable(("u",), ("v",)))
    world.ask("drop", DropTable(("v",)))
    names = []
    for change in world.changes[seen:]:
        heads.apply([change])
        names.append([(head.table, head.version) for head in heads.heads()])
    assert names == [[(("t",), 2)], [(("u",), 2)], [(("v",), 2)], []]


def test_a_page_of_names_looks_at_no_others() -> None:
    looks: list[str] = []

    class Part(str):
        """A part of a name that tells when it is compared."""

        def __lt__(self, other: str) -> bool:
            looks.append(other)
            return str(self) < other

        __hash__ = str.__hash__

    names = [(Part(f"n{i:04}"), "t") for i in range(2_000)]
    heads = PartitionHeads({}, {name: () for name in [*names, ("n1000", "a", "b"), ("n1000",)]})
    assert heads.next_namespaces(("n1000",), "", 10) == [(("n1000", "t"), ())]
    looks.clear()
    for after, limit, found in (("", 10, ["t"]), ("", 0, []), ("t", 10, [])):
        page = heads.next_namespaces(("n1000",), after, limit)
        assert [name[-1] for name, _ in page] == found
    assert len(looks) < 200


@pytest.mark.parametrize("is_view", [True, False])
def test_a_page_of_the_few_views_looks_at_no_tables_and_the_other_way_round(
    monkeypatch: pytest.MonkeyPatch, *, is_view: bool
) -> None:
    """The leader's loop looked at all of them: 40 ms at 10,000 tables without a view."""
    few, many = (IcebergView, IcebergTable) if is_view else (IcebergTable, IcebergView)
    known: dict[TableId, IcebergTable] = {
        ("n", f"{number:04}"): many.__new__(many) for number in range(2_000)
    }
    known["n", "few"] = few.__new__(few)
    heads = PartitionHeads({}, iceberg=known)
    looks: list[TableId] = []
    directly_in = ByName.directly_in

    def noted(names: ByName[Any], namespace: TableId, after: str) -> Iterator[TableId]:
        for name in directly_in(names, namespace, after):
            looks.append(name)
            yield name

    monkeypatch.setattr(ByName, "directly_in", noted)
    page = heads.next_iceberg_tables(("n",), "", 10, is_view=is_view)
    assert [name for name, _ in page] == looks == [("n", "few")]
    assert [name for name, _ in heads.iceberg_tables(("n",))] == sorted(known)


@given(
    st.sets(st.lists(st.sampled_from(["", "a", "b", "b\0"]), min_size=1, max_size=4).map(tuple)),
    st.lists(st.sampled_from(["", "a", "b"]), max_size=2).map(tuple),
    st.sampled_from(["", "a", "b", "c"]),
)
def test_names_directly_in_a_namespace_follow_in_order(
    names: set[TableId], namespace: TableId, after: str
) -> None:
    known = ByName(dict.fromkeys(names, 0))
    direct = {one for one in names if one[:-1] == namespace and one[-1] > after}
    assert list(known.directly_in(namespace, after)) == sorted(direct)


def test_names_are_compared_only_while_they_are_few() -> None:
    """The leader's loop does it, and decides nothing meanwhile."""
    known = [("shop", f"orders{number}") for number in range(251)]
    assert no_such_table(("shop", "order"), known[:-1]).hint.startswith("Did you mean shop$orders")
    assert no_such_table(("shop", "order"), known).hint == NoSuchTable.ADVICE


@pytest.mark.parametrize("step", [1, 7])
def test_a_term_of_years_keeps_what_was_said_about_the_newest_versions_only(step: int) -> None:
    """As the machine does; `step`: other commits, about which nothing is said, are between."""
    world = World()
    world.create()
    heads = PartitionHeads(world.machine.tables)
    world.ask("append", append(1, "1.lance"))
    made = world.changes[-1]
    last = 5 * E_TAGS_KEPT + 3
    for version in range(2, last + 1):
        metadata = (("ours", "kept"),) if version == 9 else ()
        noted = Noted(str(version), metadata) if version % step == 2 % step else None
        heads.apply([replace(made, version=version, noted=noted)])
    head = heads.head(("t",))
    assert head.version == last
    assert 0 < len(head.noted) <= E_TAGS_KEPT + 5
    assert head.said(9) == ["9", {"ours": "kept"}]
    newest = max(version for version in range(2, last + 1) if version % step == 2 % step)
    assert head.said(newest) == [str(newest), {}]
    deleted = ((1, last - 1),)
    gone = replace(made, kind=ChangeKind.VERSIONS_DELETED, delta=None, deleted=deleted)
    heads.apply([gone])
    assert set(heads.head(("t",)).noted) <= {last}
