"""Fragments of a version: a map, its joined form, and forks of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.core.manifest.encoded_fragments import EncodedFragments, changes
from commitlog.core.manifest.feature_flags import FLAG_DELETION_FILES
from commitlog.core.manifest.fragments import Fragments, joined
from commitlog.core.manifest.wire import Splitter, split, varint
from commitlog.errors import UnsupportedFormat
from commitlog.lancepb.table_pb2 import DataFragment, Manifest
from tests.unit.manifest_examples import fragment

IDS = st.integers(min_value=0, max_value=600)
CHANGES = st.lists(st.tuples(IDS, st.integers(min_value=0, max_value=3)), max_size=60)


def encoded(fragment_id: int, deleted: int = 0) -> bytes:
    return fragment(fragment_id, deleted=deleted).SerializeToString()


def change(target: Fragments, model: dict[int, bytes], fragment_id: int, action: int) -> None:
    if action == 3:
        if fragment_id in model:
            target.remove(fragment_id)
            del model[fragment_id]
    else:
        model[fragment_id] = encoded(fragment_id, action)
        target.put([(fragment_id, model[fragment_id])])


def assert_holds(target: Fragments, model: dict[int, bytes]) -> None:
    in_order = dict(sorted(model.items()))
    assert list(target.items()) == list(in_order.items())
    assert len(target) == len(model)
    assert target.last_id == max(model, default=-1)
    assert b"".join(target.wire()) == joined(in_order.values())
    has_deletions = any(
        DataFragment.FromString(f).HasField("deletion_file") for f in model.values()
    )
    assert target.features() == (FLAG_DELETION_FILES if has_deletions else 0)


@given(st.sets(IDS), CHANGES, st.booleans())
def test_fragments_are_a_sorted_map_however_they_change(
    first: set[int], changes: list[tuple[int, int]], is_joined_first: bool
) -> None:
    model = {i: encoded(i) for i in first}
    target = Fragments(model.values())
    if is_joined_first:
        target.wire()
    for fragment_id, action in changes:
        change(target, model, fragment_id, action)
    assert_holds(target, model)


@pytest.mark.slow
@given(st.sets(IDS), CHANGES, CHANGES)
def test_a_fork_changes_alone(
    first: set[int], changes: list[tuple[int, int]], later: list[tuple[int, int]]
) -> None:
    base_model = {i: encoded(i, i % 3) for i in first}
    base = Fragments(base_model.values())
    model = dict(base_model)
    fork = base.fork()
    for fragment_id, action in changes:
        change(fork, model, fragment_id, action)
    assert_holds(fork, model)
    second_model = dict(model)
    second = fork.fork()
    for fragment_id, action in later:
        change(second, second_model, fragment_id, action)
    assert_holds(second, second_model)
    assert_holds(fork, model)
    assert_holds(base, base_model)


def test_features_are_told_before_they_are_put() -> None:
    target = Fragments([encoded(0), encoded(1, deleted=2)])
    assert target.features_after([(1, None)]) == 0
    assert target.features_after([(0, FLAG_DELETION_FILES)]) == FLAG_DELETION_FILES
    assert target.features_after([(1, 0)]) == 0
    assert target.features() == FLAG_DELETION_FILES


@given(st.integers(min_value=0, max_value=2**64 - 1))
def test_a_varint_is_protobufs(value: int) -> None:
    assert Manifest(version=value).SerializeToString() == (b"\x18" + varint(value)) * bool(value)


def test_splitting_keeps_unknown_fields_and_the_bytes_of_values() -> None:
    odd = b"\x10\x05\x08\x01"
    unknown = b"\xfa\x07\x03abc" + b"\xf9\x07" + bytes(8) + b"\xfd\x07" + bytes(4)
    data = b"\x12" + varint(len(odd)) + odd + unknown + Manifest(version=3).SerializeToString()
    rest, values = split(data, 2)
    assert values == [odd]
    assert rest == unknown + b"\x18\x03"


@given(st.lists(IDS, max_size=300), CHANGES, st.integers(min_value=0, max_value=70))
def test_what_is_known_of_one_message_splits_another(
    ids: list[int], changed: list[tuple[int, int]], begin: int
) -> None:
    splitter = Splitter(2)
    for _ in range(2 + 70 // (len(ids) or 1)):  # then it knows runs
        splitter.split(bytes(joined([encoded(i) for i in ids])))
    later = [encoded(i) for i in ids[begin:]]
    for position, deleted in changed:
        later.insert(position % (len(later) + 1), encoded(position, deleted))
    data = b"\x0a\x02\x12\x00" + bytes(joined(later)) + Manifest(version=7).SerializeToString()
    assert splitter.split(data) == split(data, 2)
    assert split(data, 2)[1] == later


def test_changes_here_and_there_leave_most_of_a_message_known() -> None:
    values = [encoded(i) for i in range(1_000)]
    splitter, before, fresh = Splitter(2), list[bytes](), 0
    for changed in range(0, 1_000, 10):
        values[changed] = encoded(changed, 7)
        _, now = splitter.split(bytes(joined(values)))
        assert now == values
        known = set(map(id, before))
        fresh += sum(id(one) not in known for one in now)
        before = now
    assert fresh < 100 * 1_000 / 3, "each of 100 messages had one new value of 1,000"


def in_manifest(model: dict[int, bytes]) -> EncodedFragments:
    """Fragments in a manifest's bytes, between other fields, as Lance writes them."""
    ids = sorted(model)
    around = Manifest(version=7, tag="t").SerializeToString()
    wire = b"\x0a\x02\x12\x00" + bytes(joined(model[i] for i in ids)) + around
    return EncodedFragments(wire, ids)


@given(st.sets(IDS), CHANGES, st.booleans())
def test_what_a_manifest_changes_is_found_by_its_bytes(
    first: set[int], later: list[tuple[int, int]], is_plain: bool
) -> None:
    before = {i: encoded(i) for i in first}
    head, after = Fragments(before.values()), dict(before)
    for fragment_id, action in later:
        change(Fragments(after.values()), after, fragment_id, action)
    made = in_manifest(after)
    if is_plain:
        assert_holds(made, after)
    removed, put = changes(head, made)
    assert removed == tuple(sorted(before.keys() - after.keys()))
    assert put == tuple((i, after[i]) for i in sorted(after) if before.get(i) != after[i])
    assert_holds(made, after)


def test_an_append_leaves_the_head_s_fragments_together() -> None:
    model = {i: encoded(i) for i in range(700)}
    head = Fragments(model.values())
    made = in_manifest(model | {700: encoded(700)})
    assert changes(head, made) == ((), ((700, encoded(700)),))
    assert made.is_encoded
    made.put([(3, encoded(3, 1))])
    assert changes(head, made)[1] == ((3, encoded(3, 1)), (700, encoded(700)))
    assert changes(head.fork(), in_manifest(model)) == ((), ())


def test_an_id_that_is_there_twice_is_no_manifest() -> None:
    with pytest.raises(UnsupportedFormat, match="one id"):
        EncodedFragments(b"", [1, 2, 1])
