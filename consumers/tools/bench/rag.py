"""`commitlog bench rag`: a retrieval program over HTTP, as long as one likes. Is every row right?

Writers are processes with LanceDB's own remote client: each adds batches of documents with their
vectors, embeds some of them again (`merge_insert`), and deletes the oldest. Readers ask beside
them: by vector, by words, by both, by key, and for counts. Maintenance compacts and indexes as it
does for everybody. A reader asks for documents whose commit was acknowledged, and must find them;
in the end the table is compared with what the writers were told, row by row. Any error counts.
"""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
from lancedb.index import FTS, BTree, IvfFlat

from consumers.tools.bench.measure import Report, in_processes, percentile

TABLE = "documents"
DIMENSIONS = 64
BATCH, AGAIN, DELETED = 20, 10, 5
EMBED_EVERY, DELETE_EVERY = 4, 8
FIRST_PER_WRITER = 500
"""Documents that are there before anybody begins, so that the indices have something to index."""
STRIDE = 10**9
WORDS = 17
START_SECONDS, END_SECONDS = 300.0, 600.0
INDEX_WAIT = timedelta(seconds=300)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("revision", pa.int64()),
        ("text", pa.string()),
        ("vector", pa.list_(pa.float32(), DIMENSIONS)),
    ]
)


@dataclass(slots=True)
class Told:
    """What one process has to tell at its end."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    """By kind of request, how long each took."""
    failures: list[str] = field(default_factory=list)
    rows: dict[int, int] = field(default_factory=dict)
    """A writer's: the documents that it left, with their revisions."""

    def timed(self, kind: str, work: Callable[[], Any]) -> Any:
        """Do something and note how long it took."""
        before = time.perf_counter()
        found = work()
        self.seconds.setdefault(kind, []).append(time.perf_counter() - before)
        return found


def run(
    uri: str, *, writers: int, readers: int, seconds: float, report: Report = print
) -> dict[str, Any]:
    """Run the program against a service; return a JSON-able report."""
    table = _connect(uri).create_table(TABLE, schema=SCHEMA, mode="overwrite")
    for writer in range(writers):
        table.add(_documents(range(writer * STRIDE, writer * STRIDE + FIRST_PER_WRITER)))
    table.create_index("vector", config=IvfFlat(distance_type="l2"), wait_timeout=INDEX_WAIT)
    table.create_index("text", config=FTS(), wait_timeout=INDEX_WAIT)
    table.create_index("id", config=BTree(), wait_timeout=INDEX_WAIT)
    report(f"{table.count_rows():,} documents, three indices; {seconds:g} s begin")
    context = multiprocessing.get_context("forkserver")
    # By writer: from which document on all stand, and up to which.
    oldest, newest = context.Array("q", writers), context.Array("q", [FIRST_PER_WRITER] * writers)
    shared = (uri, oldest, newest, seconds)
    work = [partial(_write, number, *shared) for number in range(writers)]
    work += [partial(_read, number, *shared) for number in range(readers)]
    done: list[Told] = in_processes(work, START_SECONDS + seconds + END_SECONDS)
    expected = {key: revision for one in done for key, revision in one.rows.items()}
    return {
        "writers": writers,
        "readers": readers,
        "seconds": seconds,
        "failures": [failure for one in done for failure in one.failures],
        "rows": len(expected),
        "wrong": _wrong(table, expected),
        "summary": summary(done),
    }


def summary(done: Sequence[Told]) -> list[dict[str, Any]]:
    """Return by kind of request how many there were, and their latencies."""
    rows = []
    for kind in dict.fromkeys(kind for one in done for kind in one.seconds):
        taken = sorted(second for one in done for second in one.seconds.get(kind, ()))
        rows.append(
            {
                "request": kind,
                "count": len(taken),
                "p50_ms": percentile(taken, 0.50) * 1000,
                "p99_ms": percentile(taken, 0.99) * 1000,
                "max_ms": taken[-1] * 1000,
            }
        )
    return rows


def _wrong(table: Any, expected: Mapping[int, int]) -> list[str]:
    """Compare a table with what it should hold; return some of the differences."""
    table.checkout_latest()
    found = table.search().select(["id", "revision", "text"]).limit(10_000_000).to_arrow()
    rows = list(zip(*(found.column(name).to_pylist() for name in found.schema.names), strict=True))
    wrong = [] if len(rows) == len(expected) else [f"{len(rows)} rows, not {len(expected)}"]
    for key, revision, text in rows:
        if expected.get(key) != revision or text != _text(key, revision):
            wrong.append(f"{key} has revision {revision} and {text!r}, not {expected.get(key)}")
    return wrong[:20]


def _connect(uri: str) -> Any:
    return lancedb.connect("db://rag", api_key="unused", host_override=uri)


def _text(key: int, revision: int) -> str:
    return f"document d{key} of topic{key % WORDS} revision {revision}"


def _vector(key: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(key).random(DIMENSIONS, np.float32)


def _documents(keys: Sequence[int], revisions: Mapping[int, int] | None = None) -> pa.Table:
    known = revisions or {}
    vectors = np.concatenate([_vector(key) for key in keys])
    return pa.table(
        {
            "id": list(keys),
            "revision": [known.get(key, 0) for key in keys],
            "text": [_text(key, known.get(key, 0)) for key in keys],
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors), DIMENSIONS),
        },
        schema=SCHEMA,
    )


def _write(
    number: int, uri: str, oldest: Any, newest: Any, seconds: float, barrier: Any, results: Any
) -> None:
    told, first = Told(), number * STRIDE
    told.rows = {first + at: 0 for at in range(FIRST_PER_WRITER)}
    try:
        table = _connect(uri).open_table(TABLE)
        barrier.wait(START_SECONDS)
        end, turn = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            turn += 1
            keys = range(first + newest[number], first + newest[number] + BATCH)
            told.timed("add", partial(table.add, _documents(keys)))
            told.rows |= dict.fromkeys(keys, 0)
            newest[number] += BATCH
            if turn % EMBED_EVERY == 0:
                _embed(table, told, list(told.rows)[-AGAIN * 5 :: 5])
            if turn % DELETE_EVERY == 0:
                # Readers leave them alone before they go.
                oldest[number] += DELETED
                below = first + oldest[number]
                where = f"id >= {first} AND id < {below}"
                told.timed("delete", partial(table.delete, where))
                told.rows = {key: at for key, at in told.rows.items() if key >= below}
    except Exception:
        told.failures.append(f"writer {number}: {traceback.format_exc(limit=-3)}")
        barrier.abort()
    results.put(told)


def _embed(table: Any, told: Told, keys: Sequence[int]) -> None:
    revisions = {key: told.rows[key] + 1 for key in keys}
    merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    told.timed("merge_insert", lambda: merge.execute(_documents(keys, revisions)))
    told.rows |= revisions


def _read(
    number: int, uri: str, oldest: Any, newest: Any, seconds: float, barrier: Any, results: Any
) -> None:
    told, chance = Told(), np.random.default_rng(number)
    try:
        table = _connect(uri).open_table(TABLE)
        barrier.wait(START_SECONDS)
        end, turn = time.monotonic() + seconds, number
        while time.monotonic() < end:
            turn += 1
            writer = int(chance.integers(len(newest)))
            # Far enough from the oldest, which may be deleted at any moment.
            at = int(chance.integers(oldest[writer] + 20 * DELETED, newest[writer]))
            kind, ask = QUESTIONS[turn % len(QUESTIONS)]
            problem = told.timed(kind, partial(ask, table, writer * STRIDE + at))
            if problem:
                told.failures.append(f"reader {number}: {kind}: {problem}")
    except Exception:
        told.failures.append(f"reader {number}: {traceback.format_exc(limit=-3)}")
        barrier.abort()
    results.put(told)


def _among(found: pa.Table, key: int) -> str:
    keys = found.column("id").to_pylist()
    return "" if key in keys else f"{key}, which stands, isn't among {keys[:20]}"


def _by_vector(table: Any, key: int) -> str:
    return _among(table.search(_vector(key)).nprobes(1000).limit(5).to_arrow(), key)


def _by_words(table: Any, key: int) -> str:
    return _among(table.search(f"d{key}", query_type="fts").limit(5).to_arrow(), key)


def _by_both(table: Any, key: int) -> str:
    query = table.search(query_type="hybrid").vector(_vector(key)).text(f"d{key}")
    return _among(query.limit(5).to_arrow(), key)


def _by_key(table: Any, key: int) -> str:
    found = table.search().where(f"id = {key}").limit(5).to_arrow()
    return "" if found.num_rows == 1 else f"{key} is there {found.num_rows} times"


def _count(table: Any, key: int) -> str:
    count = table.count_rows(f"id = {key}")
    return "" if count == 1 else f"{key} is counted {count} times"


QUESTIONS: Sequence[tuple[str, Callable[[Any, int], str]]] = (
    ("by vector", _by_vector),
    ("by words", _by_words),
    ("by both", _by_both),
    ("by key", _by_key),
    ("count", _count),
)
