"""SQL on tables of format `commitlog`: what works, and what says that it doesn't."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, lit
from pyspark.sql.readwriter import DataFrameWriter

from commitlog.errors import InvalidRequest
from commitlog.spark import NotInSql
from tests.spark_world import ON_SPARK, SparkWorld

pytestmark = ON_SPARK

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
SECRET = "hunter2-in-plain-sight"
CATALOG = "spark.sql.catalog.spark_catalog"
_numbers = itertools.count()


class Sql:
    """A session, and a table in the log with one row."""

    def __init__(self, world: SparkWorld) -> None:
        self.world = world
        self.session: SparkSession = world.spark.newSession()
        number = next(_numbers)
        self.table = f"sql$t{number}"
        self.name = f"orders{number}"
        world.create(self.table, SCHEMA)
        world.client.append(self.table, pa.table({"id": [1], "name": ["a"]}, schema=SCHEMA))

    def reach(self, **more: str) -> str:
        given = self.world.options | {"table": self.table} | more
        return ", ".join(f"`{name}` '{value}'" for name, value in given.items())

    def create(self, **more: str) -> None:
        self(f"CREATE TABLE {self.name} USING commitlog OPTIONS ({self.reach(**more)})")

    def __call__(self, text: str) -> list[tuple[object, ...]]:
        return [tuple(row) for row in self.session.sql(text).collect()]

    def fails(self, text: str, says: str) -> None:
        with pytest.raises(PySparkException) as caught:
            self(text)
        assert says in str(caught.value), str(caught.value)[-1500:]

    def refuses(self, text: str, says: str) -> None:
        with pytest.raises(NotInSql) as caught:
            self(text)
        assert says in str(caught.value), str(caught.value)[-1500:]

    def unheard(self, text: str) -> None:
        """Run a statement as a Spark does that hasn't imported this package."""
        session: Any = self.session
        session._jsparkSession.sql(text)


@pytest.fixture
def sql(world: SparkWorld) -> Sql:
    return Sql(world)


def test_rows_are_inserted_replaced_and_read_at_a_version(sql: Sql) -> None:
    sql.create()
    sql(f"INSERT INTO {sql.name} VALUES (2, 'b')")
    sql(f"INSERT INTO {sql.name} (id) VALUES (3)")
    assert sorted(sql(f"SELECT * FROM {sql.name}"))[:2] == [(1, "a"), (2, "b")]
    other = Sql(sql.world)
    other.create()
    # Columns of the same names and types come as they are, with the other table's options or none.
    copy = f"SELECT * FROM {sql.name} WHERE id = 2"
    plain = "SELECT id, cast(id AS string) AS name FROM range(7, 8)"
    for rows in (copy, plain):
        with pytest.raises(PySparkException, match="In the second name the table: INSERT INTO"):
            sql.unheard(f"INSERT INTO {other.name} {rows}")
    assert len(sql.world.rows(other.table)) == 1
    for rows in (copy, plain):
        sql(f"/* \U0001f600 */ INSERT INTO {other.name} {rows}")
    assert len(sql.world.rows(sql.table)) == 3
    other_rows = [(row["id"], row["name"]) for row in sql.world.rows(other.table)]
    assert other_rows == [(1, "a"), (2, "b"), (7, "7")]
    frame = sql.session.table(sql.name).select("name", "id").filter("id = 3")
    frame.write.format("commitlog").options(**sql.world.options, path=other.table).mode(
        "append"
    ).save()
    assert len(sql.world.rows(other.table)) == 4
    sql(f"INSERT OVERWRITE {sql.name} VALUES (9, 'z')")
    assert sql(f"SELECT * FROM {sql.name}") == [(9, "z")]
    sql(
        f"CREATE TEMPORARY VIEW old{sql.name} USING commitlog"
        f" OPTIONS ({sql.reach(versionAsOf='2')})"
    )
    assert sql(f"SELECT * FROM old{sql.name}") == [(1, "a")]
    sql.world.client.open(sql.table).tags.create("first", 2)
    assert sql(f"SELECT * FROM {sql.name} WITH (tag = 'first')") == [(1, "a")]


ALTERED = [
    "ADD COLUMN x int",
    "ADD COLUMNS (x int, y int)",
    "DROP COLUMN name",
    "RENAME COLUMN name TO title",
    "ALTER COLUMN id TYPE string",
    "ALTER COLUMN id COMMENT 'a number'",
    "REPLACE COLUMNS (x int)",
    "SET TBLPROPERTIES ('a' = 'b')",
    "UNSET TBLPROPERTIES ('a')",
    "SET LOCATION '/tmp/x'",
    "CLUSTER BY (id)",
    "ADD PARTITION (id = 1)",
]


def test_alter_table_is_refused_when_it_is_said(sql: Sql) -> None:
    sql.create()
    before = sql(f"DESCRIBE TABLE EXTENDED {sql.name}")
    for change in ALTERED:
        sql.refuses(f"ALTER TABLE {sql.name} {change}", "`CommitLog.add_columns`")
    sql.refuses(
        f"/* all of it */ alter  TABLE spark_catalog.`default`.{sql.name} ADD COLUMN x int",
        f"not the table `spark_catalog`.`default`.`{sql.name}` of the log",
    )
    for change in (f"TABLE {sql.name}", f"COLUMN {sql.name}.id"):
        sql.refuses(
            f"COMMENT ON {change} IS 'mine'", "COMMENT ON would change only Spark's catalog"
        )
    sql("DECLARE OR REPLACE VARIABLE said STRING")
    sql(f"SET VAR said = 'ALTER TABLE {sql.name} ADD COLUMN x int'")
    for said in ("said", f"'ALTER TABLE {sql.name} ADD COLUMN x int'"):
        sql.refuses(f"EXECUTE IMMEDIATE {said}", "`CommitLog.add_columns`")
    assert sql("EXECUTE IMMEDIATE 'SELECT 1'") == [(1,)]
    added = f"ALTER TABLE {sql.name} ADD COLUMN x int;"
    made = f"CREATE TABLE other{sql.name} (id int) USING commitlog OPTIONS ({sql.reach()});"
    for script, says in (
        (f"SELECT 1; {added}", "`CommitLog.add_columns`"),
        (f"IF true THEN {added} END IF;", "`CommitLog.add_columns`"),
        (f"SELECT 1; {made}", "CREATE TABLE with columns does not create a table"),
    ):
        sql.refuses(f"BEGIN {script} END", says)
    assert sql(f"BEGIN SELECT 'alter'; SELECT count(*) FROM {sql.name}; END") == [(1,)]
    assert sql(f"DESCRIBE TABLE EXTENDED {sql.name}") == before
    sql(f"ALTER TABLE {sql.name} RENAME TO {sql.name}_new")
    assert sql(f"SELECT * FROM {sql.name}_new") == [(1, "a")]


def test_columns_that_were_altered_unheard_are_refused_when_they_are_used(sql: Sql) -> None:
    sql.create()
    sql.unheard(f"ALTER TABLE {sql.name} ADD COLUMN x int")
    sql.fails(f"SELECT id FROM {sql.name}", "x is new. ALTER TABLE changes only the catalog")
    sql.fails(f"INSERT INTO {sql.name} VALUES (1, 'a', 3)", "CommitLog.add_columns")
    sql.unheard(f"ALTER TABLE {sql.name} DROP COLUMN x")
    assert sql(f"SELECT * FROM {sql.name}") == [(1, "a")]
    sql.unheard(f"ALTER TABLE {sql.name} RENAME COLUMN name TO title")
    sql.fails(f"SELECT * FROM {sql.name}", "Spark's catalog has other columns")
    sql.unheard(f"ALTER TABLE {sql.name} DROP COLUMN id")
    sql.fails(f"SELECT * FROM {sql.name}", "ALTER TABLE changes only the catalog")
    sql(f"CREATE OR REPLACE TABLE {sql.name} USING commitlog OPTIONS ({sql.reach()})")
    assert sql(f"SELECT * FROM {sql.name}") == [(1, "a")]


def test_tables_that_are_not_in_the_log_are_refused(sql: Sql) -> None:
    absent = sql.reach(table="sql$absent")
    sql.fails(f"CREATE TABLE made USING commitlog OPTIONS ({absent})", "sql$absent")
    for start in ("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", "create or replace table"):
        made = f"{start} {sql.name} (id bigint) USING CommitLog OPTIONS ({absent})"
        sql.refuses(made, "(`CommitLog.create_table`)")
    options = sql.reach()
    made = f"CREATE TABLE made USING commitlog OPTIONS ({options}) AS SELECT 7L AS id, 'c' name"
    sql.refuses(made, "AS SELECT makes no table in the log")
    sql.refuses(made.replace("CREATE", "CREATE OR REPLACE"), "AS SELECT makes no table in the log")
    catalog, columns = sql.session.catalog, sql.world.read(sql.table).schema
    given = sql.world.options | {"table": sql.table}
    with pytest.raises(NotInSql, match="createTable with columns"):
        catalog.createTable("made", source="commitlog", schema=columns, **given)
    assert [t for t in catalog.listTables() if t.name in ("made", sql.name)] == []
    assert sql.world.rows(sql.table) == [{"id": 1, "name": "a"}]
    # Where nobody refuses it, Spark answers OK: the first use is what tells.
    sql.unheard(f"CREATE TABLE {sql.name} (id bigint) USING commitlog OPTIONS ({absent})")
    for use in (f"SELECT * FROM {sql.name}", f"INSERT INTO {sql.name} VALUES (1)"):
        sql.fails(use, "DROP TABLE it, make the table in the log (`CommitLog.create_table`)")
    sql.fails(f"CREATE TABLE made USING commitlog TBLPROPERTIES ({options})", "as OPTIONS (…)")
    for lost in ("COMMENT 'mine'", "TBLPROPERTIES ('mine' = 'x')"):
        made = f"CREATE TABLE made USING commitlog OPTIONS ({options}) {lost}"
        sql.fails(made, "COMMENT and TBLPROPERTIES have no effect")
    place = f"CREATE TABLE made USING commitlog OPTIONS ({options}) LOCATION '/tmp/made'"
    sql.fails(place, "LOCATION has no effect")
    sql.session.conf.set(CATALOG, "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    try:
        sql.refuses(f"CREATE TABLE made USING commitlog OPTIONS ({options})", "TEMPORARY VIEW")
    finally:
        sql.session.conf.unset(CATALOG)


EXPLAINED = {
    "UPDATE {} SET name = 'z'": "Use `CommitLog.update`",
    "DELETE FROM {}": "Use `CommitLog.delete`",
    "WITH old AS (SELECT 1L AS id) DELETE FROM {} WHERE id = 1": "Use `CommitLog.delete`",
    "MERGE INTO {} t USING (SELECT 1L AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE": (
        "Use `commitlog.spark.merge`"
    ),
    "TRUNCATE TABLE {}": "Use `CommitLog.delete` with the predicate 'true'",
    "SELECT * FROM {} VERSION AS OF 1": "Write WITH (tag = '…')",
    "SELECT 1 WHERE EXISTS (SELECT * FROM {} TIMESTAMP AS OF '2013-07-01')": "timestampAsOf",
    "SELECT * FROM {} WITH (versionAsOf = '1')": "Write WITH (tag = '…')",
}
EXPLAINED_OF_TABLES = {
    "TRUNCATE TABLE {} PARTITION (id = 1)": "Use `CommitLog.delete`",
    "INSERT INTO {} REPLACE WHERE id = 1 VALUES (1, 'b')": "Use `CommitLog.delete` and INSERT",
    "INSERT OVERWRITE {} PARTITION (id = 1) VALUES ('b')": "replaces all rows",
    "ALTER TABLE {} ADD CONSTRAINT c CHECK (id > 0)": "Check rows before",
    "CREATE TABLE copy LIKE {}": "another name of",
    "CREATE TABLE copy LIKE {} USING commitlog": "another name of",
    "ANALYZE TABLE {} COMPUTE STATISTICS": "Leave it out",
    "MSCK REPAIR TABLE {}": "Use `commitlog verify`",
    "LOAD DATA INPATH 'x' INTO TABLE {}": "use INSERT INTO",
    "CREATE INDEX i ON {} (id)": "Use `CommitLog.create_index`",
    "DROP INDEX i ON {}": "drop_index(name)`",
    "FROM {0} INSERT INTO {0} SELECT id + 1, name INSERT INTO {0} SELECT id + 2, name": (
        "Write a statement for each INSERT"
    ),
    "WITH q AS (SELECT 1L AS id, 'b' AS name) FROM q"
    " INSERT INTO nowhere SELECT id INSERT INTO {} SELECT *": "theirs would stay if it failed",
    "BEGIN WITH q AS (SELECT 1L AS id, 'b' AS name) FROM q"
    " INSERT INTO {0} SELECT * INSERT INTO {0} SELECT *; END": "Write a statement for each INSERT",
    "OPTIMIZE {}": "Use `CommitLog.compact`",
    "vacuum {}": "Use `commitlog maintain`",
    "RESTORE TABLE {} TO VERSION AS OF 1": "Use `commitlog rollback`",
    "DESCRIBE HISTORY {}": "Read the log",
}


def test_what_sql_cannot_do_fails_and_changes_nothing(sql: Sql) -> None:
    sql.create()
    view = f"view_{sql.name}"
    sql(f"CREATE TEMPORARY VIEW {view} USING commitlog OPTIONS ({sql.reach()})")
    for statement, instead in EXPLAINED.items():
        sql.refuses(statement.format(sql.name), instead)
        if "TRUNCATE" not in statement:  # Of a view, Spark says what it expects.
            sql.refuses(statement.format(view), instead)
    for statement, instead in EXPLAINED_OF_TABLES.items():
        sql.refuses(statement.format(sql.name), instead)
    assert sql.world.rows(sql.table) == [{"id": 1, "name": "a"}]


def test_writers_of_frames_write_into_the_log_or_say_how(sql: Sql) -> None:
    sql.create()
    given = sql.world.options | {"table": sql.table}
    frame = sql.session.createDataFrame([(2, "b")], "id long, name string")

    def writer(mode: str = "append") -> DataFrameWriter:
        return frame.write.format("commitlog").options(**given).mode(mode)

    def to(name: str) -> Any:
        return frame.writeTo(name).using("commitlog").options(**given)

    stream = sql.world.files(sql.name, [{"id": 3, "name": "c"}]).select("id", "name").writeStream
    stream = stream.format("commitlog").options(**given)
    stream = stream.option("checkpointLocation", str(sql.world.checkpoint(sql.name)))
    plain = sql.world.files("none").writeStream
    refused: dict[str, list[Callable[[], object]]] = {
        "an unusable name": [
            lambda: writer().saveAsTable("made"),
            lambda: writer("error").saveAsTable("made"),
            lambda: frame.write.saveAsTable("made", "commitlog", "append", **given),
            lambda: writer("overwrite").saveAsTable(sql.name),
            lambda: to("made").create(),
            lambda: to(sql.name).replace(),
            lambda: to("made").createOrReplace(),
            lambda: stream.toTable("made"),
        ],
        "no partitions, clusters or buckets": [
            lambda: writer().partitionBy("id"),
            lambda: frame.write.bucketBy(2, "id").format("commitlog"),
            lambda: stream.clusterBy("id"),
            lambda: sql.world.files("none").writeStream.start(
                format="commitlog", partitionBy="id", **given
            ),
        ],
        "no rows of a continuous stream": [
            lambda: (
                sql.world.files("none")
                .writeStream.trigger(continuous="1 second")
                .start(format="commitlog", **given)
            ),
            lambda: stream.trigger(continuous="1 second"),
            lambda: plain.trigger(continuous="1 second").toTable(sql.name),
        ],
        "append or complete.*foreachBatch with `commitlog.spark.upsert`": [
            lambda: sql.world.files("none").writeStream.outputMode("update").format("commitlog"),
            lambda: sql.world.files("none").writeStream.outputMode("Update").toTable(sql.name),
        ],
        "`commitlog.spark.merge`": [
            lambda: to(sql.name).overwrite(col("id") == 1),
            lambda: to(sql.name).overwritePartitions(),
            lambda: frame.mergeInto(sql.name, lit(True)),
        ],
    }
    for says, writes in refused.items():
        for write in writes:
            with pytest.raises(NotInSql, match=says):
                write()
    assert [t for t in sql.session.catalog.listTables() if t.name == "made"] == []
    assert sql.world.rows(sql.table) == [{"id": 1, "name": "a"}]
    # Their columns are the table's by name and type, so Spark passes no options on by itself.
    frame.write.insertInto(sql.name, overwrite=True)
    assert sql.world.rows(sql.table) == [{"id": 2, "name": "b"}]
    frame.write.insertInto(sql.name)
    frame.write.format("commitlog").mode("append").saveAsTable(sql.name)
    frame.writeTo(sql.name).append()
    assert len(sql.world.rows(sql.table)) == 4
    frame.writeTo(sql.name).overwrite(lit(True))
    assert sql.world.rows(sql.table) == [{"id": 2, "name": "b"}]
    frame.write.partitionBy("id").format("parquet").saveAsTable(f"plain_{sql.name}")
    assert sql(f"SELECT * FROM plain_{sql.name}") == [("b", 2)]


def test_what_delta_and_iceberg_have_by_the_tables_name_is_refused(sql: Sql) -> None:
    """Without a format, Spark made the name a Parquet table, and wrote the rows into that."""
    sql.create()
    sql.session.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    frame = sql.session.createDataFrame([(2, "b")], "id long, name string")
    refused: dict[str, Callable[[], object]] = {
        "a table of format parquet, and 'orders.*' is a table of the log": lambda: frame.write.mode(
            "overwrite"
        ).saveAsTable(sql.name),
        r"createOrReplace without a format": lambda: frame.writeTo(sql.name).createOrReplace(),
        "partitionOverwriteMode=static": lambda: frame.write.insertInto(sql.name, overwrite=True),
        "not read the table .* at a version": lambda: sql.session.read.option(
            "versionAsOf", 1
        ).table(sql.name),
    }
    for says, use in refused.items():
        with pytest.raises(NotInSql, match=says):
            use()
    assert sql(f"SELECT * FROM {sql.name}") == [(1, "a")]


def test_a_temporary_view_of_the_log_keeps_no_name_of_the_catalog(sql: Sql) -> None:
    """A job reads `orders` of the log as a view, and saves what it makes of it as `orders`."""
    sql.create()
    view = f"view_{sql.name}"
    sql.session.table(sql.name).createOrReplaceTempView(view)
    frame = sql.session.createDataFrame([(2, "b")], "id long, name string")
    frame.write.mode("overwrite").saveAsTable(view)
    assert sql(f"SELECT * FROM default.{view}") == [(2, "b")]
    frame.createOrReplaceTempView(sql.name)  # which hides the table that would be replaced
    with pytest.raises(NotInSql, match="is a table of the log"):
        frame.write.mode("overwrite").saveAsTable(sql.name)


def test_statements_about_other_tables_are_sparks(sql: Sql) -> None:
    """A table of another format may have columns of ours, with the options that they keep."""
    sql.create()
    other = f"plain_{sql.name}"
    sql.session.table(sql.name).write.format("parquet").saveAsTable(other)
    sql(f"ALTER TABLE {other} ADD COLUMN x int")
    sql(f"ALTER TABLE {other} SET TBLPROPERTIES ('a' = 'commitlog')")
    assert sql(f"SELECT * FROM {other}") == [(1, "a", None)]
    sql(f"FROM {sql.name} INSERT INTO {other} SELECT *, 1 INSERT INTO {other} SELECT *, 2")
    assert len(sql(f"SELECT * FROM {other}")) == 3
    sql(f"CREATE TABLE more_{other} (note string COMMENT 'not commitlog') USING parquet")
    for statement in (
        f"UPDATE {other} SET name = 'z'",
        f"DELETE FROM {other}",
        f"SELECT * FROM {other} VERSION AS OF 1",
        "ALTER TABLE nowhere ADD COLUMN x int",
        "DELETE FROM nowhere",
        "CREATE TABLE commitlog (",
    ):
        with pytest.raises(PySparkException) as caught:
            sql(statement)
        assert not isinstance(caught.value, InvalidRequest), statement


def test_streams_read_and_write_tables_that_sql_made(sql: Sql) -> None:
    sql.create(read="changes", startingVersion="1")
    other = Sql(sql.world)
    sql(f"CREATE TABLE {other.name} USING commitlog OPTIONS ({other.reach()})")
    frame = sql.session.readStream.table(sql.name).selectExpr("id + 10 AS id", "name")
    checkpoint = sql.world.checkpoint(sql.name)
    query = (
        frame.writeStream.format("commitlog")
        .options(**sql.world.options, table=other.table)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(90)
    assert [row["id"] for row in sql.world.rows(other.table)] == [1, 11]
    with pytest.raises(PySparkException, match=r"bootstrap.servers' is missing"):
        frame.writeStream.option("checkpointLocation", f"{checkpoint}-2").trigger(
            availableNow=True
        ).toTable(other.name).awaitTermination(90)


def test_a_secret_is_refused_and_a_file_of_settings_is_read(sql: Sql, tmp_path: Path) -> None:
    for name in ("kafka.sasl.password", "kafka.ssl.key.pem", "storage.aws_secret_access_key"):
        create = f"CREATE TABLE {sql.name} USING commitlog OPTIONS ({sql.reach(**{name: SECRET})})"
        with pytest.raises(PySparkException, match="is a secret") as caught:
            sql(create)
        assert SECRET not in str(caught.value)
    create = f"CREATE TABLE {sql.name} USING commitlog OPTIONS ({sql.reach()})"
    sql.fails(f"{create} TBLPROPERTIES ('kafka.sasl.password' = '{SECRET}')", "is a secret")
    sql.refuses(create.replace("USING", "(id bigint) USING"), "CREATE TABLE with columns")
    settings = tmp_path / "kafka.properties"
    settings.write_text(f"# for the brokers\nsasl.password = {SECRET}\nclient.id=spark-sql\n")
    sql.create(kafkaFile=str(settings))
    assert sql(f"SELECT * FROM {sql.name}") == [(1, "a")]
    sql(f"INSERT INTO {sql.name} VALUES (2, 'b')")
    out = tmp_path / "copy"
    frame = sql.session.table(sql.name)
    frame.write.parquet(str(out))
    # Options of a frame are kept nowhere: what is planned and written of it has no secret.
    direct = sql.world.read(sql.table, **{"kafka.sasl.password": SECRET})
    direct.write.parquet(str(out / "direct"))
    sink = direct.write.format("commitlog").options(**sql.world.options, table=sql.table)
    sink.option("kafka.sasl.password", SECRET).mode("append").save()
    stream = sql.session.readStream.schema(direct.schema).parquet(str(out / "direct")).writeStream
    stream = stream.format("commitlog").options(**sql.world.options, table=sql.table)
    stream = stream.option("kafka.sasl.password", SECRET)
    stream = stream.option("checkpointLocation", str(sql.world.checkpoint(sql.name)))
    query = stream.trigger(availableNow=True).start()
    assert query.awaitTermination(90)
    shown = [
        str(query.recentProgress),
        frame.schema.json(),
        frame._jdf.queryExecution().toString(),
        direct.schema.json(),
        direct._jdf.queryExecution().toString(),
        str(sql(f"DESCRIBE TABLE EXTENDED {sql.name}")),
        str(sql(f"SHOW TBLPROPERTIES {sql.name}")),
    ]
    assert all(SECRET not in text for text in shown)
    found = [p for place in (out, sql.world.root) for p in place.rglob("*") if p.is_file()]
    assert any(p.suffix == ".parquet" for p in found)
    assert any(str(settings).encode() in p.read_bytes() for p in found), "the reference is kept"
    assert [p for p in found if SECRET.encode() in p.read_bytes()] == []
