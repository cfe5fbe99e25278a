"""Are refusals in Lance's own words fit for a reader?"""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest
from lance_namespace import TableNotFoundError

from commitlog.codecs.lance_schema import schema_fields
from commitlog.errors import (
    InvalidTransaction,
    NoSuchVersion,
    OutcomeUnknown,
    Overloaded,
    Unavailable,
)
from consumers.servers.iceberg.replies import Failure
from consumers.servers.namespace.status import message_of
from tests.service import SCHEMA, rows, service


def test_a_type_that_lance_lacks_is_refused_without_the_paths_of_its_build() -> None:
    with pytest.raises(InvalidTransaction, match="Unsupported data type: Decimal32") as error:
        schema_fields(pa.schema([("price", pa.decimal32(5, 2))]))
    assert ".rs" not in str(error.value)


BUILT = "/b/lance/rust/lance/src"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"LanceError(IO): no, {BUILT}/io/commit.rs:130:5", "LanceError(IO): no"),
        (
            f"too many writers., {BUILT}/io/commit.rs:130:5: try again",
            "too many writers.: try again",
        ),
        ("rows cannot be written, rust/lance/src/dataset/write.rs:51:31", "rows cannot be written"),
        (f"no such column, location: {BUILT}/a.rs:1", "no such column"),
        (
            "panicked at /b/.cargo/src/index-19c6/arrow-58.1/src/a.rs:12:3",
            "panicked",
        ),
        (
            'wrong { source: x, location: Location { file: "/b/x.rs", line: 5 } }',
            "wrong { source: x }",
        ),
        ("a filter `name = 'x.rs:5'` and s3://lake/main.rs stay", None),
    ],
)
def test_no_error_holds_a_path_of_the_machine_where_lance_was_built(
    text: str, left: str | None
) -> None:
    wanted = text if left is None else left
    ours = [
        InvalidTransaction(text),
        NoSuchVersion(text),
        Unavailable(text),
        OutcomeUnknown(text, ""),
        Overloaded(text, 1.0),
    ]
    assert {str(error) for error in ours} == {wanted}
    assert {message_of(error) for error in (*ours, TableNotFoundError(text))} == {wanted}
    assert str(Failure(400, "BadRequestException", text)) == wanted


@pytest.mark.parametrize(
    "piece",
    [
        *("x.rs:", "x/", "src/x.rs:", "Location {.rs", "in schema: Schema {"),
        "does not support logical expression x(",
    ],
)
def test_a_long_text_of_a_client_takes_no_longer_than_its_length(piece: str) -> None:
    """An error quotes what was sent: an address of 60 kB held the whole server up for minutes."""
    began = time.process_time()
    InvalidTransaction(f"{piece * (30_000 // len(piece))}.rs")
    assert time.process_time() - began < 1


def test_sql_that_fails_is_named(tmp_path: Path) -> None:
    with service(tmp_path) as made:
        made.client.create_table("ns$t", SCHEMA)
        made.client.append("ns$t", rows(1))
        with pytest.raises(InvalidTransaction, match=r"evaluate '1 / 0' over .*zero") as error:
            made.client.update("ns$t", {"id": "1 / 0"})
        assert (error.value.field, error.value.value) == ("values", "1 / 0")
        with pytest.raises(InvalidTransaction, match=r"evaluate 'id / 0 = 1' over .*zero") as error:
            made.client.delete("ns$t", "id / 0 = 1")
        assert (error.value.field, error.value.value) == ("predicate", "id / 0 = 1")
