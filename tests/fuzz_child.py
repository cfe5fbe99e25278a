"""Uses a copy of a table as plain pylance does, and says how far it came.

A process of its own, because a panic of Lance's may end the whole process. One path a line on
stdin, one answer a line on stdout: `ok`, or the step that failed and why.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa


def steps(path: str) -> Iterator[str]:
    """Use a table; yield what comes next."""
    yield "open"
    dataset = lance.dataset(path)
    schema = dataset.schema
    yield "read"
    table = dataset.to_table()
    yield "filter"
    number = next((f.name for f in schema if pa.types.is_integer(f.type)), None)
    predicate = "true" if number is None else f"`{number}` >= 2"
    dataset.count_rows(predicate)
    for name in schema.names:
        dataset.to_table(columns=[name])
    yield "append"
    if not table.num_rows:
        table = pa.table({f.name: pa.nulls(2, f.type) for f in schema}, schema=schema)
    lance.write_dataset(table.slice(0, 2), path, mode="append")
    yield "update"
    dataset = lance.dataset(path)
    if number is not None:
        dataset.update({number: f"`{number}`"}, where=predicate)
    yield "delete"
    dataset.delete(f"NOT ({predicate})")
    yield "compact"
    dataset = lance.dataset(path)
    dataset.optimize.compact_files()
    yield "indices"
    dataset = lance.dataset(path)
    dataset.list_indices()
    dataset.optimize.optimize_indices()
    yield "read again"
    lance.dataset(path).to_table()


def used(path: str) -> str:
    """Use a copy of a table; return how that ended."""
    step = ""
    with tempfile.TemporaryDirectory(dir=Path(path).parent) as folder:
        copy = os.path.join(folder, "copy")
        shutil.copytree(path, copy)
        try:
            for step in steps(copy):
                print(f"at {step}", flush=True)
        except BaseException as error:
            said: Any = str(error).replace("\n", " ")
            return f"{step}: {type(error).__name__}: {said[:600]}"
    return "ok"


if __name__ == "__main__":
    for line in sys.stdin:
        print(f"end {used(line.strip())}", flush=True)
