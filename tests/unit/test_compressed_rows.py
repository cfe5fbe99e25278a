"""Rows of a write may be compressed, and cost whoever reads them no more than others."""

from __future__ import annotations

import hashlib
import io
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from commitlog.client.accepted import row_reading
from commitlog.client.accepted.row_reading import Given, read_write, read_writes
from commitlog.client.accepted.row_writes import encode_write
from commitlog.client.rows.row_groups import RowsUnusable, Write
from commitlog.codecs.arrow_claims import claimed_by_stream
from commitlog.codecs.lance_schema import schema_fields
from commitlog.model.operations import RowsMode
from tests.properties.test_row_groups import INFO as KEYED

SCHEMA = pa.schema([("id", pa.int64()), ("kind", pa.dictionary(pa.int8(), pa.string()))])
INFO = replace(
    KEYED,
    primary_key=(),
    fields=tuple(field.SerializeToString() for field in schema_fields(SCHEMA)[0]),
)


def stream(rows: pa.Table, compression: str | None, batch_rows: int = 1_000_000) -> bytes:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows, max_chunksize=batch_rows)
    return sink.getvalue()


def given(rows: pa.Table, compression: str | None, **options: Any) -> Given:
    operation, _ = encode_write(INFO, rows, RowsMode.APPEND)
    payload = stream(rows, compression, **options)
    digest = hashlib.sha256(payload).digest()
    return Given(replace(operation, sha256=digest, size=len(payload)), payload, False)


def some(count: int) -> pa.Table:
    kinds = pa.array(["a", "b", None, "c"] * count).slice(0, count).dictionary_encode()
    return pa.table([pa.array(range(count)), kinds.cast(SCHEMA.field("kind").type)], schema=SCHEMA)


def zeros(count: int) -> pa.Table:
    numbers = pa.array(np.zeros(count, np.int64))
    kinds = pa.DictionaryArray.from_arrays(np.zeros(count, np.int8), ["a"])
    return pa.table([numbers, kinds], schema=SCHEMA)


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
@pytest.mark.parametrize("batch_rows", [1_000_000, 30])
def test_what_a_stream_claims_is_what_it_holds(compression: str | None, batch_rows: int) -> None:
    rows = some(100)
    plain = claimed_by_stream(stream(rows, None, batch_rows))
    assert 100 * 9 < plain < 100 * 9 + 1_000, "values, and the places of nulls and texts"
    claimed = claimed_by_stream(stream(rows, compression, batch_rows))
    assert plain - 64 * 20 < claimed <= plain, "what isn't compressed is padded"
    one = given(rows, compression, batch_rows=batch_rows)
    [write] = read_writes(INFO, [one])
    assert isinstance(write, Write)
    assert write.rows.to_pylist() == rows.to_pylist()


def test_rows_that_come_to_too_much_are_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row writer would read them again and again, and end each time."""
    monkeypatch.setattr(row_reading, "ROWS_UNPACKED_BYTES_MAX", 1_000_000)
    one = given(zeros(1_000_000), "zstd")
    assert len(one.payload or b"") < 10_000
    began = time.thread_time()
    with pytest.raises(RowsUnusable, match="9[0-9]{6} bytes once it is decompressed, over 1000000"):
        read_write(INFO, one.operation, one.payload)
    assert time.thread_time() - began < 0.05
    [refused] = read_writes(INFO, [one])
    assert isinstance(refused, RowsUnusable)
    plain = given(zeros(1_000_000), None)
    assert isinstance(read_write(INFO, plain.operation, plain.payload), Write)


def test_writes_that_come_to_too_much_together_are_read_in_smaller_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row writer tries a smaller group after an error that says nothing of the rows."""
    monkeypatch.setattr(row_reading, "ROWS_PENDING_BYTES_MAX", 2_000_000)
    one = given(zeros(100_000), "zstd")
    with pytest.raises(MemoryError, match="2700[0-9]{3} bytes once they are decompressed"):
        read_writes(INFO, [one] * 3)
    assert all(isinstance(found, Write) for found in read_writes(INFO, [one] * 2))
    assert len(read_writes(INFO, [given(zeros(100_000), None)] * 3)) == 3


@pytest.mark.parametrize("cut", [1, 5, 9, 100, 300, 500])
def test_a_stream_that_is_cut_is_refused_with_its_reason(cut: int) -> None:
    one = given(some(100), "zstd")
    payload = (one.payload or b"")[:cut]
    operation = replace(one.operation, sha256=hashlib.sha256(payload).digest(), size=cut)
    with pytest.raises(RowsUnusable, match="not an Arrow stream: "):
        read_write(INFO, operation, payload)
