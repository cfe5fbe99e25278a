"""Is a recorded place found where it is now, and recorded as before, whatever is bound?"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from commitlog.adapters import places
from commitlog.adapters.lance_namespace import object_path
from commitlog.adapters.places import bound, heed, parse_places, places_text, recorded, use_places
from commitlog.adapters.storage import local_path
from commitlog.adapters.storage_options import storage_options, use_storage_options
from commitlog.errors import InvalidSettings


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(places.VARIABLE, "")
    monkeypatch.setattr(places, "_known", places._Known())
    yield
    use_places("")


@pytest.mark.parametrize(
    ("place", "there"),
    [
        ("/old/t.lance", "/new/t.lance"),
        ("/old", "/new"),
        ("/older/t.lance", "/older/t.lance"),
        ("file:///old/a b.lance", "/new/a b.lance"),
        ("s3://old/x/t", "/mnt/x/t"),
        ("/old/deep/t", "s3://lake/deep/t"),
        ("/new/t.lance", "/new/t.lance"),
        ("", ""),
    ],
)
def test_a_place_is_bound_once_by_its_longest_prefix(place: str, there: str) -> None:
    use_places("/old=/new, s3://old/x=/mnt/x, /old/deep/=s3://lake/deep")
    assert bound(place) == bound(bound(place)) == there
    if place.startswith("/old/t"):
        assert recorded(there) == place
        assert str(local_path(place)) == there
        assert object_path(place, "_versions/1.manifest") == "new/t.lance/_versions/1.manifest"


@pytest.mark.parametrize(
    "text",
    ["/old", "/old=", "old=/new", "/old=/", "/old=/../new", "/old=/old/new", "/a=/b,/c=/b",
     "/a=/b,/b=/c", "/a=/b,/c=/b/d"],
)  # fmt: skip
def test_what_could_be_read_in_two_ways_is_refused(text: str) -> None:
    with pytest.raises(InvalidSettings, match="places"):
        parse_places(text)


def test_a_leader_says_where_its_tables_are_and_ones_own_setting_wins() -> None:
    heed("/old/tables", {"/old": "/new"})
    assert bound("/old/tables/t") == "/new/tables/t"
    heed("/old/tables", {"/old": "/new"})
    with pytest.raises(InvalidSettings, match="a process for each"):
        heed("/old/tables", {})
    heed("/other/tables", {})
    assert places_text() == "/old=/new"
    use_places("/old=/mine")
    heed("/old/tables", {"/old": "/new"})
    assert bound("/old/tables/t") == "/mine/tables/t"


def test_storage_options_are_those_of_where_it_is_now() -> None:
    use_places("/old=s3://lake/new")
    use_storage_options("s3://lake/new", {"region": "here"})
    assert storage_options("/old/t") == storage_options("s3://lake/new/t") == {"region": "here"}
