"""Do names of tables and namespaces, and the errors about them, come out as the protocol has it?"""

import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import lance
import lance_namespace
import pytest
from lance_namespace import CreateNamespaceRequest, ListNamespacesRequest, ListTablesRequest

from consumers.servers import name_pages
from tests.namespace_world import World, numbers


def code(answer: tuple[int, Any]) -> tuple[int, int]:
    status, body = answer
    assert set(body) >= {"error", "code", "instance"}, body
    return status, body["code"]


def test_namespaces_are_made_listed_and_dropped(world: World) -> None:
    made = world.post("/v1/namespace/a/create", {"properties": {"owner": "me"}})
    assert made[0] == 200
    assert made[1]["properties"] == {"owner": "me"}
    assert code(world.post("/v1/namespace/a/create")) == (409, 2)
    again = world.post("/v1/namespace/a/create", {"mode": "ExistOk"})
    assert again[0] == 200
    assert again[1]["properties"] == {"owner": "me"}, "the one that exists is kept"
    assert code(world.send("POST", "/v1/namespace/a$b$c/create")) == (404, 1), "no parent"
    for name in ("a$b", "a$b$c"):
        assert world.post(f"/v1/namespace/{name}/create")[0] == 200
    assert world.send("GET", "/v1/namespace/a/list")[1] == {"namespaces": ["b"]}
    assert "a" in world.send("GET", "/v1/namespace/$/list")[1]["namespaces"]
    described = world.post("/v1/namespace/a/describe")
    assert described == (200, {"properties": {"owner": "me"}})
    assert world.post("/v1/namespace/a$b/exists")[0] == 200
    assert code(world.post("/v1/namespace/a/drop")) == (409, 3)
    assert world.post("/v1/namespace/a/drop", {"behavior": "Cascade"})[0] == 200
    assert code(world.post("/v1/namespace/a/exists")) == (404, 1)
    assert code(world.post("/v1/namespace/a/drop")) == (404, 1)
    assert world.post("/v1/namespace/a/drop", {"mode": "skip"})[0] == 200
    replaced = world.post("/v1/namespace/a/create", {"mode": "overwrite"})
    assert replaced[1]["properties"] == {}


def test_a_table_is_declared_described_and_dropped(world: World) -> None:
    status, made = world.post("/v1/table/d$t/declare", {"properties": {"k": "v"}})
    assert status == 200
    assert made["managed_versioning"] is True
    assert made["storage_options"] == {}
    assert made["transaction_id"]
    assert code(world.post("/v1/table/d$t/declare")) == (409, 5)
    status, found = world.post("/v1/table/d$t/describe", {"check_declared": True})
    assert found["location"] == made["location"]
    assert found["properties"] == {"k": "v"}
    assert found["is_only_declared"] is True
    assert (found["namespace"], found["table"]) == (["d"], "t")
    assert world.post("/v1/table/d$t/exists")[0] == 200
    assert code(world.post("/v1/table/d$t/exists", {"version": 1})) == (404, 11)
    listed = world.send("GET", "/v1/namespace/d/table/list")
    assert listed[1] == {"tables": ["t"]}
    hidden = world.send("GET", "/v1/namespace/d/table/list?include_declared=false")
    assert hidden[1] == {"tables": []}
    status, ended = world.post("/v1/table/d$t/drop")
    assert ended["id"] == ["d", "t"]
    assert ended["properties"] == {"k": "v"}
    assert code(world.post("/v1/table/d$t/drop")) == (404, 4)


def test_a_deregistered_table_comes_back_with_all_its_versions(world: World) -> None:
    dataset = world.write(["e", "t"], numbers(0, 5))
    dataset.insert(numbers(5, 9))
    status, ended = world.post("/v1/table/e$t/deregister")
    assert status == 200
    assert Path(ended["location"]).is_dir()
    assert code(world.post("/v1/table/e$t/describe")) == (404, 4)
    status, back = world.post("/v1/table/e$again/register", {"location": ended["location"]})
    assert status == 200, back
    again = world.open(["e", "again"])
    assert (again.version, again.count_rows()) == (2, 9)
    again.insert(numbers(9, 10))
    assert world.open(["e", "again"]).count_rows() == 10
    assert world.open(["e", "again"], 1).count_rows() == 5


def test_a_table_whose_newest_manifests_were_removed_does_not_come_back(world: World) -> None:
    dataset = world.write(["e", "lost"], numbers(0, 5))
    dataset.insert(numbers(5, 9))
    dataset.insert(numbers(9, 12))
    place = {"location": world.location(["e", "lost"])}
    kept = world.root / "kept"
    kept.mkdir()
    assert world.post("/v1/table/e$lost/deregister")[0] == 200
    newest = sorted(Path(place["location"], "_versions").glob("*.manifest"))[0]
    newest.rename(kept / newest.name)
    for name in ("lost", "other"):
        status, said = world.post(f"/v1/table/e${name}/register", place)
        assert (status, said["code"]) == (400, 13), said
        assert "at version 2: the log committed its versions up to 3" in said["error"]
    (kept / newest.name).rename(newest)
    assert world.post("/v1/table/e$lost/register", place)[0] == 200
    newest.rename(kept / newest.name)
    overwrite = {**place, "mode": "overwrite"}
    status, said = world.post("/v1/table/e$lost/register", overwrite)
    assert (status, "version 3 or a newer one" in said["error"]) == (400, True), said
    world.open(["e", "lost"]).insert(numbers(12, 13))
    assert world.open(["e", "lost"]).count_rows() == 13


def test_a_place_that_no_path_reaches_is_refused_at_once(world: World) -> None:
    begun = time.process_time()
    status, said = world.post("/v1/table/e$far/register", {"location": "x" * 6000})
    assert (status, said["code"]) == (400, 13), said
    assert "File name too long" in said["error"]
    assert time.process_time() - begun < 2  # pylance itself takes longer, a minute for 20 KB


def test_a_table_gets_another_name(world: World) -> None:
    world.write(["f", "t"], numbers(0, 5))
    request = {"new_table_name": "u", "new_namespace_id": ["g"]}
    assert world.post("/v1/table/f$t/rename", request)[0] == 200
    assert world.open(["g", "u"]).count_rows() == 5
    assert code(world.post("/v1/table/f$t/describe")) == (404, 4)
    world.open(["g", "u"]).insert(numbers(5, 6))
    assert world.open(["g", "u"]).version == 2


@pytest.mark.parametrize("namespace", [{}, {"new_namespace_id": []}])
def test_a_table_stays_in_its_namespace(world: World, namespace: dict[str, list[str]]) -> None:
    name = world.fresh_name()
    world.write([name, "t"], numbers(0, 5))
    request = {"new_table_name": "u", **namespace}
    assert world.post(f"/v1/table/{name}$t/rename", request)[0] == 200
    assert world.open([name, "u"]).count_rows() == 5


@pytest.mark.parametrize("location", ["/etc/t.lance", "../t.lance", "{root}", "{root}/../t.lance"])
def test_locations_are_confined(world: World, location: str) -> None:
    given = {"location": location.format(root=world.tables_root)}
    assert code(world.post("/v1/table/h$t/declare", given)) == (400, 13)
    assert code(world.post("/v1/table/h$t/register", given)) == (400, 13)


def test_a_link_does_not_lead_out(world: World, tmp_path: Path) -> None:
    world.tables_root.mkdir(exist_ok=True)
    (world.tables_root / "way_out").symlink_to(tmp_path)
    given = {"location": f"{world.tables_root}/way_out/t.lance"}
    assert code(world.post("/v1/table/h$t/declare", given)) == (400, 13)


def test_one_location_holds_one_table(world: World) -> None:
    location = f"{world.tables_root}/one.lance"
    assert world.post("/v1/table/i$a/declare", {"location": location})[0] == 200
    assert code(world.post("/v1/table/i$b/declare", {"location": location})) == (409, 5)
    inside = {"location": f"{location}/data"}
    assert code(world.post("/v1/table/i$b/declare", inside)) == (409, 5)


def test_lists_come_in_pages(world: World) -> None:
    for name in "cab":
        world.post(f"/v1/table/j${name}/declare")
    first = world.send("GET", "/v1/namespace/j/table/list?limit=2")[1]
    assert first["tables"] == ["a", "b"]
    token = first["page_token"]
    rest = world.send("GET", f"/v1/namespace/j/table/list?limit=2&page_token={token}")
    assert rest[1] == {"tables": ["c"]}
    assert code(world.send("GET", "/v1/namespace/j/table/list?limit=0")) == (400, 13)
    for wrong in ("x", "%D9%A3", "1_0", "9" * 5000):
        refused = world.send("GET", f"/v1/namespace/j/table/list?limit={wrong}")
        assert code(refused) == (400, 13)
    for lists in ("/v1/namespace/j/table/list", "/v1/namespace/j/list"):
        many = world.send("GET", f"{lists}?limit={2**80}")
        assert many[0] == 200
        assert many[1] == world.send("GET", lists)[1]
    everything = world.send("GET", "/v1/table?delimiter=.")[1]["tables"]
    assert {"j.a", "j.b", "j.c"} <= set(everything)


def test_a_page_of_tables_costs_the_leader_what_is_on_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LanceDB asks for ten at a time: with 10,000 tables, a thousand times."""
    monkeypatch.setattr(name_pages, "ASKED_LEAST", 2)
    runtime, told = world.log.runtime(), list[list[Any]]()
    ask = runtime.request

    def noted(partition: int, method: str, **params: Any) -> Any:
        found = ask(partition, method, **params)
        if method == "tables":
            told.append(found)
        return found

    for number in range(12):
        if number in (3, 4, 5, 6):
            assert world.post(f"/v1/table/pages$t{number:02}/declare")[0] == 200
        else:
            world.log.create_table(f"pages$t{number:02}", numbers(0, 1).schema)
    world.log.create_table("pages$within$deep", numbers(0, 1).schema)
    monkeypatch.setattr(runtime, "request", noted)
    pages, after = list[list[str]](), ""
    while True:
        query = f"limit=3&include_declared=false&page_token={after}"
        body = world.send("GET", f"/v1/namespace/pages/table/list?{query}")[1]
        pages.append([name[1:] for name in body["tables"]])
        if not (after := body.get("page_token", "")):
            break
    assert pages == [["00", "01", "02"], ["07", "08", "09"], ["10", "11"]]
    asked = [len(one) for one in told]
    assert asked == [4, 8, 4, 5, 2], "twice as many where it met tables that it doesn't show"


def test_a_namespace_costs_the_leader_itself_whatever_is_in_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside 20,000 others, making one took a hundred times as long as the first one did."""
    monkeypatch.setattr(name_pages, "ASKED_LEAST", 2)
    runtime, told = world.log.runtime(), list[int]()
    ask = runtime.request

    def noted(partition: int, method: str, **params: Any) -> Any:
        found = ask(partition, method, **params)
        told.extend([len(found)] if method == "namespaces" else [])
        return found

    for name in ("wide", *(f"wide$n{number:02}" for number in range(12)), "wide$n00$deep"):
        assert world.post(f"/v1/namespace/{name}/create")[0] == 200
    monkeypatch.setattr(runtime, "request", noted)
    for answer in (
        world.post("/v1/namespace/wide$one/create"),
        world.post("/v1/namespace/wide/describe"),
        world.send("GET", "/v1/namespaces/wide"),
        world.post("/v1/namespaces", {"namespace": ["wide", "two"]}),
    ):
        assert answer[0] == 200, answer
    assert told
    assert max(told) == 1
    told.clear()
    pages, after = list[list[str]](), ""
    while True:
        body = world.send("GET", f"/v1/namespace/wide/list?limit=6&page_token={after}")[1]
        pages.append(body["namespaces"])
        if not (after := body.get("page_token", "")):
            break
    assert [name for page in pages for name in page] == [
        *(f"n{number:02}" for number in range(12)),
        "one",
        "two",
    ]
    assert [len(page) for page in pages] == [6, 6, 2]
    assert max(told) == 7
    told.clear()
    assert world.log.tags() == {}
    assert told == [0], "the root alone is asked about, and has no properties yet"


def test_a_list_costs_the_leader_what_is_in_the_namespace(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a namespace beside it, nothing goes over the socket; of a table, its name and head."""
    for name in ("lists$in$a", "lists$b", "listsbeside$c"):
        world.post(f"/v1/namespace/{name.rpartition('$')[0]}/create", {"mode": "exist_ok"})
        assert world.post(f"/v1/table/{name}/declare")[0] == 200
    runtime, told = world.log.runtime(), dict[str, list[Any]]()
    ask = runtime.request

    def noted(partition: int, method: str, **params: Any) -> Any:
        told[method] = ask(partition, method, **params)
        return told[method]

    monkeypatch.setattr(runtime, "request", noted)
    assert world.send("GET", "/v1/namespace/lists/table/list")[1] == {"tables": ["b"]}
    assert [one["table"] for one in told["tables"]] == [["lists", "b"], ["lists", "in", "a"]]
    assert {len(one) for one in told["tables"]} == {3}
    assert [one["namespace"] for one in told["namespaces"]] == [["lists"]]
    assert world.send("GET", "/v1/namespaces/lists/tables")[1]["identifiers"] == []
    assert told["iceberg_tables"] == []


@pytest.mark.parametrize("body", [b"", b"null", b"{}", b'{"a_field_of_tomorrow": 1}'])
def test_bodies_may_be_absent_null_or_newer(world: World, body: bytes) -> None:
    world.post("/v1/table/k$t/declare")
    assert world.post("/v1/table/k$t/describe", body)[0] == 200


@pytest.mark.parametrize("path", ["k2$t", "k2%24t", "k2.t?delimiter=.", "k2::t?delimiter=::"])
def test_an_id_has_any_delimiter(world: World, path: str) -> None:
    world.post("/v1/table/k2$t/declare")
    name, _, query = path.partition("?")
    assert world.post(f"/v1/table/{name}/describe?{query}")[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("GET", "/v1/table/t/describe", b"", (405, 13)),
        ("POST", "/v1/log/feed", b"", (405, 13)),
        ("DELETE", "/v1/namespace/a/list", b"", (405, 13)),
        ("POST", "/v1/table/t/no_such_operation", b"", (404, 0)),
        ("POST", "/v1/transaction/t", b"", (404, 0)),
        ("POST", "/v1/table/nobody/describe", b"{", (400, 13)),
        ("POST", "/v1/table/nobody/describe", b"[1]", (400, 13)),
        ("POST", "/v1/table/nobody/describe", b'{"version": "x"}', (400, 13)),
        ("POST", "/v1/table/nobody/describe", b'{"branch": "x"}', (404, 4)),
        ("POST", "/v1/table/$/describe", b"", (400, 13)),
        ("POST", "/v1/table/a$..$b/describe", b"", (400, 13)),
        ("POST", "/v1/table/nobody/describe", b'{"id": ["other"]}', (400, 13)),
        ("POST", "/v1/table/nobody/delete", b'{"predicate": "a", "predicate": "b"}', (400, 13)),
        ("POST", "/v1/namespace/$/drop", b"", (400, 13)),
        ("POST", "/v1/namespace/x/create", b'{"mode": "maybe"}', (400, 13)),
        ("POST", "/v1/table/nobody/branches/create", b"", (400, 13)),
        ("POST", "/v1/table/nobody/version/delete", b"", (400, 13)),
        ("POST", "/v1/materialized_view/v/create", b"", (406, 0)),
    ],
)
def test_every_mistake_is_answered_in_one_shape(
    world: World, method: str, path: str, body: bytes, expected: tuple[int, int]
) -> None:
    assert code(world.send(method, path, body)) == expected


def test_the_context_is_kept_with_the_transaction(world: World) -> None:
    headers = {"x-lance-ctx-trace": "from the header"}
    request = {"context": {"trace": "from the body", "team": "red"}, "identity": {"api_key": "x"}}
    made = world.post("/v1/table/l$t/declare", request, headers=headers)[1]
    status, found = world.post(f"/v1/transaction/{made['transaction_id']}/describe")
    assert status == 200
    assert found["status"] == "Succeeded"
    assert found["properties"]["context.trace"] == "from the header"
    assert found["properties"]["context.team"] == "red"
    assert "api_key" not in str(found)


def test_a_decided_transaction_keeps_its_status_and_takes_properties(world: World) -> None:
    made = world.post("/v1/table/m$t/declare")[1]
    path = f"/v1/transaction/{made['transaction_id']}"
    status = {"actions": [{"setStatusAction": {"status": "Canceled"}}]}
    assert code(world.post(f"{path}/alter", status)) == (409, 14)
    value = {"actions": [{"setPropertyAction": {"key": "a", "value": "b"}}]}
    answered, altered = world.post(f"{path}/alter", value)
    assert (answered, altered["status"]) == (200, "Succeeded")
    described = world.post(f"{path}/describe")[1]["properties"]
    assert described == altered["properties"]
    key, text = "a", "b"
    assert described[key] == text
    assert world.post("/v1/table/m$t/describe")[1]["properties"] == {}, "they aren't the table's"
    again: dict[str, Any] = {"setPropertyAction": {"key": key, "value": "other", "mode": "Skip"}}
    assert world.post(f"{path}/alter", {"actions": [again]})[1]["properties"][key] == text
    again["setPropertyAction"]["mode"] = "Fail"
    assert code(world.post(f"{path}/alter", {"actions": [again]})) == (409, 14)
    unset: dict[str, Any] = {"actions": [{"unsetPropertyAction": {"key": key}}]}
    assert key not in world.post(f"{path}/alter", unset)[1]["properties"]
    assert key not in world.post(f"{path}/describe")[1]["properties"]
    unset["actions"][0]["unsetPropertyAction"]["mode"] = "fail"
    assert code(world.post(f"{path}/alter", unset)) == (409, 14)
    ours = {"setPropertyAction": {"key": "commitlog.sequence", "value": "1"}}
    assert code(world.post(f"{path}/alter", {"actions": [ours]})) == (400, 13)
    assert code(world.post(f"{path}/alter", {"actions": []})) == (400, 13)
    assert code(world.post("/v1/transaction/nobody/describe")) == (404, 10)
    refused = world.post("/v1/table/m$t/declare")[1]["error"].split()[1].rstrip(":")
    found = world.post(f"/v1/transaction/{refused}/describe")[1]
    assert found["status"] == "Failed"
    assert found["properties"]["commitlog.code"] == "TABLE_EXISTS"


def test_what_is_said_of_a_transaction_stays_with_its_first_table(world: World) -> None:
    space = world.fresh_name()
    both = [{"declare_table": {"id": [space, name]}} for name in ("first", "second")]
    made = world.post("/v1/table/batch-commit", {"operations": both})[1]
    path = f"/v1/transaction/{made['transaction_id']}"
    value = {"actions": [{"setPropertyAction": {"key": "a", "value": "b"}}]}
    assert world.post(f"{path}/alter", value)[0] == 200
    world.post(f"/v1/table/{space}$first/rename", {"new_table_name": "third"})
    assert world.post(f"{path}/describe")[1]["properties"]["a"] == "b"
    for name in ("third", "second"):
        world.post(f"/v1/table/{space}${name}/drop")
        assert "a" not in world.post(f"{path}/describe")[1]["properties"]


@pytest.mark.parametrize("name", ["a b", "a+b", "a%2Bb"])
def test_names_are_what_clients_mean(world: World, name: str) -> None:
    """Lance's Rust client and Iceberg's Java client write a space as `+`, and `+` as `%2B`.

    Go and Iceberg's Rust client leave `+` as it is.
    """
    world.namespace.create_namespace(CreateNamespaceRequest(id=[name]))
    world.write([name, f"t {name}"], numbers(0, 3))
    assert world.open([name, f"t {name}"]).count_rows() == 3
    listed = world.namespace.list_tables(ListTablesRequest(id=[name])).tables
    assert listed == [f"t {name}"]
    written = quote_plus(name)
    status, said = world.send("GET", f"/v1/namespaces/{written}")
    assert (status, said["namespace"]) == (200, [name])
    assert world.send("GET", f"/v1/namespaces/{quote(name)}") == (status, said)
    assert world.send("HEAD", f"/v1/namespaces/{written}/tables/x")[0] == 404
    for agent in ("GoIceberg/0.7.0", "Go-http-client/1.1", "iceberg-rs/0.10.1"):
        plain = f"/v1/namespaces/{quote(name, safe='+')}"
        assert world.send("GET", plain, headers={"User-Agent": agent}) == (status, said)


def test_a_slash_may_join_the_parts_of_a_name(world: World) -> None:
    namespace, rows = world.fresh_name(), numbers(0, 3)
    # The slash at the end of an address makes paths begin with two.
    client = lance_namespace.connect("rest", {"uri": f"{world.uri}/", "delimiter": "/"})
    client.create_namespace(CreateNamespaceRequest(id=[namespace]))
    for name in ("t", "version", "a+b"):
        table = [namespace, name]
        lance.write_dataset(rows, namespace_client=client, table_id=table, mode="create")
        assert world.open(table).count_rows() == 3
    listed = client.list_tables(ListTablesRequest(id=[namespace])).tables
    assert {*listed} == {"t", "version", "a+b"}
    assert namespace in client.list_namespaces(ListNamespacesRequest(id=[])).namespaces
    place = f"/v1/table/{namespace}%2fversion/describe"
    assert world.post(f"{place}?delimiter=/")[1]["table"] == "version"
    assert code(world.post(place)) == (400, 13), "by default a part has no slash"
    assert code(world.post(f"/v1/table/{namespace}%252Fversion/describe")) == (404, 4)


@pytest.mark.filterwarnings("ignore:::pyiceberg.*", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["x y", "x+y", "\u00fc%"])
def test_pyiceberg_lists_what_is_in_a_namespace_of_any_name(world: World, name: str) -> None:
    catalog = pytest.importorskip("pyiceberg.catalog").load_catalog(
        "odd", type="rest", uri=world.uri
    )
    for namespace in ((name,), (name, "in side"), (name, "in side", name)):
        catalog.create_namespace(namespace)
    assert catalog.list_namespaces((name,)) == [(name, "in side")]
    assert catalog.list_namespaces((name, "in side")) == [(name, "in side", name)]
    missing = f"/v1/namespaces?parent={quote(quote(name) + 'z')}"
    assert world.send("GET", missing)[0] == 404
