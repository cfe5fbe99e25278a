"""The private DuckDB file: opened, checked, created, and restored if it is damaged.

The file is attached to an in-memory database, so that its storage version can be one that DuckDB
1.2 and later read. One descriptor of it is kept for life: closing any other would drop DuckDB's
lock (POSIX locks belong to the process), so nothing here opens and closes it again.

A file that cannot be read or contradicts itself is moved to `damaged/`; the published file takes
its place, since it is a live file of a moment ago, with its own position. If that one is unusable
either, an empty one starts from the beginning of the log.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from commitlog.adapters.disk import sync
from commitlog.client.history.index_file import SETTINGS, quoted
from commitlog.errors import Unavailable
from consumers.views.index_rows import SCHEMA_VERSION
from consumers.views.version_index.contents import Row
from consumers.views.version_index.layout import Layout
from consumers.views.version_index.relation import Relation, arrow_schema
from consumers.views.version_index.schema import DOCUMENTATION, EVENTS, STATE
from consumers.views.version_index.surface import QUESTIONS

STORAGE_VERSION = "v1.2.0"
"""The oldest DuckDB that reads the file; the default format needs 2.0."""

COMPRESSION_OFF = "alp,alprd,chimp,dict_fsst,fsst,patas,roaring,zstd"
"""To try them all was two thirds of a checkpoint's cost, for rows that become Parquet soon."""

BLOCK_BYTES = 16_384
"""The smallest that DuckDB has: the file is copied at each publication."""

KEEPING: dict[str, str | bool | int | float | list[str]] = {
    **SETTINGS,
    "memory_limit": "1GB",
    # A batch is small: a second thread costs more than it brings.
    "threads": 1,
    # Only `publish` checkpoints: one at a random moment would hold up a commit.
    "wal_autocheckpoint": "1GB",
}


VALUES_ROWS_MAX = 2
"""From three rows on, Arrow is quicker."""


class Damaged(Exception):
    """A live file that cannot be used; never leaves this package."""


class Live:
    """The open live file. Used by one thread at a time."""

    def __init__(self, layout: Layout) -> None:
        """Open the file, or make an empty one."""
        self.layout = layout
        settings = KEEPING | {"temp_directory": str(layout.folder / "spill")}
        self.connection = duckdb.connect(":memory:", config=settings)
        try:
            self.connection.execute(
                f"ATTACH {quoted(str(layout.live))} AS live"
                f" (STORAGE_VERSION '{STORAGE_VERSION}', BLOCK_SIZE {BLOCK_BYTES})"
            )
            self.connection.execute("USE live")
            # In the connection's settings it would have no effect.
            self.connection.execute(f"SET disabled_compression_methods = '{COMPRESSION_OFF}'")
        except duckdb.Error as error:
            self.connection.close()
            if "Could not set lock" in str(error) or "No space left" in str(error):
                raise Unavailable(f"cannot open {layout.live}: {error}") from error
            raise Damaged(str(error)) from error
        self.descriptor = os.open(layout.live, os.O_RDONLY)
        self._left: tuple[int, int] | None = None

    def close(self) -> None:
        """Close the file; the descriptor goes last."""
        with contextlib.suppress(duckdb.Error):
            self.connection.close()
        os.close(self.descriptor)

    def leave(self) -> None:
        """Note how the file is: until the next checkpoint nothing of this program writes to it."""
        self._left = self._size_and_time()

    def is_as_left(self) -> bool:
        """Return True if nothing was written to the file since; what DuckDB spilled counts too."""
        return self._left == self._size_and_time()

    def _size_and_time(self) -> tuple[int, int]:
        found = os.fstat(self.descriptor)
        return found.st_size, found.st_mtime_ns

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        """Run a statement and return all rows (an open result would block the next one)."""
        rows: list[Row] = self.connection.execute(sql, list(parameters)).fetchall()
        return rows

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the body in one DuckDB transaction."""
        self.connection.begin()
        try:
            yield
        except BaseException:
            with contextlib.suppress(duckdb.Error):
                self.connection.rollback()
            raise
        self.connection.commit()

    def insert(
        self,
        relation: Relation,
        rows: Sequence[Row],
        appended: pa.Table | None = None,
        *,
        schema: str = "main",
    ) -> None:
        """Add rows: a few as values, more by Arrow (which takes a millisecond to begin).

        `appended` holds more of them, as columns.
        """
        if appended is None and not rows:
            return
        if appended is None and len(rows) <= VALUES_ROWS_MAX:
            marks = ", ".join(
                "make_timestamp(?)" if column.type == "TIMESTAMP" else "?"
                for column in relation.columns
            )
            for row in rows:
                self.query(f"INSERT INTO {schema}.{relation.name} VALUES ({marks})", row)
            return
        incoming = _arrow(relation, rows) if rows else appended
        if rows and appended is not None:
            incoming = pa.concat_tables([appended, incoming])
        assert incoming is not None
        # DuckDB finds the variable by its name, which costs less than to register it.
        self.connection.execute(f"INSERT INTO {schema}.{relation.name} SELECT * FROM incoming")

    def describe(self, relation: Relation, kind: str, name: str) -> None:
        """Attach the documentation of a relation to its table or view."""
        self.connection.execute(f"COMMENT ON {kind} {name} IS {quoted(relation.comment)}")
        for one in relation.columns:
            self.connection.execute(
                f'COMMENT ON COLUMN {name}."{one.name}" IS {quoted(one.comment)}'
            )

    def show_events(self, relation: Relation) -> None:
        """Make the view over hot rows and segments of an event relation."""
        found = self.query(
            "SELECT path FROM segments WHERE relation = ? ORDER BY level DESC, path",
            [relation.name],
        )
        query = f"SELECT * FROM hot.{relation.name}"
        if found:
            # Absolute, since relative paths would be the reader's.
            paths = [str(self.layout.folder / str(path)) for (path,) in found]
            query += f" UNION ALL SELECT * FROM {read_segments(paths)}"
        self.connection.execute(f"CREATE OR REPLACE VIEW {relation.name} AS {query}")
        self.describe(relation, "VIEW", relation.name)

    def create(self) -> None:
        """Make everything in an empty file."""
        with self.transaction():
            self.connection.execute("CREATE SCHEMA hot")
            for relation in STATE:
                self.connection.execute(relation.ddl("main"))
                self.describe(relation, "TABLE", relation.name)
            for relation in EVENTS:
                self.connection.execute(relation.ddl("hot"))
                self.show_events(relation)
            for question in QUESTIONS:
                self.connection.execute(question.ddl)
                self.connection.execute(question.comment_ddl())
            self.insert(DOCUMENTATION, _documentation())
            self.set_meta("schema_version", str(SCHEMA_VERSION))
            self.set_meta("root", str(self.layout.root))
            self.set_meta("published_at", "")

    def meta(self) -> dict[str, str]:
        """Return what the file says of itself."""
        return {str(key): str(value) for key, value in self.query("SELECT key, value FROM meta")}

    def set_meta(self, key: str, value: str) -> None:
        """Note something about the file."""
        self.connection.execute("DELETE FROM meta WHERE key = ?", [key])
        self.connection.execute("INSERT INTO meta VALUES (?, ?)", [key, value])

    def check(self) -> None:
        """Read all that is in the file and compare it with itself and its segments."""
        try:
            version = self.meta().get("schema_version")
            if version != str(SCHEMA_VERSION):
                raise Damaged(f"schema version {version}, this program has {SCHEMA_VERSION}")
            read_whole(self.connection)
            files = []
            for path, size in self.query("SELECT path, bytes FROM segments"):
                file = self.layout.folder / str(path)
                if not file.is_file() or file.stat().st_size != size:
                    raise Damaged(f"segment {file} is missing or has another size")
                files.append(str(file))
            if files:  # each is opened, but its rows aren't read
                self.query("SELECT count(*) FROM parquet_file_metadata(?)", [files])
            for partition, wanted, found in self.query(
                "SELECT partition, any_value(p.sequence), count(t.sequence) FROM positions p"
                " LEFT JOIN (SELECT partition, sequence FROM transactions) t USING (partition)"
                " GROUP BY partition HAVING any_value(p.sequence) <> count(t.sequence)"
            ):
                raise Damaged(f"partition {partition}: {found} rows at sequence {wanted}")
        except duckdb.Error as error:
            raise Damaged(str(error)) from error
        if self.meta().get("root") != str(self.layout.root):
            with self.transaction():
                for relation in EVENTS:
                    self.show_events(relation)
                self.set_meta("root", str(self.layout.root))


def read_whole(connection: duckdb.DuckDBPyConnection) -> None:
    """Read all rows of a live file, or of a copy, that a connection uses; duckdb.Error."""
    for name in [*(f"hot.{one.name}" for one in EVENTS), *(one.name for one in STATE)]:
        connection.execute(f"SELECT bit_xor(hash(r)) FROM {name} r").fetchall()


def read_segments(paths: Sequence[str]) -> str:
    """Return what reads Parquet segments in SQL; a folder such as `env=prod` is no column."""
    return f"read_parquet([{', '.join(map(quoted, paths))}], hive_partitioning = false)"


def _arrow(relation: Relation, rows: Sequence[Row]) -> pa.Table:
    fields = arrow_schema(relation)
    columns = zip(*rows, strict=True)
    arrays = [pa.array(c, type=f.type) for c, f in zip(columns, fields, strict=True)]
    return pa.table(arrays, schema=fields)


def _documentation() -> list[Row]:
    asked = [(one.name, one.kind, one.example, one.comment) for one in QUESTIONS]
    events = [(one.name, "view", f"FROM {one.name} LIMIT 10", one.comment) for one in EVENTS]
    state = [(one.name, "relation", f"FROM {one.name}", one.comment) for one in STATE]
    return [*asked, *events, *state]


def open_live(layout: Layout) -> tuple[Live, str]:
    """Open the live file, restored or made again if need be; return it and what was done.

    Raises Unavailable if another program holds the file or the disk is full.
    """
    notes = []
    if layout.live.exists():
        try:
            return _opened(layout, Live.check), ""
        except Damaged as damage:
            notes.append(f"live file set aside: {damage}")
            _set_aside(layout)
    elif _write_ahead(layout).exists():
        _set_aside(layout)  # it must never be replayed into another file
    if layout.public.exists():
        try:
            _restore(layout)
            live = _opened(layout, Live.check)
            return live, "; ".join([*notes, "restored from the published file"])
        except Damaged as damage:
            notes.append(f"published file not used: {damage}")
            _set_aside(layout)
    return _opened(layout, Live.create), "; ".join([*notes, "built anew from the log"])


def _opened(layout: Layout, begin: Callable[[Live], None]) -> Live:
    live = Live(layout)
    try:
        begin(live)
    except BaseException:
        live.close()
        raise
    return live


def _restore(layout: Layout) -> None:
    staged = layout.folder / "restored.tmp"
    shutil.copyfile(layout.public, staged)
    sync(staged)
    staged.rename(layout.live)


def _write_ahead(layout: Layout) -> Path:
    return layout.live.with_name(layout.live.name + ".wal")


def _set_aside(layout: Layout) -> None:
    # One set is kept to be looked at; older ones give way, as far as they can be removed.
    shutil.rmtree(layout.damaged, ignore_errors=True)
    layout.damaged.mkdir(exist_ok=True)
    for path in (layout.live, _write_ahead(layout)):
        if path.exists():
            path.rename(layout.damaged / path.name)
