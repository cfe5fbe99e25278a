"""Settings of Kafka's clients, and what their errors mean here.

Callers pass librdkafka's own settings (SASL, TLS, timeouts). They can't change the settings on
which the log's promises rest. Values may be secrets: no message, log line or repr contains them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException

from commitlog.adapters.disk import or_no_files
from commitlog.adapters.kafka_addresses import checked_address
from commitlog.adapters.kafka_file import is_secret
from commitlog.errors import (
    CommitLogError,
    CorruptLog,
    InvalidSettings,
    Unavailable,
    UnsupportedFormat,
    WrongLog,
)
from commitlog.ports import DeliveryFailed
from commitlog.protocol import MESSAGE_BYTES_MAX

logger = logging.getLogger("commitlog.kafka")
logger.addHandler(logging.NullHandler())

_FETCH_BYTES_MAX = 4 * MESSAGE_BYTES_MAX

_COMMON: Mapping[str, Any] = {
    "client.id": "commitlog",
    # A lone record must not wait for company anywhere on its way.
    "socket.nagle.disable": True,
    "socket.keepalive.enable": True,
    # A broker that was started again is found again within half a second.
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 500,
    "retry.backoff.ms": 20,
    # A broker that hangs keeps its connections, and what waits there. Kafka itself gives it up, and
    # has another one lead, after nine seconds.
    "socket.timeout.ms": 10_000,
    # A reader hears so of the new leader; its own request would wait for 40 s.
    "topic.metadata.refresh.interval.ms": 5_000,
}
_ADMIN: Mapping[str, Any] = {
    # Nobody waits for longer before asking again: so what hangs is left, and another broker asked.
    "socket.timeout.ms": 4_000,
}
_COMMON_FIXED: Mapping[str, Any] = {
    # A mistyped name must not make an empty log.
    "allow.auto.create.topics": False,
    "message.max.bytes": MESSAGE_BYTES_MAX,
    "receive.message.max.bytes": _FETCH_BYTES_MAX + 1024 * 1024,
}
_CONSUMER: Mapping[str, Any] = {
    # The broker answers as soon as there is something; until then no thread needs to wake.
    "fetch.wait.max.ms": 30_000,
    # The default, a second, is how long a fetcher sleeps once its queue was full.
    "fetch.queue.backoff.ms": 5,
    "fetch.error.backoff.ms": 50,
    "check.crcs": True,
}
_PATIENT: Mapping[str, Any] = {
    # After a fetch that brought records, sleep before the next one, which then brings a batch. With
    # nothing to fetch, the request waits at the broker and costs both sides almost nothing.
    "queued.min.messages": 1,
    "fetch.message.max.bytes": 16 * 1024 * 1024,
}
_CONSUMER_FIXED: Mapping[str, Any] = {
    # The client asks for a group id; without subscribing it never joins, and stores no offset.
    "group.id": "commitlog",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": False,
    # An offset outside of the log means another log than the one expected, never "start anywhere".
    "auto.offset.reset": "error",
    "isolation.level": "read_uncommitted",
    "fetch.max.bytes": _FETCH_BYTES_MAX,
    "max.poll.interval.ms": 86_400_000,
}
_PRODUCER: Mapping[str, Any] = {
    "linger.ms": 0,
    "message.timeout.ms": 30_000,
    # How long an unknown topic may stay unknown before an append to it fails.
    "topic.metadata.propagation.max.ms": 5_000,
}
_PRODUCER_FIXED: Mapping[str, Any] = {
    "acks": "all",
    # In order and without duplicates while one producer lives, over any number of resends.
    "enable.idempotence": True,
    "max.in.flight.requests.per.connection": 5,
}
_NOT_YOURS = {
    *_COMMON_FIXED,
    *_CONSUMER_FIXED,
    *_PRODUCER_FIXED,
    "bootstrap.servers",
    "metadata.broker.list",
    "max.in.flight",
    "request.required.acks",
    "transactional.id",
    "enable.gapless.guarantee",
} - {"group.id"}
_ALIASES = {"delivery.timeout.ms": "message.timeout.ms", "queue.buffering.max.ms": "linger.ms"}
_UNDERSCORED = {"ssl_ca", "ssl_certificate", "ssl_key", "ssl_engine_callback_data"}
"""Names that contain an underscore."""
_TIMEOUT_SECONDS_MAX = 3600
"""The longest wait of Kafka's client."""


_NO_TOPIC = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}
_OUT_OF_RANGE = {
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError._LOG_TRUNCATION,
}
_NOT_ALLOWED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
}
_BROKEN = {KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError._NOT_IMPLEMENTED}
_LEADER_CHANGES = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.OFFSET_NOT_AVAILABLE,  # a new leader doesn't know yet what all copies have
}
HEARD_SECONDS = 60.0
"""For so long a silent cluster is said to be so for what was heard of its connections."""
_HTTP = f"size {int.from_bytes(b'HTTP')}"
"""What Kafka's client makes of the first word of an HTTP server."""
_REFUSED_FOR_WHAT_IT_IS = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
}


_NO_SECRETS = {
    *("true", "false", "plaintext", "ssl", "sasl_ssl", "sasl_plaintext"),
    *("plain", "gssapi", "oauthbearer", "scram-sha-256", "scram-sha-512"),
}
_ENDED = (
    "no connection lasted. Brokers may hang, security.protocol may not be that of this address"
    " (SSL, SASL_SSL or SASL_PLAINTEXT), or they may want a certificate (ssl.certificate.location)"
)


@dataclass(frozen=True, slots=True)
class _Heard:
    """What was heard of connections, and when."""

    at: float
    said: str

    def is_fresh(self) -> bool:
        return time.monotonic() - self.at < HEARD_SECONDS


class ClientSettings:
    """The settings of one connection's clients; shows no value that the caller passed."""

    def __init__(self, bootstrap_servers: str, passed: Mapping[str, Any]) -> None:
        """Check address and names; a `kafka.` before a name and `_` for `.` are allowed.

        Raises:
            InvalidSettings: an invalid address, or a setting that may not be changed.
        """
        self.address = checked_address(bootstrap_servers)
        self._passed = {_name(name): value for name, value in passed.items()}
        self._refused = self._heard = _Heard(float("-inf"), "")
        for name in self._passed:
            if name in _NOT_YOURS:
                raise InvalidSettings(
                    f"setting {name} can't be changed, since the log's guarantees depend on it. "
                    "Leave it out"
                )

    def __repr__(self) -> str:
        return f"ClientSettings({self.address!r}, {sorted(self._passed)})"

    @property
    def has_credentials(self) -> bool:
        """Whether clients authenticate to the cluster."""
        protocol = str(self._passed.get("security.protocol", "plaintext"))
        return protocol.lower() != "plaintext"

    def admin(self) -> dict[str, Any]:
        """Return the settings of an admin client."""
        return self._merged(_ADMIN, {})

    def consumer(self, *, patient: float = 0.0) -> dict[str, Any]:
        """Return the settings of a consumer; a patient one lets records gather at the broker."""
        late = {"fetch.queue.backoff.ms": max(1, round(patient * 1000))}
        defaults = {**_CONSUMER, **_PATIENT, **late} if patient else _CONSUMER
        return self._merged(defaults, _CONSUMER_FIXED)

    def producer(self) -> dict[str, Any]:
        """Return the settings of a producer."""
        return self._merged(_PRODUCER, _PRODUCER_FIXED)

    def _merged(self, defaults: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
        ours: dict[str, Any] = {"bootstrap.servers": self.address, "logger": logger}
        if "debug" not in self._passed:
            # A broker that is away would be reported twice a second by each client.
            ours["log_level"] = 2
        passed = {**self._passed, "group.id": self._passed.get("group.id", "commitlog")}
        if "group.id" not in fixed:
            del passed["group.id"]
        return {**_COMMON, **defaults, **_COMMON_FIXED, **fixed, **passed, **ours}

    def clean(self, text: str) -> str:
        """Return a message without the values that the caller passed.

        Not only without passwords: one may stand where it doesn't belong. Numbers stay, as ports
        and timeouts are numbers too, unless the setting's name says that it is a secret.
        """
        for name, value in self._passed.items():
            shown = str(value)
            is_plain = len(shown) <= 3 or shown.isdigit() or shown.lower() in _NO_SECRETS
            if shown and (is_secret(name) or not is_plain):
                text = text.replace(shown, "***")
        return text

    def translate(self, error: KafkaError | KafkaException, doing: str) -> CommitLogError:
        """Return our error for one of Kafka's, which says what to do next."""
        kafka_error = error_of(error)
        code = kafka_error.code()
        said = self.clean(f"{kafka_error.name()}: {kafka_error.str()}")
        where = f"{doing} at {self.address}"
        if code in _NO_TOPIC:
            return WrongLog(
                f"{where}: the topic or partition does not exist ({said}). Check the address and "
                "the log name; wait for the `ready` line of a `commitlog up` that is starting; or"
                " create the log with `commitlog up` or `commitlog init`, which also completes an"
                " interrupted one"
            )
        if code in _OUT_OF_RANGE:
            return CorruptLog(
                f"{where}: the offset is out of range ({said}): the topic was truncated or "
                "created again. Stop and run `commitlog verify`"
            )
        if code in _BROKEN:
            return CorruptLog(f"{where}: the broker's data is broken ({said}). Stop and repair it")
        if code in _NOT_ALLOWED:
            self.hear(kafka_error)
            return Unavailable(f"{where}: {_refuses(said)}")
        if code == KafkaError.UNSUPPORTED_VERSION:
            return UnsupportedFormat(f"{where}: the brokers are too old ({said}): 4.0 or newer")
        if code in {KafkaError._INVALID_ARG, KafkaError._CONFLICT}:
            advice = _MECHANISMS if "GSSAPI" in said else "Correct the setting"
            return InvalidSettings(f"{where}: {said}. {advice}")
        if code == KafkaError.INVALID_REPLICATION_FACTOR:
            return InvalidSettings(f"{where}: {said} Ask for fewer copies, or start more brokers")
        return self.silent(where, f"no answer ({said})")

    def hear(self, error: KafkaError) -> None:
        """Remember why there is no connection: later errors say only that the cluster is away.

        A client tells its callback, tries again, and lets whatever waits run into its timeout.
        """
        said, heard = self.clean(f"{error.name()}: {error.str()}"), ""
        if error.code() in _NOT_ALLOWED:
            self._refused = _Heard(time.monotonic(), _refuses(said))
        elif error.code() == KafkaError._SSL:
            heard = (
                f"there is no TLS connection ({said}). Correct the settings that begin with ssl."
            )
            self._refused = _Heard(time.monotonic(), heard)
        elif error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._heard = _Heard(time.monotonic(), self.clean(error.str() or error.name()))
        elif not self._heard.is_fresh():
            self._heard = _Heard(time.monotonic(), _ENDED)

    def trouble(self) -> str:
        """Return why the cluster lets nobody in, as heard of late; empty if it seems to be away."""
        return self._refused.said if self._refused.is_fresh() else ""

    def silent(self, where: str, said: str) -> Unavailable:
        """Return the error for a question without an answer, with the likeliest reason."""
        if trouble := self.trouble():
            return Unavailable(f"{where}: {trouble}")
        advice = or_no_files("Check that the cluster runs, then retry")
        last = f". Last: {self._heard.said}" if self._heard.is_fresh() else ""
        is_http = ". That is, an HTTP server answers there: give the address of a Kafka broker"
        return Unavailable(f"{where}: {said}. {advice}{last}{is_http if _HTTP in last else ''}")

    def delivery_failed(
        self, error: KafkaError, topic: str, cause: KafkaError | None = None
    ) -> DeliveryFailed:
        """Classify a failed append; see `appended_of`. `cause` failed its producer for good."""
        appended = appended_of(error)
        shown = error if cause is None else cause
        said = self.clean(f"{shown.name()}: {shown.str()}")
        fate = "it is not in the log" if appended is False else "it may be in the log"
        if appended is None and (trouble := self.trouble()):
            fate = f"{fate}; {trouble}"
        return DeliveryFailed(
            f"{topic} at {self.address} did not acknowledge a record ({said}); {fate}",
            appended=appended,
        )


_MECHANISMS = (
    "Set sasl.mechanism to PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER: without it, or with"
    " GSSAPI, Kafka's client asks for Kerberos, which it can't do here"
)


def _refuses(said: str) -> str:
    return (
        f"the cluster refuses these credentials ({said}). Correct the settings that begin with"
        " sasl. or ssl., or the topics' ACLs"
    )


def appended_of(error: KafkaError) -> Literal[False] | None:
    """Return False if a record that failed so is certainly not in the log, else None.

    Certain are only refusals of the record itself, since the broker refuses every copy. Any other
    error may hide an earlier send that was appended while its acknowledgement was lost: the record
    went back to the queue, and there it was purged, or refused for rights withdrawn meanwhile, or
    for a topic that a just started broker doesn't know yet. A timeout says nothing at all.
    """
    return False if error.code() in _REFUSED_FOR_WHAT_IT_IS else None


def ends_reading(error: KafkaError) -> bool:
    """Return True if reading can't continue; the client recovers from all other errors itself."""
    code = error.code()
    ends = code in _NO_TOPIC or code in _OUT_OF_RANGE or code in _NOT_ALLOWED or code in _BROKEN
    return ends or bool(error.fatal())


def is_passing(error: KafkaError | KafkaException) -> bool:
    """Return True if a partition may merely have no known leader just now.

    `_DESTROY_BROKER`: the client lets go of a broker that it knew by another address before.
    """
    code = error_of(error).code()
    is_gone = code == KafkaError._DESTROY_BROKER
    return is_gone or code in _LEADER_CHANGES or code in _NO_TOPIC


def error_of(error: KafkaError | KafkaException) -> KafkaError:
    """Return the KafkaError in an exception."""
    found = error.args[0] if isinstance(error, KafkaException) else error
    assert isinstance(found, KafkaError)
    return found


def check_timeout(seconds: object) -> None:
    """Refuse timeouts that Kafka's client can't handle."""
    if not isinstance(seconds, int | float) or not 0 < seconds <= _TIMEOUT_SECONDS_MAX:
        raise InvalidSettings(
            f"timeout cannot be {seconds!r}: give seconds, above 0 and at most"
            f" {_TIMEOUT_SECONDS_MAX}"
        )


def _name(name: str) -> str:
    """Return librdkafka's name of a setting that may be written as a Python keyword."""
    name = name.removeprefix("kafka.").removeprefix("kafka_")
    if "." not in name and name not in _UNDERSCORED:
        name = name.replace("_", ".")
    return _ALIASES.get(name, name)
