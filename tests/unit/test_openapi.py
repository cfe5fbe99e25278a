"""Is the OpenAPI document true: does the server answer as it says, whatever fits or doesn't?"""

import itertools
import json
import os
import random
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from html import escape
from typing import Any

import pyarrow as pa
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.result import Ok

from consumers.servers.feed import FeedSettings, feed_routes
from consumers.servers.iceberg.rest import ROUTES
from consumers.servers.namespace.operations import OPERATIONS
from consumers.servers.openapi.document import ICEBERG_NAMES, document
from consumers.servers.openapi.examples import ICEBERG, LANCE
from consumers.servers.openapi.log_operations import OPERATION_OBJECTS
from consumers.servers.page.sql import SqlService
from tests.namespace_world import ARROW_STREAM, World, arrow_stream, numbers
from tests.page_server import serving_routes
from tests.page_world import busy_log, extend_index
from tests.service import service

load_all_checks()
CHECKED: list[Any] = [
    CHECKS.get_one(name)
    for name in (
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_schema_conformance",
        "response_headers_conformance",
    )
]
NO_FAILURE: Any = CHECKS.get_one("not_a_server_error")
SECONDS = float(os.environ.get("COMMITLOG_FUZZ_SECONDS", "0"))
"""How long the whole document is asked about; five minutes by `make soak`."""
ROUNDS = 40
"""After so many kinds of questions it ends otherwise: a busy machine asks what an idle one does."""
ASKED_AT_ONCE = 4
"""Questions are dear to make, ever more so the more of one kind are made in a row."""
BESIDE = (("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/metrics"))
"""What is served beside Lance's API."""
PATHS = [*((entry.method, entry.path) for entry in OPERATIONS), *BESIDE]
JSON = {"Content-Type": "application/json"}
QUESTIONS = [("GET", "/v1/log/feed"), ("POST", "/v1/sql")]


@cache
def schema() -> Any:
    """Return the document as schemathesis reads it, with the log's own operations."""
    return schemathesis.openapi.from_dict(document(routes=OPERATION_OBJECTS))


@pytest.fixture(scope="module")
def world(world: World) -> World:
    world.rows("/v1/table/a$t/create", numbers(0, 5))
    return world


@schemathesis.serializer(ARROW_STREAM)
def as_arrow(context: Any, value: Any) -> bytes:
    """Return rows, whole or in part, or no rows at all."""
    rows = arrow_stream(numbers(0, 3))
    chosen = len(value) % 3 if isinstance(value, bytes | str) else 0
    return (rows, rows[:100], b"no rows")[chosen]


def of_each_operation(routes: Iterable[tuple[str, str]]) -> pytest.MarkDecorator:
    """Parametrize a test; schemathesis itself gives its tests one name, which workers run once.

    By names: each process that collects tests would read the document, which takes a second.
    """
    found = list(routes)
    return pytest.mark.parametrize(
        ("method", "path"), found, ids=[f"{method} {path}" for method, path in found]
    )


@pytest.mark.slow
def test_each_operation_of_the_document_is_asked_about() -> None:
    read = [result.ok() for result in schema().get_all_operations() if isinstance(result, Ok)]
    assert sorted(each.label for each in read) == sorted(
        f"{method} {path}" for method, path in (*PATHS, *OPERATION_OBJECTS)
    )
    named = schema().include(operation_id=["Feed", "Sql"]).get_all_operations()
    labels = [each.ok().label for each in named]
    assert sorted(labels) == sorted(f"{method} {path}" for method, path in QUESTIONS)


def ask_about(operation: Any, count: int, ask: Callable[[schemathesis.Case[Any]], None]) -> None:
    """Ask a few questions about an operation, the same ones each time."""

    @settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def asked(case: schemathesis.Case[Any]) -> None:
        ask(case)

    asked()


@pytest.mark.slow
@of_each_operation(one for one in PATHS if one[1] != "/readyz")
def test_answers_are_as_documented(method: str, path: str, world: World) -> None:
    operation = schema()[path][method]

    def ask(case: schemathesis.Case[Any]) -> None:
        name = str(case.path_parameters.get("id", ""))
        if operation.path.startswith("/v1/table") and len(name) % 2:
            # A table that is there gets further than one that isn't.
            case.path_parameters["id"] = "a$t"
            world.rows("/v1/table/a$t/create?mode=exist_ok", numbers(0, 5))
        case.call_and_validate(base_url=world.uri, checks=CHECKED, timeout=60)

    ask_about(operation, 4, ask)


@pytest.mark.slow
def test_whatever_is_asked_for_minutes_no_answer_is_a_server_s_failure(world: World) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    # That parts aren't ready is what /readyz is for; this world has none.
    with urllib.request.urlopen(f"{world.uri}/openapi.json", timeout=60) as served:
        told = schemathesis.openapi.from_dict(json.load(served))
    # A feed has no end.
    endless = ["/v1/feed", "/v1/log/feed"]
    asked = told.exclude(path=["/readyz", *endless]).get_all_operations()
    operations = [one.ok() for one in asked if isinstance(one, Ok)]
    paths = {one.path for one in operations}
    assert {"/v1/namespaces", "/v1/table/{id}/query", "/v1/log/transactions"} <= paths
    until = time.monotonic() + SECONDS
    rounds = 0
    left: list[tuple[Any, GenerationMode]] = []
    while time.monotonic() < until or (not SECONDS and rounds < ROUNDS):
        rounds += 1
        if not left:
            # Each in both ways before one comes again: few are enough to reach all of them.
            left = list(itertools.product(operations, GenerationMode))
            chance.shuffle(left)
        operation, mode = left.pop()

        @hypothesis_seed(chance.randrange(2**32))
        @settings(
            max_examples=ASKED_AT_ONCE,
            deadline=None,
            database=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: schemathesis.Case[Any]) -> None:
            if chance.random() < 0.5 and "id" in case.path_parameters:
                case.path_parameters["id"] = "a$t"
            case.call_and_validate(base_url=world.uri, checks=[NO_FAILURE], timeout=60)

        world.rows("/v1/table/a$t/create?mode=exist_ok", numbers(0, 5))
        # What takes no parameters can't be asked wrongly.
        with suppress(Unsatisfiable):
            ask()


def test_the_document_names_every_route_and_no_other(world: World) -> None:
    status, served = world.send("GET", "/openapi.json")
    assert status == 200
    named = {
        (operation["operationId"], method.upper(), path)
        for path, item in served["paths"].items()
        for method, operation in item.items()
        if "iceberg" not in operation["tags"] and "server" not in operation["tags"]
    }
    assert named == {(entry.name, entry.method, entry.path) for entry in OPERATIONS}
    iceberg = {
        (method.upper(), path): operation["operationId"]
        for path, item in served["paths"].items()
        for method, operation in item.items()
        if "iceberg" in operation["tags"]
    }
    assert iceberg.keys() == {(method, path) for method, path, _ in ROUTES}
    assert iceberg["POST", "/v1/transactions/commit"] == "IcebergCommitTransaction"
    assert all(map(str.isidentifier, iceberg.values()))
    assert len(set(iceberg.values())) == len(iceberg)
    for path in ("/healthz", "/metrics", "/openapi.json", "/docs"):
        assert world.send("GET", path)[0] == 200


def test_the_document_is_made_once_and_when_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[dict[str, Any]] = []

    def make(**told: Any) -> dict[str, Any]:
        made.append(document(**told))
        return made[-1]

    monkeypatch.setattr("consumers.servers.openapi.routes.document", make)
    with serving_routes([]) as uri:
        assert not made
        for path in ("/docs", "/openapi.json", "/docs"):
            with urllib.request.urlopen(uri + path, timeout=120) as answer:
                assert answer.status == 200
    assert len(made) == 1


def test_the_page_tells_of_every_operation_and_loads_nothing(world: World) -> None:
    status, page = world.send("GET", "/docs")
    text = page.decode()
    assert status == 200
    assert all(entry.path in text for entry in OPERATIONS)
    assert "<script" not in text
    assert "src=" not in text


def test_each_example_is_carried_out(world: World) -> None:
    """Somebody copies them; the document and its page show them."""
    described = {
        operation["operationId"]: (path, content["example"])
        for path, methods in document(routes=ICEBERG_NAMES).get("paths", {}).items()
        for operation in methods.values()
        for content in operation.get("requestBody", {}).get("content", {}).values()
        if "example" in content
    }
    assert len(described) == len(LANCE) + len(ICEBERG)
    of_iceberg = [f"Iceberg{''.join(map(str.capitalize, n.split('_')))}" for n in ICEBERG]
    for name in [*LANCE, *of_iceberg]:
        path, body = described[name]
        identifier = "shop" if "/namespace/" in path else "shop$orders"
        names = path.format(id=identifier, namespace="shop", table="facts")
        status, answer = world.send("POST", names, json.dumps(body).encode(), JSON)
        assert status in (200, 204), (name, answer)
        if name == "CreateNamespace":
            made = pa.table({"id": [1, 2], "amount": [9.5, 3.0]})
            assert world.rows("/v1/table/shop$orders/create", made)[0] == 200
    page = world.send("GET", "/docs")[1].decode()
    assert all(escape(json.dumps(one)) in page for one in (*LANCE.values(), *ICEBERG.values()))


def test_references_lead_somewhere() -> None:
    found = document(is_secured=True)
    schemas = found["components"]["schemas"]

    def walk(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                yield value["$ref"]
            for one in value.values():
                yield from walk(one)
        elif isinstance(value, list):
            for one in value:
                yield from walk(one)

    assert {name.rsplit("/", 1)[-1] for name in walk(found)} <= set(schemas)
    assert found["security"] == [{"ApiKeyAuth": []}, {"BearerAuth": []}]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("asked")
    extend_index(root, *busy_log(50))
    sql = SqlService(root)
    sql.answer("SELECT 1", [])  # its process starts with the first question
    with service(root / "service") as running:
        feeds = feed_routes(running.client, FeedSettings(seconds_max=0.5))
        with serving_routes([*feeds, *sql.routes()]) as uri:
            yield uri
    sql.close()


@pytest.mark.slow
@of_each_operation(QUESTIONS)
def test_questions_are_answered_as_documented(method: str, path: str, asked: str) -> None:
    def ask(case: schemathesis.Case[Any]) -> None:
        case.call_and_validate(base_url=asked, checks=CHECKED, timeout=60)

    ask_about(schema()[path][method], 5, ask)


@pytest.mark.slow
def test_a_question_s_answer_has_the_documented_shape(asked: str) -> None:
    case = schema()["/v1/sql"]["POST"].Case(body={"sql": "SELECT 1 AS one, 'a' AS two"})
    answer = case.call_and_validate(base_url=asked, checks=CHECKED, timeout=60)
    assert answer.json()["rows"] == [[1, "a"]]


@pytest.mark.slow
def test_the_document_names_questions_where_they_are_served(asked: str) -> None:
    with urllib.request.urlopen(f"{asked}/openapi.json", timeout=120) as answer:
        paths = json.load(answer)["paths"]
    assert {("get" in paths["/v1/feed"]), ("post" in paths["/v1/sql"])} == {True}
    assert "/v1/sql" not in document()["paths"]
