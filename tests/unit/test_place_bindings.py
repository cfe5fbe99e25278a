"""Is a recorded place found where it is now, and recorded as before, whatever is bound?"""

from __future__ import annotations

import pytest

from commitlog.adapters.lance_namespace import object_path
from commitlog.adapters.places import (
    bound,
    heed,
    is_moved,
    parse_places,
    places_setting,
    places_text,
    recorded,
    stays,
    use_named,
    use_places,
)
from commitlog.adapters.storage import local_path
from commitlog.adapters.storage_options import storage_options, use_storage_options
from commitlog.client.commits.catalogue import raise_for_table
from commitlog.errors import InvalidSettings, TableAlreadyExists
from commitlog.model.reasons import Phrase, bounded
from commitlog.model.records import Code, Outcome, Status
from commitlog.words import worded

pytestmark = pytest.mark.usefixtures("no_places")


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
    ["/old", "/old=", "Old=/new", "old=new", "/old=/", "/old=/../new", "/old=/old/new",
     "/a=/b,/c=/b", "/a=/b,/b=/c", "/a=/b,/c=/b/d", "lake=/b,tables=/b/c"],
)  # fmt: skip
def test_what_could_be_read_in_two_ways_is_refused(text: str) -> None:
    with pytest.raises(InvalidSettings, match="places"):
        parse_places(text)


def test_a_leader_says_where_its_tables_are_and_ones_own_setting_wins() -> None:
    heed("/old/tables", {"/old": "/new"}, {})
    assert bound("/old/tables/t") == "/new/tables/t"
    heed("/old/tables", {"/old": "/new"}, {})
    with pytest.raises(InvalidSettings, match="a process for each"):
        heed("/old/tables", {}, {})
    heed("/other/tables", {}, {})
    assert places_text() == "/old=/new"
    use_places("/old=/mine")
    heed("/old/tables", {"/old": "/new"}, {})
    assert bound("/old/tables/t") == "/mine/tables/t"


def test_storage_options_are_those_of_where_it_is_now() -> None:
    use_places("/old=s3://lake/new")
    use_storage_options("s3://lake/new", {"region": "here"})
    assert storage_options("/old/t") == storage_options("s3://lake/new/t") == {"region": "here"}


def test_a_named_root_says_where_what_the_log_binds_to_it_is() -> None:
    use_places("lake=s3://lake", tables="/srv/tables")
    assert use_named({"/old": "lake", "/gone": "other"}) == ["/gone"]
    assert bound("/old/t") == "s3://lake/t"
    assert recorded("s3://lake/t") == "/old/t"
    assert bound("/gone/t") == "/gone/t"
    assert use_named({"/old": "tables"}) == ["/old"], "nobody saw that it holds them"
    assert use_named({"/old": "tables"}, has_tables=True) == []
    assert bound("/old/t") == "/srv/tables/t"
    # What the deployment binds itself wins, also if that is where it was recorded.
    use_places("/old=/old,lake=s3://lake")
    assert use_named({"/old": "lake"}) == []
    assert (bound("/old/t"), is_moved("/old/t")) == ("/old/t", False)


def test_parts_hear_where_the_tables_root_is() -> None:
    for tables, setting in (("/here/tables", "tables=/here/tables"), ("/a,b/tables", "")):
        use_places("/old=/new", tables=tables)
        assert places_setting() == ",".join(filter(None, ["/old=/new", setting]))
        use_places(places_setting())


def test_a_leader_knows_whether_files_stay_where_they_are() -> None:
    use_places("/old=/new,lake=/new,other=/x")
    assert stays("/old", "lake")
    assert not stays("/old", "other")
    assert not stays("/old", "unknown")
    assert stays("/old", ""), "it is bound without the log's saying so, too"
    use_places("lake=/new")
    use_named({"/old": "lake"})
    assert stays("/old", "lake")
    assert not stays("/old", "")


def test_a_client_that_knows_a_root_has_it_where_it_is_here() -> None:
    use_places("lake=/mnt/lake")
    heed("/old/tables", {"/old": "/srv/lake", "/x": "/y"}, {"/old": "lake"})
    assert bound("/old/t") == "/mnt/lake/t"
    assert bound("/x/t") == "/y/t"


def test_a_table_that_stands_is_named_where_it_is_now() -> None:
    use_places("/old=/new")
    phrase = Phrase("table_exists_at", {"table": "t", "location": "/old/t.lance"})
    refused = Outcome(1, "id", 1, Status.REJECTED, code=Code.TABLE_EXISTS, reason=bounded(phrase))
    with pytest.raises(TableAlreadyExists, match="t already exists at /new/t.lance; open it"):
        raise_for_table(worded(refused))
