"""Is the table of routes the whole protocol, and does each failure have its code and status?"""

import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from lance_namespace import UnsupportedOperationError
from lance_namespace.errors import ErrorCode

from commitlog.errors import (
    CommitLogError,
    InvalidTransaction,
    NoSuchTable,
    NoSuchVersion,
    OutcomeUnknown,
    Overloaded,
    RetryableConflict,
    TableAlreadyExists,
    TransactionRejected,
    Unavailable,
)
from commitlog.model.records import Code, Outcome, Status
from consumers.servers.namespace.operations import OPERATIONS, unsupported
from consumers.servers.namespace.settings import Settings
from consumers.servers.namespace.status import (
    REJECTED,
    STATUS,
    code_of,
    error_response,
    message_of,
)
from tests.namespace_world import World

APIS = ("branch", "data", "index", "metadata", "namespace", "table", "tag", "transaction")


def test_every_operation_of_the_client_has_a_route() -> None:
    # Read, not imported: that makes models of all its parameters, two seconds of CPU.
    client = find_spec("lance_namespace_urllib3_client")
    assert client is not None
    assert client.origin is not None
    found = set()
    for api in APIS:
        source = (Path(client.origin).parent / "api" / f"{api}_api.py").read_text(encoding="utf-8")
        for method, path in re.findall(r"method='(\w+)',\s+resource_path='([^']+)'", source):
            found.add((method, path))
    assert len(found) > 50
    assert {(entry.method, entry.path) for entry in OPERATIONS} >= found


def test_what_is_left_out_is_named() -> None:
    assert sorted(unsupported()) == [
        "AlterTableBackfillColumns",
        "CreateMaterializedView",
        "RefreshMaterializedView",
    ]


def test_every_code_has_a_status() -> None:
    assert set(STATUS) == set(ErrorCode)
    assert set(STATUS.values()) == {400, 401, 403, 404, 406, 409, 429, 500, 503}
    assert set(REJECTED) <= set(Code)


def outcome(status: Status, code: Code) -> Outcome:
    return Outcome(7, "an-id", 3, status, code=code, message="why")


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (InvalidTransaction("x"), 13, 400),
        (NoSuchTable("x"), 4, 404),
        (NoSuchVersion("x"), 11, 404),
        (TableAlreadyExists("x"), 5, 409),
        (OutcomeUnknown("x", "id"), 18, 500),
        (Unavailable("x"), 17, 503),
        (Overloaded("x", 3), 17, 503),
        (CommitLogError("x"), 18, 500),
        (ValueError("x"), 18, 500),
        (UnsupportedOperationError("x"), 0, 406),
        (RetryableConflict("x", outcome(Status.RETRYABLE, Code.CONFLICT)), 14, 409),
        (TransactionRejected("x", outcome(Status.REJECTED, Code.NO_SUCH_TABLE)), 4, 404),
        (TransactionRejected("x", outcome(Status.REJECTED, Code.MISSING_FILE)), 13, 400),
        (TransactionRejected("x", outcome(Status.REJECTED, Code.UNSUPPORTED_OPERATION)), 0, 406),
    ],
)
def test_an_error_has_one_code_and_one_status(error: Exception, code: int, status: int) -> None:
    assert code_of(error) == code
    response = error_response(error, "/v1/table/t/describe")
    assert response.status_code == status
    assert ("retry-after" in response.headers) is (status == 503)


def test_only_what_has_an_id_can_be_asked_for() -> None:
    assert message_of(OutcomeUnknown("why", "an-id")).endswith("/v1/log/transactions/an-id)")
    assert message_of(OutcomeUnknown("why", "")) == "why"


def test_what_our_own_mistakes_say_stays_in_the_log() -> None:
    response = error_response(ValueError("a secret"), "/v1/table")
    assert b"a secret" not in response.body
    assert b"unknown" in response.body


@pytest.fixture
def headless(tmp_path: Path) -> Iterator[World]:
    """A server whose log nobody decides for."""
    world = World(tmp_path, settings=Settings(commit_seconds=0.5), request_seconds=0.5)
    world.post("/v1/table/a$t/declare")
    world.stop_leader()
    yield world
    world.close()


@pytest.mark.slow
def test_without_a_leader_nothing_is_said_that_may_be_wrong(headless: World) -> None:
    for path in ("a$t/describe", "a$t/version/list", "nobody/describe", "a$t/version/describe"):
        status, body = headless.post(f"/v1/table/{path}")
        assert (status, body["code"]) == (503, 17), path
    request = urllib.request.Request(headless.uri + "/v1/table/a$t/exists", method="POST")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=120)
    assert caught.value.headers["Retry-After"] == "1"
    caught.value.close()
    status, body = headless.post("/v1/table/b$t/declare")
    assert (status, body["code"]) == (500, 18), "it was appended, and may yet be committed"
    assert "has no answer" in body["error"]
