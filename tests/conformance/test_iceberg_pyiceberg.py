"""pyiceberg beside us: its evaluation of requirements and updates, and its client, unmodified.

Where the two are known to differ, the generated requests stay away from it; each such place is a
case of `test_where_pyiceberg_is_known_to_differ`, so that a change there shows.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.core.iceberg.domain import IcebergRefused
from commitlog.core.iceberg.iceberg_table import IcebergTable
from tests.namespace_world import World
from tests.unit.iceberg_examples import EVENTS, change, decide, main_at, metadata, schema, snapshot

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:::pyiceberg.*", "ignore::DeprecationWarning")


def _theirs(found: dict[str, Any], updates: list[Any], requirements: list[Any]) -> Any:
    from pyiceberg.table import CommitTableRequest
    from pyiceberg.table.metadata import TableMetadataUtil
    from pyiceberg.table.update import update_table_metadata

    request = CommitTableRequest.model_validate(
        {
            "identifier": {"namespace": ["analytics"], "name": "events"},
            "requirements": requirements,
            "updates": updates,
        }
    )
    base = TableMetadataUtil.parse_obj(found)
    try:
        for requirement in request.requirements:
            requirement.validate(base)
        after = update_table_metadata(base, request.updates)
    except Exception:  # pyiceberg refuses by many classes, ValueError and KeyError among them
        return None
    return after.model_dump(mode="json", by_alias=True, exclude_none=True)


def _ours(found: dict[str, Any], updates: list[Any], requirements: list[Any]) -> Any:
    import json

    from commitlog.core.iceberg.metadata import table_of

    base: IcebergTable = table_of(found, "s3://bucket/events/metadata/00007-x.metadata.json")
    decided = decide({EVENTS: base}, change(updates, requirements))
    if isinstance(decided, IcebergRefused):
        return None
    return json.loads(decided[0].after.to_json())


_COMPARED = (
    "format-version",
    "table-uuid",
    "location",
    "last-sequence-number",
    "last-column-id",
    "current-schema-id",
    "default-spec-id",
    "last-partition-id",
    "default-sort-order-id",
    "properties",
    "current-snapshot-id",
    "refs",
)


def _essence(after: Any) -> Any:
    if after is None:
        return None
    found = {name: after.get(name) for name in _COMPARED}
    found["schemas"] = [(s["schema-id"], s["fields"]) for s in after["schemas"]]
    found["specs"] = [
        (s["spec-id"], [(p["source-id"], p["field-id"], p["transform"]) for p in s["fields"]])
        for s in after["partition-specs"]
    ]
    found["orders"] = [(o["order-id"], len(o["fields"])) for o in after["sort-orders"]]
    found["snapshots"] = sorted(s["snapshot-id"] for s in after["snapshots"])
    found["log"] = [entry["snapshot-id"] for entry in after["snapshot-log"]]
    return found


def _one(action: str, **members: Any) -> dict[str, Any]:
    return {"action": action, **{name.replace("_", "-"): v for name, v in members.items()}}


def _add_snapshot(more: int) -> dict[str, Any]:
    return _one("add-snapshot", snapshot=snapshot(3, 2 + more, 2))


def _bucket(count: int) -> dict[str, Any]:
    part = {"source-id": 1, "field-id": 1000, "transform": f"bucket[{count}]", "name": "b"}
    return _one("add-spec", spec={"spec-id": 1, "fields": [part]})


_SORT = {"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}
# Each group appears at most once in a request, in this order: where a group came twice, or -1 and
# the highest id differ, pyiceberg and Java are known to differ.
_GROUPS: list[st.SearchStrategy[list[dict[str, Any]]]] = [
    st.sampled_from([[], [_one("upgrade-format-version", format_version=2)]]),
    st.sampled_from([[], [_one("set-location", location="s3://bucket/moved")]]),
    st.sampled_from([[], [_one("set-properties", updates={"a": "1", "owner": "b"})]]),
    st.sampled_from([[], [_one("remove-properties", removals=["owner"])]]),
    st.sampled_from(
        [
            [],
            [_one("add-schema", schema={**schema("id", "data", "c"), "schema-id": 1})],
            [
                _one("add-schema", schema={**schema("id", "data", "c"), "schema-id": 1}),
                _one("set-current-schema", schema_id=-1),
            ],
            [_one("set-current-schema", schema_id=-1)],
            [_one("set-current-schema", schema_id=9)],
        ]
    ),
    st.sampled_from([[], [_bucket(2)], [_bucket(2), _one("set-default-spec", spec_id=-1)]]),
    st.sampled_from(
        [
            [],
            [
                _one("add-sort-order", sort_order={"order-id": 1, "fields": [_SORT]}),
                _one("set-default-sort-order", sort_order_id=-1),
            ],
        ]
    ),
    st.sampled_from(
        [
            [],
            [_add_snapshot(1)],
            [_add_snapshot(0)],
            [_add_snapshot(1), main_at(3)],
            [main_at(3)],
            [main_at(1)],
        ]
    ),
    st.sampled_from(
        [
            [],
            [_one("set-snapshot-ref", ref_name="t", type="tag", snapshot_id=1)],
            [_one("set-snapshot-ref", ref_name="b", type="branch", snapshot_id=9)],
            [_one("set-snapshot-ref", ref_name="b", type="branch", snapshot_id=2)],
        ]
    ),
]
_UPDATES = st.tuples(*_GROUPS).map(lambda groups: [u for group in groups for u in group])
_REQUIREMENTS = st.lists(
    st.sampled_from(
        [
            {"type": "assert-create"},
            *(
                {"type": "assert-table-uuid", "uuid": uuid}
                for uuid in (metadata()["table-uuid"], "00000000-0000-4000-8000-000000000000")
            ),
            *(
                {"type": "assert-ref-snapshot-id", "ref": ref, "snapshot-id": snapshot_id}
                for ref in ("main", "dev")
                for snapshot_id in (None, 1, 2)
            ),
            *(
                {"type": f"assert-{name}", name: value}
                for name in (
                    "last-assigned-field-id",
                    "current-schema-id",
                    "last-assigned-partition-id",
                    "default-spec-id",
                    "default-sort-order-id",
                )
                for value in (0, 2, 999)
            ),
        ]
    ),
    max_size=1,
)


@given(_UPDATES, _REQUIREMENTS)
@settings(deadline=None)
def test_pyiceberg_makes_the_same_of_a_request(updates: Any, requirements: Any) -> None:
    found = metadata()
    ours = _essence(_ours(found, updates, requirements))
    assert ours == _essence(_theirs(metadata(), updates, requirements))


@pytest.mark.parametrize(
    "updates",
    [
        [_one("remove-properties", removals=["nobody"])],
        [_one("remove-snapshots", snapshot_ids=[99])],
        [_add_snapshot(1), main_at(3), _one("remove-snapshots", snapshot_ids=[2])],
        [
            _add_snapshot(1),
            main_at(3),
            _one("add-snapshot", snapshot=snapshot(4, 4, 3)),
            main_at(4),
        ],
        [_one("add-schema", schema=schema("id", "data"))],
        [_one("upgrade-format-version", format_version=3)],
    ],
    ids=["absent key", "absent snapshot", "history", "intermediate", "same schema", "third format"],
)
def test_where_pyiceberg_is_known_to_differ(updates: Any) -> None:
    ours = _essence(_ours(metadata(), updates, []))
    assert ours is not None
    assert ours != _essence(_theirs(metadata(), updates, []))


@pytest.fixture(scope="module")
def catalog(world: World) -> Any:
    from pyiceberg.catalog import load_catalog

    return load_catalog("ours", type="rest", uri=world.uri)


_ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", "c"]})


def test_a_table_lives_a_whole_life(catalog: Any) -> None:
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import IntegerType

    catalog.create_namespace("life", {"x": "1"})
    catalog.update_namespace_properties("life", removals={"x"}, updates={"y": "2"})
    assert catalog.load_namespace_properties("life") == {"y": "2"}
    table = catalog.create_table("life.t", _ROWS.schema)
    table.append(_ROWS)
    table.overwrite(_ROWS)
    table.delete("id = 2")
    with table.update_schema() as update:
        update.add_column("more", IntegerType())
    with table.update_spec() as spec:
        spec.add_field("id", IdentityTransform(), "id_part")
    with table.update_sort_order() as order:
        order.asc("id", IdentityTransform())
    with table.transaction() as transaction:
        transaction.set_properties(a="b")
        transaction.append(_ROWS.append_column("more", pa.array([1, 2, 3], pa.int32())))
    current = table.current_snapshot().snapshot_id
    table.manage_snapshots().create_branch(current, "dev").create_tag(current, "v1").commit()
    table.manage_snapshots().remove_tag("v1").commit()
    old = [one.snapshot_id for one in table.snapshots()][:2]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    assert catalog.load_table("life.t").scan().to_arrow().num_rows == 5
    with catalog.create_table_transaction("life.staged", _ROWS.schema) as staged:
        staged.append(_ROWS)
    catalog.rename_table("life.staged", "life.moved")
    assert sorted(catalog.list_tables("life")) == [("life", "moved"), ("life", "t")]
    location = catalog.load_table("life.moved").metadata_location
    catalog.drop_table("life.moved")
    again = catalog.register_table("life.back", location)
    again.append(_ROWS)
    assert again.scan().to_arrow().num_rows == 6


def test_the_first_format_can_be_written_and_left(catalog: Any) -> None:
    catalog.create_namespace("formats")
    table = catalog.create_table("formats.t", _ROWS.schema, properties={"format-version": "1"})
    table.append(_ROWS)
    table.append(_ROWS)
    with table.transaction() as transaction:
        transaction.upgrade_table_version(2)
    table.append(_ROWS)
    assert (table.format_version, table.scan().to_arrow().num_rows) == (2, 9)


def test_refusals_are_the_errors_that_pyiceberg_knows(catalog: Any) -> None:
    from pyiceberg import exceptions

    catalog.create_namespace("wrong")
    catalog.create_table("wrong.t", _ROWS.schema).append(_ROWS)
    with pytest.raises(exceptions.NamespaceNotEmptyError):
        catalog.drop_namespace("wrong")
    with pytest.raises(exceptions.NamespaceAlreadyExistsError):
        catalog.create_namespace("wrong")
    with pytest.raises(exceptions.TableAlreadyExistsError):
        catalog.create_table("wrong.t", _ROWS.schema)
    with pytest.raises(exceptions.NoSuchNamespaceError):
        catalog.create_table("nowhere.t", _ROWS.schema)
    with pytest.raises(exceptions.NoSuchTableError):
        catalog.load_table("wrong.other")
    stale = catalog.load_table("wrong.t")
    catalog.load_table("wrong.t").append(_ROWS)
    stale.properties["commit.retry.num-retries"] = "0"
    with pytest.raises(exceptions.CommitFailedException):
        stale.overwrite(_ROWS)
