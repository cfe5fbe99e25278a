"""Storage options by location: from a file, from code, and as obstore takes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlog.adapters.storage import store_for
from commitlog.adapters.storage_options import (
    FILE_NAMED_BY,
    Scoped,
    StorageFile,
    read_storage_file,
    storage_options,
    use_storage_file,
    use_storage_options,
)
from commitlog.errors import InvalidSettings

SECRET = "hunter2"


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Leave this process without options."""
    yield
    use_storage_file("")
    for location in ("s3://lake", "s3://lake/a.lance"):
        use_storage_options(location, {})


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a file that says something of everything."""
    monkeypatch.setenv("LAKE_ID", "of the environment")
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    path = tmp_path / "storage.toml"
    path.write_text(
        f"""
        [stores]
        timeout = "7s"
        [stores."s3://lake/"]
        endpoint = "http://lake:1"
        aws_access_key_id = {{ env = "LAKE_ID" }}
        aws_secret_access_key = {{ file = "{tmp_path / "secret"}" }}
        [stores."s3://lake/eu"]
        endpoint = "https://eu:2"
        [options]
        region = "eu"
        [options."s3://lake"]
        endpoint = "http://seen-from-outside:3"
        [credentials]
        one = {{ env = "LAKE_ID" }}
        """
    )
    return path


def test_a_file_says_what_holds_below_a_prefix(file: Path) -> None:
    found = use_storage_file(str(file))
    assert storage_options("s3://lake/a.lance") == {
        "timeout": "7s",
        "endpoint": "http://lake:1",
        "aws_access_key_id": "of the environment",
        "aws_secret_access_key": SECRET,
        "allow_http": "true",
    }
    deeper = storage_options("s3://lake/eu/a.lance")
    assert (deeper["endpoint"], deeper["aws_secret_access_key"]) == ("https://eu:2", SECRET)
    assert "allow_http" not in deeper
    assert storage_options("s3://lakeside/a.lance") == {"timeout": "7s"}
    assert found.options.at("s3://lake/x")["endpoint"] == "http://seen-from-outside:3"
    assert found.options.at("s3://other/x") == {"region": "eu"}
    assert found.credentials.at("s3://other/x") == {"one": "of the environment"}
    assert SECRET not in repr(found)


def test_the_environment_names_the_file_and_code_wins_over_it(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FILE_NAMED_BY, str(file))
    monkeypatch.setattr("commitlog.adapters.storage_options._known.file", None)
    use_storage_options("s3://lake/a.lance/", {"endpoint": "https://given:4"})
    assert storage_options("s3://lake/a.lance")["endpoint"] == "https://given:4"
    assert storage_options("s3://lake/a.lance/tree/dev")["endpoint"] == "https://given:4"
    assert storage_options("s3://lake/b.lance")["endpoint"] == "http://lake:1"
    use_storage_options("s3://lake/a.lance", {})
    assert storage_options("s3://lake/a.lance")["endpoint"] == "http://lake:1"


def test_no_file_says_nothing() -> None:
    assert read_storage_file("") == StorageFile()
    assert Scoped().at("s3://lake") == {}
    assert storage_options("/a/path") == {}


@pytest.mark.parametrize(
    "wrong",
    [
        '[secrets]\na = "b"',
        "[options]\na = 1",
        "stores = 1",
        '[credentials]\na = { env = "NOT_SET_ANYWHERE" }',
        '[stores."s3://lake"]\na = { file = "/nowhere/at/all" }',
        "[stores",
    ],
)
def test_a_file_that_is_wrong_is_named(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / "storage.toml"
    path.write_text(wrong)
    with pytest.raises(InvalidSettings, match=r"storage\.toml"):
        read_storage_file(str(path))


def test_stores_take_pylances_names() -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    use_storage_options(
        "s3://lake",
        {
            "Region": "eu",
            "access_key_id": "a",
            "aws_secret_access_key": SECRET,
            "allow_http": "true",
            "timeout": "3s",
            "proxy_url": "http://proxy:1",
            "client_max_retries": "2",
            "download_retry_count": "9",
        },
    )
    store = store_for("s3://lake/a.lance")
    assert store.has_put_if_absent


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"regoin": "eu"}, "'regoin'"),
        ({"client_max_retries": "many"}, "client_max_retries"),
        ({"region": "eu", "checksum_algorithm": SECRET}, "checksum_algorithm, region"),
    ],
)
def test_options_that_are_no_good_are_named_and_never_shown(
    options: dict[str, str], said: str
) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    use_storage_options("s3://lake", {**options, "aws_secret_access_key": SECRET})
    with pytest.raises(InvalidSettings, match=said) as raised:
        store_for("s3://lake/a.lance")
    assert SECRET not in str(raised.value)
