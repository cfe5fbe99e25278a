"""Are requests to S3 signed as AWS signs them, and only those about a table's own objects?"""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from commitlog.adapters.s3_requests import (
    UNSIGNED_PAYLOAD,
    S3Address,
    S3Keys,
    encoded,
    s3_address,
    signature_headers,
)
from commitlog.adapters.storage_options import Scoped, use_storage_options
from consumers.runtime.config import ConfigurationError
from consumers.servers.security.grants import Access
from consumers.servers.vending.scope import Scope, is_plain, scope_of
from consumers.servers.vending.signing import NotSigned, ToSign, judge, sign
from consumers.servers.vending.vendor import checked

KEYS = S3Keys("someone", "something", "a token")
STORE = S3Address("http://store:9000", "eu-central-1", KEYS)
MINE = Scope("lake", "tables/ns/t-1")
HOME = "http://store:9000/lake/tables/ns/t-1"
NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


def test_a_signature_is_the_one_that_botocore_makes() -> None:
    auth = pytest.importorskip("botocore.auth")
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    seed = random.randrange(2**32)
    chance = random.Random(seed)
    letters = "aB9-_.~ /=+%&äß"
    for number in range(200):
        key, value = ("".join(chance.choices(letters, k=9)).strip() or "x" for _ in range(2))
        query = chance.choice(["", f"?prefix={encoded(value)}&list-type=2&a=", "?uploads="])
        url = f"http://store:9000/lake/{encoded(key, safe='/')}{query}"
        headers = chance.choice([{}, {"range": "bytes=0-9", "x-amz-meta-a": "b  c"}])
        token = chance.choice(["", "a token"])
        made = signature_headers(
            "GET", url, headers, keys=replace(KEYS, session_token=token), region="r", now=NOW
        )
        asked = AWSRequest("GET", url, {n: v for n, v in {**headers, **made}.items()}, b"")
        del asked.headers["authorization"]
        asked.context["timestamp"] = made["x-amz-date"]
        theirs = auth.S3SigV4Auth(Credentials("someone", "something", token or None), "s3", "r")
        signature = theirs.signature(
            theirs.string_to_sign(asked, theirs.canonical_request(asked)), asked
        )
        assert made["authorization"].endswith(f"Signature={signature}"), (seed, number, url)


def test_keys_come_from_the_options_else_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("ENDPOINT", "ENDPOINT_URL", "DEFAULT_REGION", "TOKEN"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    found = s3_address("s3://somewhere/t")
    assert (found.keys, found.region, found.endpoint) == (
        S3Keys("environment", "hidden", "token"),
        "eu-west-1",
        "",
    )
    assert "hidden" not in repr(found)
    assert "token'" not in repr(found)
    options = {"access_key_id": "own", "secret_access_key": "secret", "endpoint": "http://x/"}
    use_storage_options("s3://somewhere", options)
    try:
        found = s3_address("s3://somewhere/t")
    finally:
        use_storage_options("s3://somewhere", {})
    assert (found.keys, found.endpoint) == (S3Keys("own", "secret"), "http://x")


@pytest.mark.parametrize(
    "location",
    [
        *(
            "/tables/t",
            "s3://lake",
            "s3://lake/",
            "gs://lake/t",
            "s3://lake/a/../b",
            "s3://lake//t",
        ),
        *("s3://me@lake/t", "s3://lake:80/t", "s3://lake/a/%2e%2e/b", "s3://lake/a\\b", "s3:///t"),
        *("s3://lake/a/%252e%252e/b", "s3://lake/a\n", "s3://lake/./t"),
    ],
)
def test_a_place_without_one_meaning_has_no_objects(location: str) -> None:
    assert scope_of(location) is None


def test_a_policy_names_the_objects_of_one_table_by_the_letter() -> None:
    found = scope_of("s3://lake/tables/ns/t-1/")
    assert found == MINE
    assert '"arn:aws:s3:::lake/tables/ns/t-1/*"' in MINE.policy(Access.READ)
    assert "Put" not in MINE.policy(Access.READ)
    assert "Delete" not in MINE.policy(Access.READ)
    assert "s3:PutObject" in MINE.policy(Access.WRITE)
    assert "s3:*" not in MINE.policy(Access.ADMIN)
    for name in ("*", "t?", "${aws:username}"):
        assert not Scope("lake", f"tables/{name}").has_policy, "it would stand for other tables"


@pytest.mark.parametrize(
    ("method", "uri", "access"),
    [
        ("GET", f"{HOME}/data/x.parquet", Access.READ),
        ("HEAD", f"{HOME}/data/a%3D1/x%20y.parquet?x-id=HeadObject", Access.READ),
        ("GET", "http://store:9000/lake?list-type=2&prefix=tables%2Fns%2Ft-1%2F", Access.READ),
        ("GET", "http://store:9000/lake/?prefix=tables/ns/t-1/data", Access.READ),
        ("GET", "http://lake.store:9000/tables/ns/t-1/x", Access.READ),
        ("PUT", f"{HOME}/data/x", Access.WRITE),
        ("PUT", f"{HOME}/data/x?partNumber=1&uploadId=u", Access.WRITE),
        ("POST", f"{HOME}/data/x?uploads", Access.WRITE),
        ("POST", f"{HOME}/data/x?uploadId=u", Access.WRITE),
        ("DELETE", f"{HOME}/data/x", Access.WRITE),
        ("GET", f"{HOME}/data/a%253D%252Fb", Access.READ),
    ],
)
def test_what_concerns_the_table_is_signed(method: str, uri: str, access: Access) -> None:
    assert judge(ToSign(method, uri, {}), MINE, STORE).access is access


@pytest.mark.parametrize(
    "uri",
    [
        *(f"{HOME}2/data/x", HOME, f"{HOME}/", "http://store:9000/lake/tables/ns/other/x"),
        *(f"{HOME}/../other/x", f"{HOME}/%2e%2e/other/x", f"{HOME}/..%2fother/x"),
        *(f"{HOME}/%252e%252e/other", f"{HOME}/.%252e/other", f"{HOME}//x", f"{HOME}/a/./x"),
        *(f"{HOME}/..%5cother/x", f"{HOME}/x%00", f"{HOME}/x%0a", f"{HOME}/x#y", f"{HOME}/%ff"),
        *("http://store:9000/other/tables/ns/t-1/x", "http://store:9000/LAKE/tables/ns/t-1/x"),
        *("http://store:9000/lake/Tables/ns/t-1/x", "http://store:9000/lake/tables/ns/t-1./x"),
        *("http://store:9001/lake/tables/ns/t-1/x", "https://store:9000/lake/tables/ns/t-1/x"),
        *(
            "http://me@store:9000/lake/tables/ns/t-1/x",
            "http://store:9000@evil/lake/tables/ns/t-1/x",
        ),
        *("http://store.:9000/lake/tables/ns/t-1/x", "http://other.store:9000/tables/ns/t-1/x"),
        *("http://evil/lake/tables/ns/t-1/x", "s3://lake/tables/ns/t-1/x", "", "/lake", "http://["),
        *(f"{HOME}/x?acl", f"{HOME}/x?tagging", f"{HOME}/x?versionId=1", f"{HOME}/x?torrent"),
        *(f"{HOME}/x?x-id=a&x-id=b", f"{HOME}/x?uploadId=a+b", f"{HOME}/x?X-Amz-Signature=1"),
        *("http://store:9000/", "http://store:9000/lake", "http://store:9000/lake?prefix="),
        *("http://store:9000/lake?prefix=tables/ns/t-1", "http://store:9000/lake?prefix=tables/"),
        *("http://store:9000/lake?prefix=tables/ns/t-1/../", "http://store:9000/lake?policy"),
        *(
            "http://store:9000/lake?versions&prefix=tables/ns/t-1/",
            "http://store:9000/lake?uploads",
        ),
        "http://store:9000/other?prefix=tables/ns/t-1/",
    ],
)
def test_nothing_else_is_signed(uri: str) -> None:
    for method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
        with pytest.raises(NotSigned):
            judge(ToSign(method, uri, {}), MINE, STORE)


@pytest.mark.parametrize("method", ["OPTIONS", "PATCH", "CONNECT", "get"])
def test_no_other_method_is_signed(method: str) -> None:
    with pytest.raises(NotSigned):
        judge(ToSign(method, f"{HOME}/x", {}), MINE, STORE)


@pytest.mark.parametrize(
    "headers",
    [
        {"x-amz-copy-source": "lake/tables/ns/other/x"},
        {"x-amz-copy-source": "/lake/tables/ns/t-1/../other/x"},
        {"x-amz-copy-source": "lake/tables/ns/t-1/%2e%2e/other/x"},
        {"x-amz-copy-source": "other/tables/ns/t-1/x"},
        {"x-amz-copy-source": "lake/tables/ns/t-1/x?versionId=1"},
        {"x-amz-acl": "public-read"},
        {"x-amz-grant-read": "everybody"},
        {"x-amz-website-redirect-location": "http://evil"},
        {"x-amz-security-token": "another"},
        {"x-amz-meta-a": "b\r\nhost: evil"},
        {"x-amz-content-sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"},
    ],
)
def test_headers_that_open_more_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(NotSigned):
        judge(ToSign("PUT", f"{HOME}/x", headers), MINE, STORE)


def test_a_copy_within_the_table_is_a_write_alone() -> None:
    headers = {"x-amz-copy-source": "/lake/tables/ns/t-1/a%3D1"}
    judged = judge(ToSign("PUT", f"{HOME}/x", headers), MINE, STORE)
    assert (judged.access, judged.headers) == (Access.WRITE, headers)
    with pytest.raises(NotSigned):
        judge(ToSign("GET", f"{HOME}/x", headers), MINE, STORE)


def deletion(*keys: str) -> str:
    named = "".join(f"<Object><Key>{key}</Key></Object>" for key in keys)
    return f'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{named}<Quiet>true</Quiet></Delete>'


def test_many_objects_are_deleted_by_a_body_that_is_signed_with_it() -> None:
    uri = "http://store:9000/lake?delete"
    body = deletion("tables/ns/t-1/a", "tables/ns/t-1/b")
    judged = judge(ToSign("POST", uri, {"x-amz-content-sha256": "0" * 64}, body), MINE, STORE)
    assert judged.access is Access.WRITE
    assert judged.content_hash not in (UNSIGNED_PAYLOAD, "0" * 64), "no other body may be sent"
    version = "<Object><Key>tables/ns/t-1/a</Key><VersionId>1</VersionId></Object>"
    two = "<Object><Key>tables/ns/t-1/a</Key><Key>tables/ns/other/a</Key></Object>"
    nested = "<Object><Key>tables/ns/t-1/a<b/></Key></Object>"
    for wrong in (
        *("", "x", deletion("tables/ns/t-1/a", "tables/ns/other/a"), deletion("")),
        *(deletion("tables/ns/t-1/../other"), f"<Delete>{version}</Delete>"),
        *(
            f"<Delete>{two}</Delete>",
            f"<Delete>{nested}</Delete>",
            '<!DOCTYPE a [<!ENTITY b "c">]><Delete>&b;</Delete>',
        ),
    ):
        with pytest.raises(NotSigned):
            judge(ToSign("POST", uri, {}, wrong), MINE, STORE)


def test_a_signature_holds_what_was_judged() -> None:
    wanted = ToSign("PUT", f"{HOME}/a=1/x", {"range": "bytes=0-1", "user-agent": "me"})
    judged = judge(wanted, MINE, STORE)
    assert judged.url == f"{HOME}/a%3D1/x"
    headers = sign(judged, "PUT", STORE, NOW)
    assert "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date" in headers["authorization"]
    assert headers["x-amz-security-token"] == "a token"
    with pytest.raises(NotSigned, match="no keys"):
        sign(judged, "PUT", S3Address("http://store:9000", "r", None), NOW)


def test_a_key_has_one_meaning_however_often_it_is_decoded() -> None:
    deep: Any = ".."
    for _ in range(8):
        deep = encoded(deep).replace(".", "%2e")
        assert not is_plain(f"a/{deep}/b"), deep


@pytest.mark.parametrize("place", ["gs://lake", "az://lake/x", "ABFSS://box@account.host/x"])
def test_access_to_other_stores_is_refused_at_the_start(place: str) -> None:
    with pytest.raises(ConfigurationError, match=r"only be vended for S3.*their own keys"):
        checked(Scoped({place: {"sign": "true"}}))
    for fine in ("", "s3://lake", "s3a://lake/x"):
        checked(Scoped({fine: {"sign": "true"}}))
