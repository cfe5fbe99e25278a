"""A version may give a field's id to another field, if no file that stays has a column of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from commitlog import words
from commitlog.core.manifest.fragments import Fragments
from commitlog.core.manifest.header import ManifestHeader
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.table_pb2 import DataFragment, Manifest
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.limits import SHARED_FILES_SINCE, Rules
from tests.core_world import ROOT, World, append, column, commit, new_fragment, replayed_from_parts
from tests.unit.test_staged import stage

BEFORE, SINCE = Rules(SHARED_FILES_SINCE - 1), Rules(SHARED_FILES_SINCE)
ID = Field.FromString(column("id", 0))


class File(NamedTuple):
    """A data file, and the fields of its columns."""

    path: str
    fields: tuple[int, ...]
    base: int = 0
    """The id of its base path; 0: it is in the table's own folder."""
    fragment: int = 0


def field(name: str, field_id: int, kind: str, parent: int = -1, *, packed: bool = False) -> Field:
    """Return a column, or a part of one."""
    made = Field.FromString(column(name, field_id, kind))
    made.parent_id = parent
    if packed:
        made.metadata["packed"] = b"true"
    return made


def version(
    world: World, fields: Sequence[Field], files: Sequence[File], overlay: File | None, base: str
) -> ManifestState:
    """Return the head's next version, of this schema and of these files."""
    state = world.state().copy()
    header = Manifest.FromString(state.header.encoded)
    del header.fields[:], header.base_paths[:]
    header.fields.extend([ID, *fields])
    if base:
        base_id = max(file.base for file in files)
        header.base_paths.add(id=base_id, path=base, is_dataset_root=True)
    fragments: dict[int, DataFragment] = {}
    for file in files:
        of_file = new_fragment(file.path, fields=file.fields)
        if file.base:
            of_file.files[0].base_id = file.base
        fragments.setdefault(file.fragment, DataFragment(id=file.fragment, physical_rows=10))
        fragments[file.fragment].files.extend(of_file.files)
    if overlay is not None:
        laid = fragments[0].overlays.add()
        laid.data_file.CopyFrom(new_fragment(overlay.path, fields=overlay.fields).files[0])
    state.fragments = Fragments(f.SerializeToString(deterministic=True) for f in fragments.values())
    state.header = ManifestHeader.of(header)
    state.max_fragment_id = 1
    state.version += 1
    return state


class Case(NamedTuple):
    """Two versions, and whether the second may follow, under the protocol before and since."""

    fields: tuple[tuple[Field, ...], tuple[Field, ...]]
    files: tuple[tuple[File, ...], tuple[File, ...]]
    may_follow: tuple[bool, bool]
    overlay: File | None = None
    bases: tuple[str, str] = ("", "")


INT = (field("w", 3, "int32"),)
DOUBLE = (field("y", 3, "double"),)
W_TO_Y = (INT, DOUBLE)
A, A_W, W = File("a.lance", (0,)), File("a.lance", (0, 3)), File("w.lance", (3,))
OTHER = File("b.lance", (0, 3))
STRUCT, PACKED = field("s", 1, "struct"), field("s", 1, "struct", packed=True)
P, P_DOUBLE = field("p", 2, "int32", 1), field("p", 2, "double", 1)
Q, Q_DOUBLE = field("q", 3, "int32", 1), field("q", 3, "double", 1)
S_P = File("a.lance", (0, 1, 2))

CASES = {
    "a column of nulls": Case(W_TO_Y, ((A,), (A,)), (False, True)),
    "its file stays": Case(W_TO_Y, ((A_W,), (A_W,)), (False, False)),
    "its file goes, another stays": Case(W_TO_Y, ((A, W), (A,)), (False, True)),
    "its file comes, another stays": Case(W_TO_Y, ((A,), (A, W)), (False, True)),
    "all files go": Case(W_TO_Y, ((A_W,), (OTHER,)), (True, True)),
    "its file stays in another fragment": Case(
        W_TO_Y, ((A_W,), (A_W._replace(fragment=1),)), (True, False)
    ),
    "the column was replaced": Case(W_TO_Y, ((File("a.lance", (0, -2)), W), (A_W,)), (True, True)),
    "the column is replaced": Case(W_TO_Y, ((A_W,), (File("a.lance", (0, -2)), W)), (True, True)),
    "another column of its file is replaced": Case(
        W_TO_Y, ((A_W,), (File("a.lance", (-2, 3)), File("b.lance", (0,)))), (True, False)
    ),
    "the column was dropped": Case(((), DOUBLE), ((A_W,), (A_W,)), (True, True)),
    "a struct's part of nulls": Case(
        ((STRUCT, P, Q), (STRUCT, P, Q_DOUBLE)), ((S_P,), (S_P,)), (False, True)
    ),
    "a struct's part": Case(((STRUCT, P), (STRUCT, P_DOUBLE)), ((S_P,), (S_P,)), (False, False)),
    "what a part is inside of": Case(
        ((STRUCT, P), (field("s", 1, "list"), P)),
        ((File("a.lance", (0, 2)),),) * 2,
        (False, False),
    ),
    "a part of a struct in one column": Case(
        ((PACKED, P), (PACKED, P_DOUBLE)), ((File("a.lance", (0, 1)),),) * 2, (False, False)
    ),
    "a struct becomes one column": Case(
        ((STRUCT, P), (PACKED, P)), ((File("a.lance", (0, 2)),),) * 2, (False, False)
    ),
    "values laid over": Case(W_TO_Y, ((A,), (A,)), (False, False), overlay=W),
    "the same file by a base path": Case(
        W_TO_Y, ((A_W,), (A_W._replace(base=1),)), (True, False), bases=("", f"{ROOT}/t")
    ),
    "a file of another place": Case(
        W_TO_Y,
        ((A_W._replace(base=1),), (A_W._replace(base=2),)),
        (True, True),
        bases=(f"{ROOT}/u", f"{ROOT}/v"),
    ),
}


LEGACY = field("b", 3, "large_binary")
LEGACY.metadata["lance-encoding:blob"] = b"true"
BLOB = field("b", 3, "struct")
BLOB.metadata["ARROW:extension:name"] = b"lance.blob.v2"
DATA = field("data", 4, "large_binary", 3)
LAST = field("z", 2, "int64")
BLOBS = {
    "a column of nulls": ((BLOB, DATA, LAST), A, True),
    "its file stays": ((BLOB, DATA, LAST), A_W, False),
    "another name": ((field("c", 3, "struct"), DATA, LAST), A, False),
    "another column comes": ((BLOB, DATA, LAST, field("x", 5, "int64")), A, False),
    "another column changes": ((BLOB, DATA, field("z", 2, "string")), A, False),
    "another column goes": ((BLOB, DATA), A, False),
    "it moves": ((LAST, BLOB, DATA), A, False),
}


@pytest.mark.parametrize("rules", [BEFORE, SINCE], ids=["before", "since"])
@pytest.mark.parametrize("name", BLOBS)
def test_any_version_may_make_nulls_blobs_of_the_second_kind(name: str, rules: Rules) -> None:
    fields, file, may_follow = BLOBS[name]
    world = World(rules=rules)
    world.create(data_storage_version="2.2")
    first = version(world, (LEGACY, LAST), (file,), None, "")
    assert world.ask("0", stage(world, overwriting(world), first)).status == "committed"
    transaction = LanceTransaction(read_version=2, uuid="a")
    transaction.append.fragments.append(new_fragment("b.lance"))
    second = version(world, fields, (file, OTHER._replace(fragment=2)), None, "")
    second.max_fragment_id = 2
    outcome = world.ask("1", stage(world, transaction, second))
    said = words.worded(outcome).message
    assert (outcome.status == "committed") is (may_follow and rules is SINCE), said
    for again in (world.replayed(), replayed_from_parts(world.machine)):
        assert again.digest() == world.machine.digest()


def restoring(world: World) -> LanceTransaction:
    """Return a Restore of the first version."""
    transaction = LanceTransaction(read_version=world.state().version, uuid="r")
    transaction.restore.version = 1
    return transaction


def overwriting(world: World) -> LanceTransaction:
    """Return an Overwrite, whatever it brings."""
    transaction = LanceTransaction(read_version=world.state().version, uuid="o")
    transaction.overwrite.schema.append(ID)
    return transaction


@pytest.mark.parametrize("make", [restoring, overwriting])
@pytest.mark.parametrize("name", CASES)
def test_an_id_gets_another_type_only_without_a_column_that_stays(name: str, make: Any) -> None:
    case = CASES[name]
    for rules, may_follow in zip((BEFORE, SINCE), case.may_follow, strict=True):
        world = World(rules=rules)
        world.create()
        for place in ("u", "v"):
            world.create(place)
        for step, (fields, files, base) in enumerate(
            zip(case.fields, case.files, case.bases, strict=True)
        ):
            made = version(world, fields, files, case.overlay, base)
            transaction = make(world) if step else overwriting(world)
            outcome = world.ask(str(step), stage(world, transaction, made))
            said = words.worded(outcome).message
            assert (outcome.status == "committed") is (may_follow or not step), said
        if not may_follow:
            assert outcome.code == "WRONG_SCHEMA"
            assert "would have another type or encoding than its files" in said
        for again in (world.replayed(), replayed_from_parts(world.machine)):
            assert again.digest() == world.machine.digest()


@pytest.mark.parametrize("rules", [BEFORE, SINCE], ids=["before", "since"])
def test_an_overwrite_that_is_built_here_may_do_the_same(rules: Rules) -> None:
    world = World(rules=rules)
    world.create(columns=2)
    world.ask("first", append(1, "a.lance"))
    transaction = overwriting(world)
    transaction.overwrite.schema.append(Field.FromString(column("c1", 1, "string")))
    transaction.overwrite.fragments.append(new_fragment("a.lance"))
    outcome = world.ask("over", commit(transaction))
    assert (outcome.status == "committed") is (rules is SINCE), words.worded(outcome).message
    assert world.replayed().digest() == world.machine.digest()
