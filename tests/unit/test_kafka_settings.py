"""What Kafka's errors mean here, and what a caller may set."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, KafkaException

from commitlog.adapters import kafka_io, kafka_settings
from commitlog.adapters.kafka import KafkaLog
from commitlog.adapters.kafka_settings import ClientSettings, appended_of, ends_reading, is_passing
from commitlog.errors import (
    CommitLogError,
    CorruptLog,
    InvalidSettings,
    Unavailable,
    UnsupportedFormat,
    WrongLog,
)

ADDRESS = "broker:9092"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, WrongLog),
        (KafkaError._UNKNOWN_PARTITION, WrongLog),
        (KafkaError._AUTO_OFFSET_RESET, CorruptLog),
        (KafkaError.OFFSET_OUT_OF_RANGE, CorruptLog),
        (KafkaError._BAD_MSG, CorruptLog),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, Unavailable),
        (KafkaError._AUTHENTICATION, Unavailable),
        (KafkaError.UNSUPPORTED_VERSION, UnsupportedFormat),
        (KafkaError._INVALID_ARG, InvalidSettings),
        (KafkaError.INVALID_REPLICATION_FACTOR, InvalidSettings),
        (KafkaError._TRANSPORT, Unavailable),
        (KafkaError.REQUEST_TIMED_OUT, Unavailable),
    ],
)
def test_errors_say_where_what_and_what_to_do(code: int, kind: type[CommitLogError]) -> None:
    settings = ClientSettings(ADDRESS, {"sasl.password": "correct-horse"})
    for error in (
        KafkaError(code, "it was correct-horse"),
        KafkaException(KafkaError(code, "it was correct-horse")),
    ):
        translated = settings.translate(error, "reading x[0]")
        assert type(translated) is kind
        assert str(translated).startswith(f"reading x[0] at {ADDRESS}: ")
        assert "correct-horse" not in str(translated)
        assert "it was ***" in str(translated)


def test_who_names_no_mechanism_hears_which_there_are() -> None:
    """Kafka's client takes Kerberos then, for which it would have to be compiled anew."""
    settings = {"security.protocol": "SASL_SSL"}
    with pytest.raises(InvalidSettings, match=r"sasl\.mechanism.* SCRAM-SHA-512"):
        KafkaLog.connect("127.0.0.1:1", "commitlog", settings, 1.0)


@pytest.mark.parametrize(
    ("seconds", "topic_error", "partitions", "kind"),
    [
        (0.0, None, {0: None}, Unavailable),
        (0.05, KafkaError.LEADER_NOT_AVAILABLE, {}, Unavailable),
        (0.05, KafkaError.UNKNOWN_TOPIC_OR_PART, {}, WrongLog),
        (0.05, None, {1: None}, WrongLog),
        (60.0, KafkaError.TOPIC_AUTHORIZATION_FAILED, {}, Unavailable),
    ],
)
def test_a_partition_that_the_client_knows_no_more_is_missing_once_a_broker_says_so(
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    topic_error: int | None,
    partitions: dict[int, None],
    kind: type[CommitLogError],
) -> None:
    """A client forgets what a frozen broker told it; a wrong log would end the service."""
    told = KafkaError(topic_error) if topic_error is not None else None
    consumer = Mock()
    consumer.offsets_for_times.side_effect = KafkaException(
        KafkaError(KafkaError._UNKNOWN_PARTITION)
    )
    found = SimpleNamespace(error=told, partitions=partitions)
    consumer.list_topics.return_value = SimpleNamespace(topics={"x": found})
    monkeypatch.setattr(kafka_io, "new_consumer", lambda settings: consumer)
    with pytest.raises(kind) as raised:
        kafka_io.Watermarks(ClientSettings(ADDRESS, {})).end("x", 0, seconds)
    assert type(raised.value) is kind


class _Asked:
    """Answers as brokers do that are asked where a partition ends."""

    def __init__(self, *answers: CommitLogError | int) -> None:
        self._answers = iter(answers)

    def end(self, topic: str, partition: int, timeout_seconds: float) -> int:
        answer = next(self._answers)
        if isinstance(answer, CommitLogError):
            raise answer
        return answer


def test_a_reader_that_is_told_of_no_topic_asks_a_broker_before_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An idle reader was told so by two brokers that had just started, hours apart, and ended."""
    now, told = 0.0, list[Callable[[KafkaError], None]]()
    monkeypatch.setattr(kafka_io, "time", SimpleNamespace(monotonic=lambda: now))

    def consumer(
        settings: ClientSettings, on_error: Callable[[KafkaError], None], **_: float
    ) -> Mock:
        told.append(on_error)
        return Mock(poll=Mock(return_value=None))

    monkeypatch.setattr(kafka_io, "new_consumer", consumer)
    asked: Any = _Asked(7, Unavailable("no answer"), 7, Unavailable("no answer"), WrongLog("gone"))
    reader = kafka_io.KafkaReader(ClientSettings(ADDRESS, {}), asked, "x", 0, 7, Mock())
    missing = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    for asks in (1, 2):
        now += 10_000.0
        told[0](missing)
        assert reader.poll(timeout_seconds=0.0) == [], "it is not asked at once"
        for _ in range(asks):
            now += kafka_io.WRONG_SECONDS
            assert reader.poll(timeout_seconds=0.0) == []
    told[0](missing)
    now += kafka_io.WRONG_SECONDS
    assert reader.poll(timeout_seconds=0.0) == []
    now += kafka_io.WRONG_SECONDS
    for _ in range(2):
        with pytest.raises(WrongLog, match="gone"):
            reader.poll(timeout_seconds=0.0)


def test_who_may_open_nothing_more_is_not_sent_to_the_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = KafkaError(KafkaError._ALL_BROKERS_DOWN)
    plain = str(ClientSettings(ADDRESS, {}).translate(error, "reading x[0]"))
    assert plain.endswith("Check that the cluster runs, then retry")
    refused = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    monkeypatch.setattr(os, "open", Mock(side_effect=refused))
    said = str(ClientSettings(ADDRESS, {}).translate(error, "reading x[0]"))
    assert said.endswith("Too many open files: let this process have more files open (ulimit -n)")
    assert "Check" not in said


def test_a_cluster_is_silent_because_it_refuses_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = ClientSettings(ADDRESS, {"sasl.password": "hunter22"})
    silent = KafkaError(KafkaError._TRANSPORT, "1/1 brokers are down")
    late = KafkaError(KafkaError._MSG_TIMED_OUT)
    settings.hear(silent)
    assert "Check that the cluster runs" in str(settings.translate(silent, "looking"))
    settings.hear(KafkaError(KafkaError._AUTHENTICATION, "who is hunter22?"))
    settings.hear(silent)
    for told in (
        settings.translate(silent, "looking"),
        settings.silent("asking", "no answer within 1 s"),
        settings.delivery_failed(late, "topic"),
    ):
        assert "refuses these credentials (_AUTHENTICATION: who is ***?)" in str(told)
        assert "begin with sasl. or ssl." in str(told)
        assert "Check that the cluster runs" not in str(told)
    monkeypatch.setattr(kafka_settings, "HEARD_SECONDS", 0.0)
    assert "Check that the cluster runs" in str(settings.translate(silent, "looking"))


@pytest.mark.parametrize(
    ("heard", "told"),
    [
        ((KafkaError._SSL, "certificate verify failed"), "there is no TLS connection (_SSL: cert"),
        ((KafkaError._TRANSPORT, "Connection refused"), "Last: Connection refused"),
        ((KafkaError._ALL_BROKERS_DOWN, "0/2 brokers are down"), "security.protocol may not be"),
    ],
)
def test_a_silent_cluster_is_said_to_be_so_for_the_reason_that_was_heard(
    heard: tuple[int, str], told: str
) -> None:
    settings = ClientSettings(ADDRESS, {})
    settings.hear(KafkaError(*heard))
    settings.hear(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    said = str(settings.silent("asking", "no answer within 1 s"))
    assert told in said
    assert "brokers are down" not in said


@pytest.mark.parametrize(
    ("code", "appended"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, False),
        (KafkaError.INVALID_RECORD, False),
        # Each of these may come to a resent record whose first copy was appended.
        (KafkaError._MSG_TIMED_OUT, None),
        (KafkaError._PURGE_QUEUE, None),
        (KafkaError._PURGE_INFLIGHT, None),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, None),
        (KafkaError._UNKNOWN_TOPIC, None),
        (KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, None),
        (KafkaError._FATAL, None),
    ],
)
def test_only_what_every_copy_meets_is_surely_not_appended(code: int, appended: object) -> None:
    assert appended_of(KafkaError(code)) is appended
    failed = ClientSettings(ADDRESS, {}).delivery_failed(KafkaError(code), "x")
    assert failed.appended is appended
    assert ("it is not in the log" if appended is False else "may be") in str(failed)


def test_a_reader_gets_over_what_passes() -> None:
    for code in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT):
        assert not ends_reading(KafkaError(code))
    assert ends_reading(KafkaError(KafkaError._AUTO_OFFSET_RESET))
    assert ends_reading(KafkaError(KafkaError._FATAL, "", True))
    assert is_passing(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
    assert is_passing(KafkaError(KafkaError._DESTROY_BROKER))
    assert is_passing(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE))
    assert not is_passing(KafkaError(KafkaError._AUTHENTICATION))


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("kafka.sasl.username", "sasl.username"),
        ("sasl_username", "sasl.username"),
        ("kafka_sasl_username", "sasl.username"),
        ("ssl_ca", "ssl_ca"),
        ("ssl_ca_location", "ssl.ca.location"),
        ("queue.buffering.max.ms", "linger.ms"),
    ],
)
def test_names_of_settings_may_be_written_as_keywords(given: str, name: str) -> None:
    settings = ClientSettings(ADDRESS, {given: "value"})
    for merged in (settings.admin(), settings.consumer(), settings.producer()):
        assert merged[name] == "value"
    assert "value" not in repr(settings)


@pytest.mark.parametrize(
    "name",
    ["bootstrap.servers", "acks", "enable_auto_commit", "auto.offset.reset", "max.in.flight"],
)
def test_what_the_promises_rest_on_cannot_be_set(name: str) -> None:
    with pytest.raises(InvalidSettings, match="can't be changed"):
        ClientSettings(ADDRESS, {name: "x"})


def test_a_group_id_may_be_given_where_rights_depend_on_it() -> None:
    settings = ClientSettings(ADDRESS, {"group.id": "ours"})
    assert settings.consumer()["group.id"] == "ours"
    assert "group.id" not in settings.producer()
    assert "group.id" not in settings.admin()


@pytest.mark.parametrize(
    "address",
    ["b:1", "b", "b:1,c:2", ",b:1,", "b:1 , c:2", "[::1]:9092", "SASL_SSL://b:1", "10.0.0.7:65535"],
)
def test_an_address_is_what_librdkafka_reads(address: str) -> None:
    assert ClientSettings(address, {}).admin()["bootstrap.servers"] == address


@pytest.mark.parametrize(
    "address",
    [None, 9092, b"b:1", ["b:1"], "", "  ", ",", "b:", "b:x", "b:0", "b:-1", "b:65536", "::1:9092"]
    + ["http://b:1", "kafka://b:1", "b:1 c:2", "b:1,c:x", "b;1", "\0", "b\n:1", "[::1", ":9092"],
)
def test_an_address_that_leads_nowhere_is_refused_at_once(address: object) -> None:
    with pytest.raises(InvalidSettings, match=r"bootstrap_servers.*HOST:PORT"):
        KafkaLog.connect(address, timeout_seconds=60)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [None, "5", -1, 0, float("nan"), float("inf"), 3601])
def test_a_timeout_that_cannot_be_waited_for_is_refused_at_once(seconds: object) -> None:
    with pytest.raises(InvalidSettings, match="timeout cannot be"):
        KafkaLog.connect("127.0.0.1:1", timeout_seconds=seconds)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("protocol", "shown"),
    [("", False), ("PLAINTEXT", False), ("plaintext", False), ("SASL_SSL", True), ("ssl", True)],
)
def test_a_leader_appends_for_others_only_where_nobody_has_rights_of_its_own(
    protocol: str, shown: bool
) -> None:
    passed = {"security.protocol": protocol} if protocol else {}
    assert ClientSettings("here:1", passed).has_credentials is shown
