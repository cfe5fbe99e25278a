"""Do the examples in the docstrings of the Python client run, in the order of a first session?"""

from __future__ import annotations

import inspect
import re

import pyarrow as pa
import pytest

from commitlog import CommitLog
from commitlog.client.commits.session import TransactionBuilder

SCHEMA = pa.schema([("id", pa.int64()), ("amount", pa.float64())])
EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
DOCUMENTED = (
    *(CommitLog.append, CommitLog.update, CommitLog.merge_insert, TransactionBuilder),
    *(CommitLog.scan, CommitLog.sql, CommitLog.subscribe, CommitLog.snapshot, CommitLog.delete),
)


@pytest.mark.slow
def test_examples_run(client: CommitLog) -> None:
    client.create_table("shop$orders", SCHEMA, primary_key="id")
    for one in DOCUMENTED:
        [example] = EXAMPLE.findall(inspect.getdoc(one) or "")
        exec(example.replace('"2026-01-31T12:00:00Z"', "None"), {"log": client})
    rows = client.scan("shop$orders").sort_by("id").to_pylist()
    assert rows == [{"id": 4, "amount": 4.0}, {"id": 7, "amount": 0.0}]
