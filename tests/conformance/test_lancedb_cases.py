"""LanceDB's own test cases that fit a server, by its remote client and on a disk.

Both say the same. `lancedb_cases` has them; none is left out without a reason.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.lancedb_cases import Cases, changes, indexed, queries, remote, tables
from tests.conformance.lancedb_cases.left_out import LEFT_OUT
from tests.namespace_world import World

lancedb: Any = pytest.importorskip("lancedb")

pytestmark = pytest.mark.filterwarnings("ignore")
ALL = [
    cases
    for module in (tables, changes, queries, indexed)
    for cases in vars(module).values()
    if isinstance(cases, Cases)
]
BOTH = {f"{cases.file}:{names}": case for cases in ALL for names, case in cases.items()}


@pytest.fixture(scope="module")
def connections(world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    remote_db = lancedb.connect("db://any", api_key="k-0123456789abcdef", host_override=world.uri)
    return remote_db, lancedb.connect(tmp_path_factory.mktemp("disk"))


@pytest.mark.parametrize("names", BOTH)
def test_a_server_says_what_a_disk_says(
    world: World, connections: tuple[Any, Any], names: str
) -> None:
    new = world.fresh_name()
    said = [BOTH[names](db, new) for db in connections]
    assert said[0] == said[1]


@pytest.mark.parametrize("names", remote.REMOTE)
def test_a_server_does_what_the_client_expects(
    world: World, connections: tuple[Any, Any], names: str
) -> None:
    remote.REMOTE[names](world, world.fresh_name())


def test_no_case_is_both_tried_and_left_out_and_none_twice() -> None:
    for file in {cases.file for cases in [*ALL, remote.REMOTE]} | LEFT_OUT.keys():
        tried = [n for c in [*ALL, remote.REMOTE] if c.file == file for k in c for n in k.split()]
        left = [n for names in LEFT_OUT.get(file, {}).values() for n in names.split()]
        found = tried + left
        assert sorted(found) == sorted(set(found)), file
