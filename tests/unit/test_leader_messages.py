"""What is said on a leader's socket is read as it was said, by programs of other versions too."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from commitlog.client.commits.catalogue import check_leader_reaches
from commitlog.client.leader.leader_errors import error_from
from commitlog.client.leader.runtime import Runtime
from commitlog.errors import InvalidRequest, NoSuchTable
from commitlog.messages import (
    NO_SUCH_REQUEST,
    DecidedRecords,
    IcebergDescription,
    NamespaceDescription,
    TableDescription,
    TableHead,
)
from commitlog.model.table import Policy

TABLE = TableDescription(
    table_id=("a", "t"),
    incarnation="i",
    location="/t",
    version=3,
    readable_version=2,
    policy=Policy.LATEST,
    primary_key=("id",),
    properties={"k": "v"},
    stable_row_ids=True,
    fields=(b"\x00f",),
    schema_metadata=(("m", b"\xff"),),
    data_storage_version="2.1",
    deleted=((1, 2),),
)


@pytest.mark.parametrize(
    "message",
    [
        TABLE,
        TableHead(("a", "t"), "i", 3),
        NamespaceDescription(("a",), {"k": "v"}),
        IcebergDescription(("a", "t"), "u", "/m.json"),
        IcebergDescription(("a", "t"), "u", "/m.json", '{"format-version": 2}'),
        DecidedRecords(b"\x00o", b"\x01t"),
        DecidedRecords(b"\x00o"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_is_read_as_it_was_said(message: Any) -> None:
    body = json.loads(json.dumps(message.to_json()))
    assert type(message).from_json(body | {"said by a newer leader": 1}) == message


def test_what_an_older_leader_leaves_out_has_a_default() -> None:
    body = TABLE.to_json()
    for newer in ("fields", "schema_metadata", "data_storage_version", "deleted"):
        del body[newer]
    assert TableDescription.from_json(body).fields == ()
    head = IcebergDescription.from_json({"uuid": "u", "metadata_location": "/m.json"})
    assert head.metadata_location == "/m.json"


def test_what_an_older_leader_says_of_other_tables_is_known_as_such() -> None:
    """A server shows it to nobody who may not read all tables."""
    said = "the log has no table shop$order."
    for hint in ("Did you mean shop$orders, shop$older?", "Did you mean a Did you mean b?"):
        for body in ({}, {"hint": hint}):
            error = error_from({"type": "NoSuchTable", "message": f"{said} {hint}", **body})
            assert isinstance(error, NoSuchTable)
            assert (str(error), error.hint) == (f"{said} {hint}", hint)
    plain = error_from({"type": "NoSuchTable", "message": f"{said} {NoSuchTable.ADVICE}"})
    assert isinstance(plain, NoSuchTable)
    assert plain.hint == ""


def test_an_older_leader_lists_whole_descriptions() -> None:
    assert TableHead.from_json(TABLE.to_json()) == TableHead(("a", "t"), "i", 3)


def leader_that_answers(message: str) -> Runtime:
    def request(partition: int, method: str, **params: Any) -> Any:
        raise error_from({"type": "InvalidTransaction", "message": message})

    domains = SimpleNamespace(partition=lambda table: 0)
    return cast(Runtime, SimpleNamespace(domains=domains, request=request))


def test_a_leader_that_cannot_be_asked_what_it_reaches_holds_up_no_table() -> None:
    """One of before there was the question; an upgrade is under way."""
    check_leader_reaches(
        leader_that_answers(f"{NO_SUCH_REQUEST} 'reach'. Upgrade."), ("t",), "s3://bucket/t"
    )
    with pytest.raises(InvalidRequest, match="part"):
        check_leader_reaches(leader_that_answers("a part is empty"), ("t",), "s3://bucket/t")
