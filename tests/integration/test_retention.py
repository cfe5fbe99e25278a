"""On a real broker: archive, let Kafka's cleaner remove it, and see that nothing is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    ConfigResource,
    ResourceType,
)

from commitlog import CommitLog
from commitlog.adapters.kafka_cleaning import AT_ONCE
from commitlog.adapters.kafka_io import set_topics
from commitlog.protocol import transactions_topic
from consumers import cli
from consumers.commands.exit_codes import ExitCode
from consumers.tools.archive.log import with_archive
from tests.contract.worlds import KafkaWorld
from tests.integration.test_compaction import QUICKLY_COMPACTED, compact, of_ours
from tests.integration.test_explain import indexed
from tests.integration.test_replay import manifests
from tests.service import SCHEMA, applying, ids_of, leading, rows, with_bytes
from tests.waiting import wait_until

pytestmark = pytest.mark.broker


def client_of(kafka: KafkaWorld) -> CommitLog:
    return CommitLog.connect(kafka.bootstrap_servers, kafka.log_name)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    """Run a command; return its exit code and what it printed as JSON."""
    capsys.readouterr()
    code = cli.main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def at_once(kafka: KafkaWorld) -> dict[str, str | None]:
    """Return the settings by which the cleaner works at once."""
    topic = ConfigResource(ResourceType.TOPIC, transactions_topic(kafka.log_name))
    found = kafka.admin.describe_configs([topic])[topic].result(60)
    return {name: found[name].value for name in AT_ONCE if found[name].value == AT_ONCE[name]}


def by_doctor(capsys: pytest.CaptureFixture[str], where: list[str]) -> Any:
    """Return what the doctor says of the topics."""
    return next(one for one in run(capsys, "doctor", *where)[1] if one["name"] == "topics")


def test_what_the_cleaner_removed_is_verified_and_replayed_from_the_archive(
    kafka: KafkaWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, log = tmp_path / "root", kafka.connect()
    together = with_archive(log, root)  # before there is an archive
    kafka.make_topic(transactions_topic(kafka.log_name), QUICKLY_COMPACTED)
    log.create(tables_root=str(root / "tables"))
    with leading(log, root, checkpoint_seconds=600), client_of(kafka) as client:
        client.create_table("t", SCHEMA)
        for number in range(20):
            client.append("t", rows(number))
        client.delete("t", "id < 5")
    where = ["--bootstrap-servers", kafka.bootstrap_servers, "--log", kafka.log_name]
    alone = [*where, "--root", str(tmp_path / "nobody")]
    where += ["--root", str(root)]
    code, [copied] = run(capsys, "archive", *where, "--give-up")
    assert (code, copied["outcomes"], copied["given_up"]) == (ExitCode.OK, 23, 22)

    topic = transactions_topic(kafka.log_name)
    wait_until(lambda: len(of_ours(compact(kafka, topic))) <= 1, "the cleaner to leave one record")
    code, [found] = run(capsys, "verify", *alone, "--log-only")
    assert (code, found["first_bad_sequence"]) == (ExitCode.STOP, 2), "the topic alone is not whole"
    code, [found] = run(capsys, "verify", *where, "--contents")
    assert (code, found["problems"]) == (ExitCode.OK, [])
    assert (found["outcomes"], found["decided_again"], found["rows"]) == (23, 23, 15)
    code, [built] = run(capsys, "replay", str(tmp_path / "new"), *where)
    assert (code, built["problems"], built["equal_bytes"]) == (ExitCode.OK, [], 22)
    assert manifests(tmp_path / "new") == manifests(root)

    # A committer that lost its checkpoint reads the log from its beginning, and goes on.
    with leading(together, tmp_path / "fresh", checkpoint_seconds=600), client_of(kafka) as client:
        client.append("t", rows(100))
        assert ids_of(client.open("t")) == [*range(5, 20), 100]


SECRET = b"mallory-7f3a@example.org"


def test_the_cleaner_leaves_no_byte_of_rows_that_were_erased(
    kafka: KafkaWorld, broker: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, log = tmp_path / "root", kafka.connect()
    log.create(tables_root=str(root / "tables"))
    # The data of somebody else's broker isn't here.
    data = broker.log_path.parent / "data" if hasattr(broker, "log_path") else tmp_path / "none"
    topics = list(data.glob(f"{kafka.log_name}.*"))
    schema = pa.schema([("id", pa.int64()), ("email", pa.string())])
    with (
        leading(log, root, checkpoint_seconds=600),
        client_of(kafka) as client,
        applying(client),
    ):
        client.create_table("t", schema, primary_key="id")
        for number, email in enumerate(["a@b", SECRET.decode(), "c@d"]):
            client.write_rows("t", [{"id": number, "email": email}], mode="upsert").result(120)
        where = ["--bootstrap-servers", kafka.bootstrap_servers, "--log", kafka.log_name]
        where += ["--root", str(root)]
        assert with_bytes(SECRET, root)
        assert with_bytes(SECRET, *topics) or not topics
        code, [done] = run(
            capsys, "erase", "t", "--where", f"email = '{SECRET.decode()}'", "--reason", "asked",
            "--by", "officer", *where,
        )  # fmt: skip
        left = [copy["copy"] for copy in done["copies"] if not copy["gone"]]
        assert (code, left) == (ExitCode.UNAVAILABLE, ["topic"]), "Kafka waits for a week"
        code, [done] = run(capsys, "erase", "t", "--now", *where)
        assert (code, done["done"]) == (ExitCode.OK, True), done
        assert client.open("t").to_table()["id"].to_pylist() == [0, 2]
        assert at_once(kafka) == {}, "the topic is set as it was"
        set_topics(kafka.admin, [transactions_topic(kafka.log_name)], AT_ONCE)  # a killed run
        assert (by_doctor(capsys, where)["level"], at_once(kafka)) == ("warn", AT_ONCE)
        code, [done] = run(capsys, "erase", "t", *where)
        assert (code, done["done"], at_once(kafka)) == (ExitCode.OK, True, {})
        assert by_doctor(capsys, where)["level"] == "ok"
    # Closed segments are renamed first, and deleted a moment later.
    wait_until(lambda: not with_bytes(SECRET, *topics, root), "the files to go")
    code, [found] = run(capsys, "verify", *where, "--contents")
    assert (code, found["problems"]) == (ExitCode.OK, [])
    assert found["erased"]["writes"] == 1
    assert " by officer " in found["erased"]["newest"][0]


def test_rows_that_expired_are_gone_and_their_record_is_named(
    kafka: KafkaWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, log = tmp_path / "root", kafka.connect()
    kafka.make_topic(transactions_topic(kafka.log_name), QUICKLY_COMPACTED)
    log.create(tables_root=str(root / "tables"))
    where = ["--bootstrap-servers", kafka.bootstrap_servers, "--log", kafka.log_name]
    where += ["--root", str(root)]
    policy = {"rows": "log", "commitlog.maintain.expire-rows-days": "1e-9"}
    expire = ["archive", "--give-up", "--expire-rows", "--by", "clerk"]
    with leading(log, root, checkpoint_seconds=600), client_of(kafka) as client:
        client.create_table("t", SCHEMA, primary_key="id", properties=policy)
        with applying(client):
            written = [client.write_rows("t", rows(n), mode="upsert").result(120) for n in range(3)]
        code, [ran] = run(capsys, *expire, *where)
        assert (code, len(ran["expired"])) == (ExitCode.OK, 1), ran
        code, [again] = run(capsys, *expire, *where)
        assert (code, again["expired"]) == (ExitCode.OK, [])
    topic = transactions_topic(kafka.log_name)
    gone = {one.transaction_offset for one in written}
    wait_until(lambda: not gone & of_ours(compact(kafka, topic)), "the cleaner to take the rows")

    code, [found] = run(capsys, "verify", *where, "--contents")
    assert (code, found["problems"]) == (ExitCode.OK, [])
    assert (found["rows_expired"]["records"], found["rows_expired"]["writes"]) == (1, 3)
    [said] = found["rows_expired"]["newest"]
    assert " by clerk " in said
    code, [built] = run(capsys, "replay", str(tmp_path / "new"), "--rows", "all", *where)
    assert (code, built["problems"], built["rows_expired"]) == (ExitCode.OK, [], [said])
    indexed(root, with_archive(kafka.connect(), root))
    code, [explained] = run(capsys, "explain", written[0].transaction_id, *where)
    assert (code, "expired by record" in str(explained["words"])) == (ExitCode.OK, True)
