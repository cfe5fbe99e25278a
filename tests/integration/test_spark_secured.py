"""Spark as one finds it in a company: a cluster that refuses, a token, tables moved into a bucket.

The snippet of the page on Spark runs as it is typed there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from commitlog import CommitLog
from commitlog.adapters.places import use_places
from commitlog.adapters.storage import store_for
from commitlog.errors import InvalidRequest
from consumers.commands.exit_codes import ExitCode
from tests.installed import need
from tests.integration.test_readme import ROOT, run, snippets
from tests.integration.test_roles import Secured, secured_cluster
from tests.object_store import s3_server
from tests.service import SCHEMA, ids_of, rows

need("moto", "obstore")
pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]

LOG, TOKEN = "commitlog", "a-token-of-the-leaders"
LAKE, OTHER = "s3://bucket/lake/tables", "s3://bucket/other"
FILED = ("sasl.username", "sasl.password", "ssl.ca.location")
"""Settings that the snippet leaves to the files."""
TABLES = ("shop$orders", "far$t", "t")
CHILD = """
import json, sys
from commitlog.spark import each_batch, local_session, merge

snippet, folder, after = json.loads(sys.stdin.read())
spark = local_session("secured")
given = spark.createDataFrame([(3, "s"), (4, "s")], "id long, name string")
given.write.json(f"{folder}/in")
stream = spark.readStream.schema("id long, name string").json(f"{folder}/in")
exec(compile(snippet, "docs/spark.md", "exec"))
query.processAllAvailable()
query.stop()
exec(compile(after, "after", "exec"))
spark.stop()
"""
AFTER = """
assert orders.count() == 4
reading = {**SECURED, "kafkaFile": f"{folder}/reader.properties", "table": "shop$orders"}
ids = sorted(row.id for row in spark.read.format("commitlog").options(**reading).load().collect())
assert ids == [1, 2, 3, 4], ids
first = {**reading, "kafkaFile": SECURED["kafkaFile"], "versionAsOf": 2}
assert spark.read.format("commitlog").options(**first).load().count() == 2
given.write.format("commitlog").options(**SECURED, table="far$t").mode("append").save()
merged = merge(given.limit(1), "far$t", on="id", options=SECURED, rows_in_driver=0)
assert merged.updated == 1, merged
changes = spark.readStream.format("commitlog").options(**SECURED, table="far$t", read="changes")


def write(batch, frame):
    batch.merge("t", frame.select("id", "name"), on="id")


feed = changes.load().writeStream.foreachBatch(each_batch(write, SECURED))
feed = feed.option("checkpointLocation", f"{folder}/feed").trigger(availableNow=True).start()
feed.awaitTermination(180)
small = {**SECURED, "rows": "log"}
given.limit(1).selectExpr("id + 2 AS id", "name").write.format("commitlog").options(
    **small, table="shop$orders"
).mode("append").save()
merged = merge(given.selectExpr("id + 2 AS id", "'m' AS name"), "shop$orders", "id", options=small)
assert (merged.updated, merged.inserted) == (1, 1), merged
print(json.dumps([[one.outcomes, one.recomputed, one.differences] for one in found]))
"""


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    """A log of three partitions whose tables were moved into a bucket, and its leaders there."""
    old, outside = tmp_path / "secured" / "root" / "tables", tmp_path / "outside"
    with ExitStack() as ends:
        ends.callback(use_places, "")
        ends.enter_context(pytest.MonkeyPatch.context()).setenv("COMMITLOG_TOKEN", TOKEN)
        ends.enter_context(s3_server())
        made = ends.enter_context(secured_cluster(tmp_path / "secured", LOG))
        domains = ("--partitions", "3", "--domain", "shop=1", "--domain", "far=2")
        assert made.run("init", "init", *domains) == ExitCode.OK
        with ExitStack() as at_first:
            lead(made, at_first, "--places", f"lake={outside}")
            log = at_first.enter_context(client(made))
            for table in TABLES:
                # Another partition decides for this one than for its place.
                location = str(outside / "far") if table == "far$t" else None
                log.create_table(table, SCHEMA, primary_key="id", location=location)
                log.append(table, rows(1, 2))
            assert made.run("writer", "places", "bind", str(old)) == ExitCode.OK
            assert made.run("writer", "places", "bind", str(outside), "lake") == ExitCode.OK
        use_places("")
        for place, there in ((old, LAKE), (outside, OTHER)):
            for path in store_for(str(place)).walk():
                store_for(there).take(path, store_for(str(place)))
            shutil.rmtree(place)
        lead(made, ends, "--tables-root", LAKE, "--places", f"lake={OTHER}")
        ends.enter_context(made.part("writer", "rows"))
        yield made


def lead(secured: Secured, ends: ExitStack, *where: str) -> None:
    for partition in range(3):
        command = ("committer", "--partition", str(partition), *where)
        ends.enter_context(secured.part("committer", *command))


def client(secured: Secured, token: str = "") -> CommitLog:
    return CommitLog.connect(secured.servers, token=token, **secured.settings("writer"))


def test_spark_shows_who_it_is_and_finds_the_tables(secured: Secured, tmp_path: Path) -> None:
    for who in ("etl", "reader", "auditor"):
        settings = secured.settings("writer" if who == "etl" else who)
        lines = (f"{name}={settings[name]}\n" for name in FILED)
        (tmp_path / f"{who}.properties").write_text("".join(lines))
    [snippet] = [one for one in snippets(ROOT / "docs/spark.md") if "SECURED" in one]
    for typed, here in (
        ("kafka:9093", secured.servers),
        ("SCRAM-SHA-512", "PLAIN"),
        ("/etc/commitlog", str(tmp_path)),
        ('"checkpoint"', f'"{tmp_path}/checkpoint"'),
    ):
        assert typed in snippet
        snippet = snippet.replace(typed, here)
    [audited] = run(CHILD, json.dumps([snippet, str(tmp_path), AFTER])).splitlines()
    for outcomes, recomputed, differences in json.loads(audited):
        assert outcomes == recomputed > 2
        assert differences == []
    where = ("--tables-root", LAKE, "--places", f"lake={OTHER}")
    for asked in (("verify", "--contents"), ("doctor",)):
        assert secured.run("auditor", *asked, *where) == ExitCode.OK
    with client(secured, token="another") as log, pytest.raises(InvalidRequest, match="COMMITLOG"):
        log.tables()
    use_places("")
    with client(secured) as log:
        for table in TABLES:
            few = [5, 6] if table == "shop$orders" else []
            assert ids_of(log.open(table)) == [1, 2, 3, 4, *few]
            place = OTHER if table == "far$t" else LAKE
            assert log.table(table).location.startswith(f"{place}/")
    for left in (secured.folder / "root" / "tables", tmp_path / "outside"):
        assert not left.exists(), "nothing is made again at a place without its data"
