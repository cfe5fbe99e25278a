"""Is a decision the same in each release of Python, and on each stack?

How deep the interpreter's own parser goes depends on both, so a limit stands here for them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator

import pytest

from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.naming import next_metadata_location
from commitlog.core.iceberg.reading import Node, load_json
from commitlog.core.iceberg.schemas import primitive
from commitlog.core.iceberg.transforms import read_transform
from commitlog.core.lance.operation_check import operation_problem
from commitlog.core.lance.staged_keys import BASE_VERSION, base_version
from commitlog.core.schema_check.schema import schema_problem
from commitlog.lancepb.file_pb2 import Field
from commitlog.model.json_depth import LEVELS_MAX, is_too_deep
from commitlog.model.operations import IcebergChange

LIMITS = (LEVELS_MAX + 300, 100_000)
DEEP = 5_000


@pytest.fixture(params=LIMITS)
def limit(request: pytest.FixtureRequest) -> Iterator[int]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(request.param)
    yield request.param
    sys.setrecursionlimit(before)


def nested(levels: int, inside: str = "") -> str:
    return "[" * levels + inside + "]" * levels


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (nested(DEEP), "iceberg_nested_too_deep"),
        ("[" * DEEP, "iceberg_nested_too_deep"),
        (nested(DEEP, "NaN"), "iceberg_nested_too_deep"),
        ('{"a":' * DEEP, "iceberg_nested_too_deep"),
        ("[x" + "[" * DEEP, "iceberg_not_json"),
        ('["' + "[" * DEEP, "iceberg_not_json"),
        ('["\\"' + "[" * DEEP + '", ', "iceberg_not_json"),
        ("[" + "[]," * DEEP, "iceberg_not_json"),
    ],
)
def test_what_is_no_json_and_what_is_nested(limit: int, text: str, why: str) -> None:
    with pytest.raises(Invalid) as refused:
        load_json(text, "body")
    assert refused.value.phrase.name == why


def test_a_tensor_that_is_described_deeply(limit: int) -> None:
    field = Field(name="v", id=0, parent_id=-1, logical_type="fixed_size_list:float:2")
    field.metadata["ARROW:extension:name"] = b"arrow.fixed_shape_tensor"
    for levels, problem in ((LEVELS_MAX - 1, None), (DEEP, "extension_undescribed")):
        said = f'{{"shape": [2], "more": {nested(levels)}}}'
        field.metadata["ARROW:extension:metadata"] = said.encode()
        found = schema_problem([field])
        assert (found.problem.name if found else None) == problem


def test_a_name_with_a_nul_in_a_deep_update(limit: int) -> None:
    update = json.dumps([{"action": "set-properties", "updates": {"a\0b": "x"}}])
    for levels, is_named in ((LEVELS_MAX - 10, True), (DEEP, False)):
        text = f"{update[:-1]}, {nested(levels)}]"
        problem = operation_problem(IcebergChange(("i",), "[]", text), None)
        assert (problem is not None) == is_named


@pytest.mark.parametrize("make", [nested, lambda levels: '{"a":' * levels, lambda n: "[" * n])
def test_levels_are_counted(make: Callable[[int], str]) -> None:
    assert not is_too_deep(make(LEVELS_MAX))
    assert is_too_deep(make(LEVELS_MAX + 1))
    assert not is_too_deep(json.dumps(make(LEVELS_MAX + 1)))
    assert not is_too_deep(",".join([nested(LEVELS_MAX)] * 10))


@pytest.mark.parametrize("digits", ["\u0663", "\U00011f53", "\uff13"])
def test_only_ascii_has_digits(digits: str) -> None:
    """Which other characters are digits depends on the release's tables."""
    assert primitive("decimal(3, 2)") == "decimal(3, 2)"
    assert primitive(f"decimal({digits}, 2)") is None
    assert primitive(f"fixed[{digits}]") is None
    node = Node(f"bucket[{digits}]", "transform")
    with pytest.raises(Invalid, match="transform"):
        read_transform(node)
    following = next_metadata_location("/t", {}, f"/t/metadata/{digits}-x.metadata.json", "u")
    assert following == "/t/metadata/00000-u.metadata.json"
    assert base_version(((BASE_VERSION, digits),), 7) == 7
