"""Moves rows from the hot relations into immutable Parquet segments, and merges those.

Sealing and merging write files in a worker thread, from an Arrow copy of the hot rows or from
other segments; then one DuckDB transaction swaps: hot rows out, segment in, views made again. So
the live file, and with it each publication, stays as small as the newest rows.

A merged segment may still be named by a published snapshot that somebody is reading. It becomes
`obsolete` in the swap, and is removed only when a snapshot without it has been published and a
grace has passed. So does a file that nothing names at start: a crash's leftover, or a segment of
an index that is being rebuilt while its last publication is still read.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import duckdb
import pyarrow as pa

from commitlog.adapters.disk import sync
from commitlog.client.history.index_file import SETTINGS, quoted
from consumers.views.version_index.layout import Layout
from consumers.views.version_index.live import Live, read_segments
from consumers.views.version_index.relation import Relation
from consumers.views.version_index.schema import EVENTS, OBSOLETE, SEGMENTS

FANOUT = 8
"""So many segments of one level become one of the next."""

LEVEL_MAX = 2
"""Segments of this level are never merged: a merge's cost stays bounded."""

OVERDUE = 2
"""With so many times the hot rows wanted, commits wait for the worker: the live file keeps the
size it once had."""

ROW_GROUP_ROWS = 20_480
"""Small, so that one table's rows are found without reading the others'."""

COMPRESSION = "COMPRESSION zstd, COMPRESSION_LEVEL 1"
"""The default level takes a quarter more CPU for files that aren't smaller."""

WORKER_MEMORY = "512MB"


@dataclass(frozen=True, slots=True)
class Segment:
    """One Parquet file of one relation's rows; `path` is relative to the index folder."""

    relation: Relation
    path: str
    level: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SegmentMerge:
    """Work under way: what the new segments will replace."""

    written: Future[list[Segment]]
    cuts: Mapping[int, int]
    """Hot rows up to these sequences per partition are in the new segments."""
    merged: tuple[str, ...] = ()


class Sealer:
    """Keeps the hot relations short. Called from the thread that owns the live file."""

    def __init__(self, live: Live, *, hot_transactions_max: int, grace_seconds: float) -> None:
        """Start with what the live file holds."""
        self._live = live
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="version-index-segments")
        self._job: SegmentMerge | None = None
        self._grace = timedelta(seconds=grace_seconds)
        self._hot_max = hot_transactions_max
        self.hot_transactions: int = live.query("SELECT count(*) FROM hot.transactions")[0][0]
        self._segments = self._load_segments()
        self._retire_unnamed()
        self._obsolete = bool(live.query("SELECT 1 FROM obsolete LIMIT 1"))

    @property
    def overdue(self) -> bool:
        """Whether rows came in much faster than they were sealed."""
        return self.hot_transactions > OVERDUE * self._hot_max

    def step(self, positions: Mapping[int, int], *, wait: bool = False) -> bool:
        """Finish what is written and begin what is due; return True if segments changed."""
        changed = False
        if self._job and (wait or self._job.written.done()):
            job, self._job = self._job, None
            self._swap(job, job.written.result())
            changed = True
        if self._job is None:
            self._begin(positions)
        return changed

    def close(self) -> None:
        """Wait for the worker; what it wrote is a leftover unless it was taken."""
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _begin(self, positions: Mapping[int, int]) -> None:
        if self.hot_transactions >= self._hot_max:
            hot = {one: _hot_rows(self._live, one) for one in EVENTS}
            written = self._worker.submit(_seal, self._live.layout, hot)
            self._job = SegmentMerge(written, dict(positions))
            return
        for (name, level), paths in self._segments.items():
            if level < LEVEL_MAX and len(paths) >= FANOUT:
                relation = next(one for one in EVENTS if one.name == name)
                task = (self._live.layout, relation, level + 1, paths)
                self._job = SegmentMerge(self._worker.submit(_merge, *task), {}, paths)
                return

    def _load_segments(self) -> dict[tuple[str, int], tuple[str, ...]]:
        found: dict[tuple[str, int], tuple[str, ...]] = {}
        for name, level, path in self._live.query(
            "SELECT relation, level, path FROM segments ORDER BY relation, level, path"
        ):
            key = (str(name), level)
            found[key] = (*found.get(key, ()), str(path))
        return found

    def _swap(self, job: SegmentMerge, segments: Sequence[Segment]) -> None:
        live = self._live
        with live.transaction():
            for partition, sequence in job.cuts.items():
                for relation in EVENTS:
                    live.query(
                        f"DELETE FROM hot.{relation.name} WHERE partition = ? AND sequence <= ?",
                        [partition, sequence],
                    )
            for path in job.merged:
                live.query("DELETE FROM segments WHERE path = ?", [path])
                live.query("INSERT INTO obsolete VALUES (?, NULL)", [path])
            live.insert(
                SEGMENTS, [(s.relation.name, s.path, s.level, s.rows, s.bytes) for s in segments]
            )
            for relation in {segment.relation for segment in segments}:
                live.show_events(relation)
        self._segments = self._load_segments()
        self._obsolete = self._obsolete or bool(job.merged)
        self.hot_transactions = live.query("SELECT count(*) FROM hot.transactions")[0][0]

    def published(self) -> None:
        """After a publication: start the grace of what it no longer names, remove what had it."""
        if not self._obsolete:
            return
        now = datetime.now(UTC).replace(tzinfo=None)
        live = self._live
        live.query("UPDATE obsolete SET published_at = ? WHERE published_at IS NULL", [now])
        due = live.query("SELECT path FROM obsolete WHERE published_at <= ?", [now - self._grace])
        for (path,) in due:
            (live.layout.folder / str(path)).unlink(missing_ok=True)
            live.query("DELETE FROM obsolete WHERE path = ?", [path])
        self._obsolete = bool(live.query("SELECT 1 FROM obsolete LIMIT 1"))

    def _retire_unnamed(self) -> None:
        rows = self._live.query("SELECT path FROM segments UNION SELECT path FROM obsolete")
        folder = self._live.layout.folder
        present = {str(f.relative_to(folder)) for f in self._live.layout.segments.iterdir()}
        unnamed = present - {str(path) for (path,) in rows}
        self._live.insert(OBSOLETE, [(path, None) for path in sorted(unnamed)])


def _hot_rows(live: Live, relation: Relation) -> pa.Table:
    return live.connection.sql(f"SELECT * FROM hot.{relation.name}").to_arrow_table()


def _seal(layout: Layout, hot: Mapping[Relation, pa.Table]) -> list[Segment]:
    with _worker_connection(layout) as connection:
        segments = []
        for relation, rows in hot.items():
            if rows.num_rows:
                connection.register("hot_rows", rows)
                segments.append(_write(connection, layout, relation, 0, "hot_rows"))
        sync(layout.segments)
        return segments


def _merge(layout: Layout, relation: Relation, level: int, paths: Sequence[str]) -> list[Segment]:
    source = read_segments([str(layout.folder / path) for path in paths])
    with _worker_connection(layout) as connection:
        segment = _write(connection, layout, relation, level, source)
        sync(layout.segments)
        return [segment]


def _worker_connection(layout: Layout) -> duckdb.DuckDBPyConnection:
    settings = {
        **SETTINGS,
        "memory_limit": WORKER_MEMORY,
        "temp_directory": str(layout.folder / "spill"),
        "threads": 1,
    }
    return duckdb.connect(":memory:", config=settings)


def _write(
    connection: duckdb.DuckDBPyConnection,
    layout: Layout,
    relation: Relation,
    level: int,
    source: str,
) -> Segment:
    file = layout.segments / f"{relation.name}-{level}-{uuid.uuid4().hex}.parquet"
    staged = file.with_suffix(".tmp")
    order = ", ".join(relation.order)
    rows = connection.execute(
        f"COPY (SELECT * FROM {source} ORDER BY {order}) TO {quoted(str(staged))}"
        f" (FORMAT parquet, {COMPRESSION}, ROW_GROUP_SIZE {ROW_GROUP_ROWS})"
    ).fetchall()[0][0]
    sync(staged)
    staged.rename(file)
    path = str(file.relative_to(layout.folder))
    return Segment(relation=relation, path=path, level=level, rows=rows, bytes=file.stat().st_size)
