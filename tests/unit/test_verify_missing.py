"""Does verify know which versions need a file that is gone, however many files are?"""

from __future__ import annotations

import random
from typing import Any

from commitlog.core.decisions import Change, ChangeKind
from commitlog.core.manifest.manifest_state import ManifestDelta
from commitlog.core.tables.creation import empty_state
from commitlog.lancepb.table_pb2 import DataFile, DataFragment, DeletionFile
from commitlog.model.table import Policy
from consumers.tools.verify.missing import AllMissing, Missing, own_files, paths_of
from consumers.tools.verify.versions import LifeManifests, Made, Versions

LIFE = LifeManifests(("t",), "inc", "/t", Policy.LATEST, empty_state())


def made(version: int, fragments: dict[int, list[str]], removed: tuple[int, ...] = ()) -> Made:
    encoded = tuple(
        (n, DataFragment(id=n, files=[DataFile(path=p) for p in paths]).SerializeToString())
        for n, paths in fragments.items()
    )
    change = Change(("t",), "inc", ChangeKind.VERSION, "/t", Policy.LATEST, version)
    delta = ManifestDelta(version, 0, 0, 0, None, 0, "", removed=removed, fragments=encoded)
    return Made(LIFE, change, delta, version)


def missed(version: int, fragment: int, path: str) -> Missing:
    return Missing("file", "inc", f"data/{path}", version, version, fragment, since=version)


def test_the_versions_that_need_a_missing_file_are_those_that_name_it() -> None:
    chance = random.Random(7)
    for _ in range(50):
        missing, known, named = AllMissing(), set[str](), dict[str, list[int]]()
        table: dict[int, list[str]] = {}
        for version in range(1, 40):
            fragment, removed = chance.randrange(4), chance.random() < 0.3
            if removed and fragment in table:
                del table[fragment]
                step = made(version, {}, (fragment,))
            else:
                table[fragment] = [f"{fragment}.{chance.randrange(5)}.lance"]
                step = made(version, {fragment: table[fragment]})
            missing.follow(step)
            for number, (path,) in table.items():
                if path not in known:
                    known.add(path)
                    missing.note(missed(version, number, path))
                named.setdefault(path, []).append(version)
        LIFE.state.version = 39
        for one in missing.files:
            found = [v for a, b in one.hurts(LIFE) for v in range(a, b + 1)]
            assert found == named[one.path.removeprefix("data/")]


def test_a_fragment_has_files_of_columns_of_overlays_and_of_deletions() -> None:
    """A replay writes a table's rows again if one of these is gone."""
    fragment = DataFragment(id=3, files=[DataFile(path="a"), DataFile(path="b", base_id=1)])
    fragment.overlays.add().data_file.path = "over"
    fragment.deletion_file.CopyFrom(DeletionFile(read_version=4, id=5))
    assert own_files(fragment) == {"data/a", "data/over", "_deletions/3-4-5.arrow"}
    assert paths_of(fragment.SerializeToString()) == own_files(fragment) | {"data/b"}
    assert paths_of(None) == set()


class Counted(Missing):
    """Counts how often it is looked at."""

    looks = 0

    def __getattribute__(self, name: str) -> Any:
        Counted.looks += 1
        return super().__getattribute__(name)


def test_a_version_looks_at_no_missing_file_of_other_fragments() -> None:
    missing = AllMissing()
    for n in range(1, 1001):
        missing.note(Counted("file", "inc", f"data/{n}.lance", n, n, n, since=n))
        missing.follow(made(n + 1, {n + 1: [f"{n + 1}.lance"]}, (n,)))
    assert [one.needed for one in missing.files] == [[(n, n)] for n in range(1, 1001)]
    Counted.looks = 0
    missing.follow(made(1003, {1002: ["new.lance"]}, (1001,)))
    assert Counted.looks == 0


def test_versions_may_be_deleted_in_any_order() -> None:
    versions = Versions({})

    def delete(first: int, last: int) -> None:
        deleted = ((first, last),)
        kind = ChangeKind.VERSIONS_DELETED
        change = Change(("t",), "inc", kind, "/t", Policy.LATEST, deleted=deleted)
        assert list(versions.take((change,), (), 1)) == []

    delete(5, 6)
    delete(1, 2)
    delete(3, 3)
    one = Missing("file", "inc", "data/a", 1, 1, 0, needed=[(1, 6)])
    assert one.hurts(versions.lives["inc"]) == ((4, 4),)
