"""The audit of a long log, on as many executors as are asked for, with its progress.

    python -m tests.spark_audit --transactions 1000000 --master 'local-cluster[2,1,1024]'

Fills a log on a broker of its own as a leader with very fast storage would: appends, settings of
which most are refused since another one won, repetitions that the first commit answers, requests
for no table, and several terms. Then Spark decides all of it again, and what it says is printed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow.dataset
import pyspark
from pyspark.sql import SparkSession

from commitlog.adapters.kafka import KafkaLog
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.operations import LanceCommit
from commitlog.model.records import Application, Outcome, Submitted, Transaction
from commitlog.spark import local_session
from commitlog.spark.audit import audit
from consumers.broker.embedded import EmbeddedBroker
from consumers.tools.bench.made_log import append_to, create
from tests import spark_compaction
from tests.benchmarks.verify_cost import IN_BULK, BrokerLog

TABLES = 100
TERM_OUTCOMES = 50_000
SETTING, REPEATED, LOST = 19, 37, 97
"""Every so many transactions one that sets a key, repeats a commit, or names no table."""
SETTING_TABLES = 7
START_SECONDS = 300.0
"""For the broker, beside other work."""


@dataclass
class Filled:
    """What is in a log that was made."""

    outcomes: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    answers: int = 0
    versions: int = 0
    head: str = ""


def transaction(number: int) -> Transaction:
    """Return the request of a number, from 1 on; the same one every time."""
    if number % LOST == 0:
        return append_to("none", number)
    if number % SETTING == 0:
        return setting(f"t{number % SETTING_TABLES}", number)
    first = number - 1 if number % REPEATED == 0 else number
    made = append_to(f"t{first % TABLES}", number)
    return replace(made, application=Application("stream", first, "run"))


def setting(table: str, number: int) -> Transaction:
    """Return a change of a table's configuration that has seen nothing but its creation."""
    message = LanceTransaction(uuid=str(uuid.UUID(int=number)), read_version=1)
    upserts = message.update_config.config_updates
    upserts.update_entries.add(key="owner", value=str(number))
    operation = LanceCommit(
        (table,), "UpdateConfig", 1, message.SerializeToString(deterministic=True)
    )
    return Transaction(message.uuid, (operation,), principal="bench", submitted_at_ms=0)


class Audited(BrokerLog):
    """Begins a new term every so often, and counts what it decides."""

    def __init__(self, log: KafkaLog) -> None:
        """Begin a term on an empty log."""
        self.made = Filled()
        super().__init__(log)

    def decide(self, submitted: Submitted) -> Outcome:
        """Decide a record, in a new term if it is time for one."""
        if self.machine.sequence and self.machine.sequence % TERM_OUTCOMES == 0:
            self.lead()
        outcome, made = super().decide(submitted), self.made
        made.outcomes += 1
        made.statuses[str(outcome.status)] += 1
        made.answers += outcome.answers is not None
        if outcome.answers is None:
            made.versions += sum(result.version > 0 for result in outcome.results)
        made.head = outcome.hash.hex()
        return outcome


def fill(bootstrap_servers: str, name: str, count: int) -> Filled:
    """Make a log, append so many transactions to it, and decide them."""
    with closing(KafkaLog.connect(bootstrap_servers, name, IN_BULK)) as log:
        leader = Audited(log)
        leader.run_all(create(f"t{number}") for number in range(TABLES))
        leader.run_all(transaction(number) for number in range(1, count + 1))
        leader.close()
    return leader.made


@contextmanager
def session(master: str) -> Iterator[SparkSession]:
    """Run a session, of which `local-cluster[...]` starts the executors as processes."""
    with tempfile.TemporaryDirectory(prefix="commitlog-spark-home-") as folder:
        # A worker keeps its applications' files in Spark's home, which should stay as it is.
        for entry in Path(pyspark.__file__).parent.iterdir():
            (Path(folder) / entry.name).symlink_to(entry)
        home = Path(os.environ.setdefault("SPARK_HOME", folder))
        conf = {"spark.executor.memory": "768m"}
        conf["spark.executor.extraJavaOptions"] = os.environ.get("SPARK_SUBMIT_OPTS", "")
        spark = local_session("audit", cores=master, conf=conf)
        try:
            yield spark
        finally:
            spark.stop()
            shutil.rmtree(home / "work", ignore_errors=True)


def run(spark: SparkSession, bootstrap_servers: str, count: int, into: str) -> None:
    """Fill a log, audit it, and print what was found and how long it took."""
    name = f"audited-{uuid.uuid4().hex[:8]}"
    started = time.monotonic()
    made = fill(bootstrap_servers, name, count)
    print(f"filled in {time.monotonic() - started:.0f} s: {made}", flush=True)

    def tell(partition: int, done: int, end: int) -> None:
        rate = done / (time.monotonic() - started)
        print(f"partition {partition}: {done:,} of {end:,}, {rate:,.0f}/s", flush=True)

    options = {"kafka.bootstrap.servers": bootstrap_servers, "log": name}
    started = time.monotonic()
    [found] = audit(spark, options, into=into, on_progress=tell)
    print(f"{found}\n{found.outcomes:,} outcomes in {time.monotonic() - started:.0f} s")
    assert found.is_whole
    assert (found.recomputed, found.head) == (made.outcomes, made.head)
    if into:
        rebuilt = pyarrow.dataset.dataset(f"{into}/log").count_rows()
        versions = pyarrow.dataset.dataset(f"{into}/versions").count_rows()
        print(f"rebuilt: {rebuilt:,} outcomes, {versions:,} versions")
        assert (rebuilt, versions) == (made.outcomes, made.versions)


def main() -> None:
    """Run it on the cluster that is named, or on a broker of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=200_000)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--bootstrap-servers", default="")
    parser.add_argument("--compact", action="store_true", help="compact tables there, too")
    parser.add_argument("--into", default="", help="a folder for the log as Parquet")
    given = parser.parse_args()
    with ExitStack() as stack:
        servers = given.bootstrap_servers
        if not servers:
            root = stack.enter_context(tempfile.TemporaryDirectory(prefix="commitlog-audit-"))
            started = EmbeddedBroker.start(Path(root), start_seconds=START_SECONDS)
            servers = stack.enter_context(started).bootstrap_servers
        spark = stack.enter_context(session(given.master))
        run(spark, servers, given.transactions, given.into)
        if given.compact:
            spark_compaction.run(spark, servers)


if __name__ == "__main__":
    main()
