"""SQL on tables of format `commitlog`: what works, and what says that it doesn't."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark_world import SparkWorld

pytestmark = [
    pytest.mark.spark,
    pytest.mark.broker,
    pytest.mark.slow,
    # A call that is cut short would spoil the session for all tests after it.
    pytest.mark.timeout(400),
    # Starting the JVM forks; nothing of Lance runs between that and its start.
    pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning"),
]

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
SECRET = "hunter2-in-plain-sight"
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
    # Columns of the same names and types come as they are, with the other table's options.
    copy = f"SELECT * FROM {sql.name} WHERE id = 2"
    plain = "SELECT id, cast(id AS string) AS name FROM range(3)"
    for rows in (copy, plain):
        sql.fails(
            f"INSERT INTO {other.name} {rows}", "In the second name the table: INSERT INTO … WITH"
        )
    assert len(sql.world.rows(sql.table)) == 3
    assert len(sql.world.rows(other.table)) == 1
    reach = other.reach().replace("` '", "` = '")
    sql(f"INSERT INTO {other.name} WITH ({reach}) {copy}")
    other_rows = [(row["id"], row["name"]) for row in sql.world.rows(other.table)]
    assert other_rows == [(1, "a"), (2, "b")]
    frame = sql.session.table(sql.name).select("name", "id").filter("id = 3")
    frame.write.format("commitlog").options(**sql.world.options, path=other.table).mode(
        "append"
    ).save()
    assert len(sql.world.rows(other.table)) == 3
    sql(f"INSERT OVERWRITE {sql.name} VALUES (9, 'z')")
    assert sql(f"SELECT * FROM {sql.name}") == [(9, "z")]
    sql(
        f"CREATE TEMPORARY VIEW old{sql.name} USING commitlog"
        f" OPTIONS ({sql.reach(versionAsOf='2')})"
    )
    assert sql(f"SELECT * FROM old{sql.name}") == [(1, "a")]
    sql.world.client.open(sql.table).tags.create("first", 2)
    assert sql(f"SELECT * FROM {sql.name} WITH (tag = 'first')") == [(1, "a")]


def test_altered_columns_are_refused_when_the_table_is_used(sql: Sql) -> None:
    sql.create()
    sql(f"ALTER TABLE {sql.name} ADD COLUMN x int")
    sql.fails(f"SELECT id FROM {sql.name}", "x is new. ALTER TABLE changes the catalog alone")
    sql.fails(f"INSERT INTO {sql.name} VALUES (1, 'a', 3)", "CommitLog.add_columns")
    sql(f"ALTER TABLE {sql.name} DROP COLUMN x")
    assert sql(f"SELECT * FROM {sql.name}") == [(1, "a")]
    sql(f"ALTER TABLE {sql.name} RENAME COLUMN name TO title")
    sql.fails(f"SELECT * FROM {sql.name}", "Spark's catalog has other columns")
    sql(f"ALTER TABLE {sql.name} DROP COLUMN id")
    sql.fails(f"SELECT * FROM {sql.name}", "ALTER TABLE changes the catalog alone")


def test_tables_that_are_not_in_the_log_are_refused(sql: Sql) -> None:
    absent = sql.reach(table="sql$absent")
    sql.fails(f"CREATE TABLE made USING commitlog OPTIONS ({absent})", "sql$absent")
    # Spark asks nobody about columns of one's own: the first use is what tells.
    sql(f"CREATE TABLE {sql.name} (id bigint) USING commitlog OPTIONS ({absent})")
    for use in (f"SELECT * FROM {sql.name}", f"INSERT INTO {sql.name} VALUES (1)"):
        sql.fails(use, "DROP TABLE it, make the table in the log (`CommitLog.create_table`)")
    made = f"CREATE TABLE made USING commitlog OPTIONS ({sql.reach()}) AS SELECT 7L AS id, 'c' name"
    sql.fails(made, "made by CREATE TABLE with columns or AS SELECT")
    sql.fails("SELECT * FROM made", "TABLE_OR_VIEW_NOT_FOUND")
    options = sql.reach()
    sql.fails(f"CREATE TABLE made USING commitlog TBLPROPERTIES ({options})", "as OPTIONS (…)")
    place = f"CREATE TABLE made USING commitlog OPTIONS ({options}) LOCATION '/tmp/made'"
    sql.fails(place, "LOCATION has no effect")


NOT_IN_SQL = [
    "UPDATE {} SET name = 'z'",
    "DELETE FROM {}",
    "DELETE FROM {} WHERE id = 1",
    "MERGE INTO {} t USING (SELECT 1 AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE",
    "TRUNCATE TABLE {}",
    "SELECT * FROM {} VERSION AS OF 1",
    "SELECT * FROM {} TIMESTAMP AS OF '2013-07-01'",
    "SELECT * FROM {} WITH (versionAsOf = '1')",
    "INSERT INTO {} REPLACE WHERE id = 1 VALUES (1, 'b')",
    "ALTER TABLE {} ADD PARTITION (id = 1)",
    "MSCK REPAIR TABLE {}",
    "OPTIMIZE {}",
    "DESCRIBE HISTORY {}",
]


def test_what_sql_cannot_do_fails_and_changes_nothing(sql: Sql) -> None:
    sql.create()
    for statement in NOT_IN_SQL:
        with pytest.raises(PySparkException):
            sql(statement.format(sql.name))
    assert sql.world.rows(sql.table) == [{"id": 1, "name": "a"}]


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
