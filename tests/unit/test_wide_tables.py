"""Checks of a table with many columns take time in proportion to them, not to their square."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from commitlog.adapters.row_contract import check_columns, present
from commitlog.codecs.lance_schema import schema_fields
from commitlog.core.schema_check.schema import schema_problem
from commitlog.errors import InvalidTransaction

COLUMNS = 30_000
CPU_SECONDS = 5.0
"""It takes a tenth of that, and more than ten times that if each column is compared with each."""


@pytest.fixture(scope="module")
def wide() -> pa.Schema:
    return pa.schema([pa.field(f"c{number}", pa.int64()) for number in range(COLUMNS)])


@contextmanager
def quick() -> Iterator[None]:
    began = time.thread_time()
    yield
    assert time.thread_time() - began < CPU_SECONDS


@pytest.mark.slow
def test_rows_are_compared_with_a_wide_table(wide: pa.Schema) -> None:
    with quick():
        check_columns(wide, wide, "t")
        assert present(wide, wide) == wide
        with pytest.raises(InvalidTransaction, match="given twice"):
            check_columns(wide.append(wide.field(0)), wide, "t")
        with pytest.raises(InvalidTransaction, match="no column"):
            check_columns(wide.append(pa.field("d", pa.int64())), wide, "t")


@pytest.mark.slow
def test_a_wide_schema_is_decided(wide: pa.Schema) -> None:
    fields, _ = schema_fields(wide)
    with quick():
        assert schema_problem(fields) is None
        assert schema_problem([*fields, fields[0]]) is not None
