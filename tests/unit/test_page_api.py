"""The page's data: what it says, in which pieces, and what it answers to bad input."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest
from starlette.routing import Route

from commitlog.core.log.replica import Decided
from commitlog.model.operations import target
from commitlog.model.records import Status, Transaction
from commitlog.model.table import format_table_id
from consumers.servers.page import routes as page_api
from consumers.servers.page import snapshots
from consumers.servers.page.routes import page_routes
from consumers.servers.page.snapshots import Snapshots
from consumers.views.version_index.layout import Layout
from tests.page_server import serving_routes
from tests.page_world import busy_log, extend_index

TRANSACTIONS = 1_500
KEPT_BACK = 100
NAME = ("nyc", "flights")
TABLE = format_table_id(NAME)


class Page:
    """The served page of one index, and what was decided in it."""

    def __init__(self, root: Path, uri: str, decided: Sequence[Decided]) -> None:
        self.root = root
        self.uri = uri
        self.decided = decided

    def ask(self, path: str, headers: dict[str, str] | None = None, **given: Any) -> Any:
        """Return (status, headers, body) of a request."""
        query = f"?{urllib.parse.urlencode(given, doseq=True)}" if given else ""
        connection = http.client.HTTPConnection(self.uri.removeprefix("http://"), timeout=120)
        try:
            connection.request("GET", path + query, headers=headers or {})
            response = connection.getresponse()
            body = response.read()
            is_json = "json" in response.headers.get("Content-Type", "")
            return response.status, response.headers, json.loads(body) if is_json else body
        finally:
            connection.close()

    def get(self, name: str, **given: Any) -> Any:
        """Return the content of an answer."""
        status, _, body = self.ask(f"/api/{name}", **given)
        assert status == 200, body
        return body

    def pages(self, **given: Any) -> list[dict[str, Any]]:
        """Return all events, in the order of their pages, as rows."""
        found: list[dict[str, Any]] = []
        before = None
        while True:
            page = self.get("events", **given, **({"before": before} if before else {}))
            found += rows_of(page)
            if page["is_last"]:
                return found
            before = f"{found[-1]['sequence']}.{found[-1]['ordinal']}"


def rows_of(page: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a page's columns as rows, with words in place of their codes."""
    columns, words = page["columns"], page["words"]
    rows = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    return [{**row, **{name: listed[row[name]] for name, listed in words.items()}} for row in rows]


def tables_of(decided: Decided) -> list[str]:
    """Return the tables of a transaction's operations, in order."""
    record = decided.submitted.record
    assert isinstance(record, Transaction)
    return [format_table_id(target(one)) for one in record.operations]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    root = tmp_path_factory.mktemp("page")
    decided, terms = busy_log(TRANSACTIONS)
    extend_index(root, decided[:-KEPT_BACK], terms)
    with serving_routes(page_routes(root)) as uri:
        yield Page(root, uri, decided[:-KEPT_BACK])


@pytest.mark.slow
@pytest.mark.parametrize("limit", [97, 1000, 8192])
def test_the_log_in_pages_is_every_transaction_once(page: Page, limit: int) -> None:
    found = page.pages(limit=limit)
    decided = list(reversed(page.decided))
    assert [row["sequence"] for row in found] == [one.outcome.sequence for one in decided]
    assert [row["time"] for row in found] == [one.outcome.time_ms for one in decided]
    for row, one in zip(found, decided, strict=True):
        said = "repeated" if one.outcome.answers else str(one.outcome.status)
        assert row["status"] == said
    assert page.get("events", limit=5)["total"] == len(decided)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [97, 8192])
def test_a_table_in_pages_is_every_operation_once(page: Page, limit: int) -> None:
    found = page.pages(table=TABLE, limit=limit)
    wanted = [
        (one.outcome.sequence, ordinal)
        for one in reversed(page.decided)
        for ordinal, table in reversed(list(enumerate(tables_of(one))))
        if table == TABLE
    ]
    assert [(row["sequence"], row["ordinal"]) for row in found] == wanted
    assert page.get("events", table=TABLE, limit=1)["total"] == len(wanted)


def test_what_came_after_a_place_comes_oldest_first(page: Page) -> None:
    for given in ({}, {"table": TABLE}):
        found = page.pages(**given)
        middle = found[len(found) // 2]
        after = f"{middle['sequence']}.{middle['ordinal']}"
        later = rows_of(page.get("events", after=after, **given))
        assert later == list(reversed(found[: len(found) // 2]))


def test_a_transaction_tells_what_it_read_and_whom_it_lost_to(page: Page) -> None:
    lost = next(one for one in reversed(page.decided) if one.outcome.conflict)
    conflict = lost.outcome.conflict
    assert conflict is not None
    (attempt,) = page.get("transaction", sequence=lost.outcome.sequence)["attempts"]
    assert attempt["transaction_id"] == lost.outcome.transaction_id
    assert attempt["conflict"]["winner_transaction_id"] == conflict.transaction_id
    assert attempt["conflict"]["fragments"] == list(conflict.fragments)
    detail = next(
        one for one in attempt["details"] if one["table_name"] == format_table_id(conflict.table)
    )
    lineage = detail["lineage"]
    assert lineage["until"] == conflict.version
    versions = [one["version"] for one in lineage["versions"]]
    assert versions == list(range(conflict.version, detail["read_version"] - 1, -1))
    by_id = page.get("transaction", id=lost.outcome.transaction_id)["attempts"]
    assert by_id == [attempt]


def test_a_repeated_request_names_its_first_answer(page: Page) -> None:
    again = next(one for one in page.decided if one.outcome.answers)
    attempts = page.get("transaction", sequence=again.outcome.sequence)["attempts"]
    assert attempts[0]["sequence"] == again.outcome.sequence
    assert again.outcome.answers in {one["sequence"] for one in attempts}


def test_the_conflict_map_counts_every_conflict(page: Page) -> None:
    lost = [one for one in page.decided if one.outcome.conflict]
    found = page.get("conflicts")
    assert found["total"] == len(lost) == sum(pair["count"] for pair in found["pairs"])
    assert sum(one["count"] for one in found["tables"]) == len(lost)
    pair = found["pairs"][0]
    listed = page.get("collisions", loser=pair["loser"], winner=pair["winner"])["collisions"]
    assert len(listed) == pair["count"]
    most = found["fragments"][0]
    by_fragment = page.get("collisions", table=most["table_name"], fragment=most["fragment"])
    assert len(by_fragment["collisions"]) == most["count"]
    of_table = page.get("conflicts", table=TABLE)
    here = [one for one in lost if one.outcome.conflict and one.outcome.conflict.table == NAME]
    assert of_table["total"] == len(here)


def test_tables_come_in_pages_by_name(page: Page) -> None:
    everything = page.get("tables")
    names = [one["table_name"] for one in everything["tables"]]
    assert names == sorted(names)
    assert everything["after"] is None
    found, after = [], ["", ""]
    while after:
        part = page.get("tables", limit=3, after=after[0], incarnation=after[1])
        found += part["tables"]
        after = part["after"]
    assert found == everything["tables"]
    committed = sum(1 for one in page.decided if one.outcome.status is Status.COMMITTED)
    assert page.get("status")["positions"][0]["sequence"] == len(page.decided) > committed


def test_a_page_knows_when_the_index_was_kept_last(page: Page) -> None:
    index = Layout(page.root)
    published = index.public.stat().st_mtime
    assert 0 <= page.get("status")["behind_ms"] <= (time.time() - published) * 1000 + 1_000
    index.counts.touch()
    try:
        assert page.get("status")["behind_ms"] < 60_000
        os.utime(index.counts, (published + 1e6, published + 1e6))
        assert page.get("status")["behind_ms"] == 0
    finally:
        index.counts.unlink()


def test_an_answer_is_asked_for_again_only_when_the_index_changed(page: Page) -> None:
    _, headers, _ = page.ask("/api/live")
    known = {"If-None-Match": headers["ETag"]}
    for sent in (headers["ETag"], f"W/{headers['ETag']}", f'"x", {headers["ETag"]}'):
        assert page.ask("/api/live", {"If-None-Match": sent})[0] == 304
    os.utime(page.root / "index.duckdb")
    assert page.ask("/api/live", known)[0] == 200


@pytest.mark.slow
def test_questions_that_began_on_a_replaced_snapshot_end_on_it(tmp_path: Path) -> None:
    decided, terms = busy_log(300)
    extend_index(tmp_path, decided[:200], terms)
    snapshots = Snapshots(tmp_path)
    count = "SELECT count(*) AS n FROM transactions"
    began, replaced = threading.Event(), threading.Event()
    found: list[object] = []

    def slow(ask: Any) -> None:
        found.append(ask(count, ())[0]["n"])
        began.set()
        assert replaced.wait(120)
        found.append(ask(count, ())[0]["n"])

    reader = threading.Thread(target=snapshots.read, args=(slow,))
    reader.start()
    assert began.wait(120)
    extend_index(tmp_path, decided[200:])
    assert snapshots.read(lambda ask: ask(count, ()))[0]["n"] == 300
    replaced.set()
    reader.join(120)
    assert found == [200, 200]
    snapshots.close()


@pytest.mark.parametrize(
    ("name", "given", "wanted", "said"),
    [
        ("table", {}, (400, 13), "table is missing"),
        ("table", {"table": "nyc$flight"}, (404, 4), "Did you mean nyc$flights?"),
        ("events", {"table": "x' OR 1=1 --"}, (404, 4), "has no table"),
        ("conflicts", {"table": "nothing"}, (404, 4), "has no table"),
        ("events", {"limit": "0"}, (400, 13), "limit"),
        ("events", {"limit": ["1", "2"]}, (400, 13), "the parameter limit is given twice"),
        ("events", {"limit": "8193"}, (400, 13), "limit"),
        ("events", {"limit": "²"}, (400, 13), "whole number"),
        ("events", {"limit": "٣"}, (400, 13), "whole number"),
        ("events", {"limit": "1_0"}, (400, 13), "whole number"),
        ("events", {"before": "1"}, (400, 13), "SEQUENCE.ORDINAL"),
        ("events", {"before": "٣.٠"}, (400, 13), "SEQUENCE.ORDINAL"),
        ("events", {"after": "-1.0"}, (400, 13), "SEQUENCE.ORDINAL"),
        ("events", {"partition": "99999999999999999999"}, (400, 13), "partition"),
        ("transaction", {"sequence": "999999"}, (404, 10), "at position 999999 of partition 0"),
        ("transaction", {"id": "nothing"}, (404, 10), "no transaction nothing"),
        ("collisions", {"fragment": "a"}, (400, 13), "fragment"),
        ("table", {"table": "n" * 5000}, (400, 13), "4096"),
    ],
)
def test_bad_input_says_what_is_wrong(
    page: Page, name: str, given: dict[str, Any], wanted: tuple[int, int], said: str
) -> None:
    status, _, body = page.ask(f"/api/{name}", **given)
    assert (status, body["code"]) == wanted, body
    assert said in body["error"]


def test_without_an_index_the_page_says_so(tmp_path: Path) -> None:
    with serving_routes(page_routes(tmp_path)) as uri:
        page = Page(tmp_path, uri, [])
        assert page.ask("/")[0] == 200
        for name in ("status", "tables", "live"):
            status, headers, body = page.ask(f"/api/{name}")
            assert status == 503
            assert headers["Retry-After"]
            assert "no version index" in body["error"]


def test_static_files_are_confined_and_run_nothing_from_elsewhere(page: Page) -> None:
    for path, status in (("/", 200), ("/page/main.js", 200), ("/page/none.js", 404)):
        found, headers, _ = page.ask(path)
        assert found == status
        if status == 200:
            assert "default-src 'none'" in headers["Content-Security-Policy"]
            assert headers["X-Content-Type-Options"] == "nosniff"
    for path in ("/page/../routes.py", "/page/%2e%2e/routes.py", "/page//etc/passwd"):
        assert page.ask(path)[0] == 404
    shell = page.ask("/")[2].decode()
    for static in Path("consumers/servers/page/static").resolve().glob("*.js"):
        text = static.read_text()
        assert "innerHTML" not in text, "text of the log must stay text"
        assert f"page/{static.name}" in shell, f"{static.name} would be found one request late"


@pytest.mark.parametrize("path", ["/", "/page/page.css"])
@pytest.mark.parametrize("units", ["rows=1-2", "bytes=0-3", "bytes", "0-3"])
def test_a_range_is_no_reason_to_refuse_a_file(page: Page, path: str, units: str) -> None:
    """A unit that a server doesn't know is ignored (RFC 9110, 14.2)."""
    status, headers, body = page.ask(path, {"Range": units})
    assert (status, headers["Accept-Ranges"]) == (200, "none")
    assert body == page.ask(path)[2]


def test_the_folder_of_the_page_leads_to_the_page(page: Page) -> None:
    for path, to in (("/page", "./"), ("/page/", "../")):
        status, headers, _ = page.ask(path, view="log")
        assert (status, headers["Location"]) == (307, f"{to}?view=log")


def test_an_index_of_another_program_is_said_to_be_one(tmp_path: Path) -> None:
    """After an upgrade it stands until a new one has caught up: the page was a traceback then."""
    decided, terms = busy_log(5)
    extend_index(tmp_path, decided, terms)
    with duckdb.connect(str(tmp_path / "index.duckdb")) as connection:
        connection.execute("UPDATE meta SET value = '1' WHERE key = 'schema_version'")
    with serving_routes(page_routes(tmp_path)) as uri:
        status, headers, body = Page(tmp_path, uri, []).ask("/api/status")
        assert status == 503
        assert headers["Retry-After"]
        assert "builds the index anew" in body["error"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT max(md5(i::VARCHAR)) FROM range(30000000000) t(i)", "did not answer in time"),
        ("SELECT list(i) FROM range(300000000) t(i)", "more than 64MB of memory"),
    ],
)
def test_a_question_that_costs_too_much_is_given_up(
    page: Page, monkeypatch: pytest.MonkeyPatch, sql: str, said: str
) -> None:
    monkeypatch.setattr(page_api, "ANSWER_SECONDS", 0.5 if "time" in said else 60.0)
    monkeypatch.setattr(snapshots, "MEMORY_LIMIT", "64MB")
    api = page_api._Api(page.root)
    costly = Route("/api/costly", api.endpoint(lambda ask, given: ask(sql, ())))
    with serving_routes([costly]) as uri:
        status, _, body = Page(page.root, uri, []).ask("/api/costly")
    assert status == 503
    assert said in body["error"]
    began = time.monotonic()
    api._threads.shutdown()
    assert time.monotonic() - began < 60  # the first would take an hour
