"""Has Kafka's cleaner remove at once what tombstones name, instead of after a week."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ResourceType,
)

from commitlog.adapters.kafka_io import ALTER_SECONDS, answer_of, meaning, new_admin, set_topics
from commitlog.adapters.kafka_settings import ClientSettings
from commitlog.errors import Unavailable
from commitlog.protocol import TRANSACTIONS_SETTINGS, transactions_topic

AT_ONCE: Mapping[str, str] = {
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "1000",
    "min.cleanable.dirty.ratio": "0.0",
    # The cleaner leaves the segment alone that is written to.
    "segment.ms": "1000",
}
_TOPIC = "DYNAMIC_TOPIC_CONFIG"


@contextmanager
def cleaned_at_once(bootstrap_servers: str, log: str, passed: Mapping[str, Any]) -> Iterator[None]:
    """Set the transactions topic so while the body runs; then as it was.

    Raises Unavailable if Kafka doesn't take it, for lack of rights perhaps.
    """
    with _asked(bootstrap_servers, log, passed, "setting") as (admin, topic):
        own = _own(admin, topic)
        if own == AT_ONCE:  # a killed run has left it so
            own = {n: v for n, v in TRANSACTIONS_SETTINGS.items() if n in AT_ONCE}
        set_topics(admin, [topic], AT_ONCE)
        try:
            yield
        finally:
            set_topics(admin, [topic], {name: own.get(name) for name in AT_ONCE})


def is_cleaned_at_once(bootstrap_servers: str, log: str, passed: Mapping[str, Any]) -> bool:
    """Return whether the topic is set so: a run goes on, or one that was killed has left it.

    Raises Unavailable if Kafka doesn't say it.
    """
    with _asked(bootstrap_servers, log, passed, "reading the settings of") as (admin, topic):
        return _own(admin, topic) == AT_ONCE


@contextmanager
def _asked(
    bootstrap_servers: str, log: str, passed: Mapping[str, Any], doing: str
) -> Iterator[tuple[AdminClient, str]]:
    settings, topic = ClientSettings(bootstrap_servers, passed), transactions_topic(log)
    admin = new_admin(settings)
    try:
        yield admin, topic
    except KafkaException as error:
        doing = f"{doing} the transactions topic for its cleaner"
        raise meaning(admin, settings, error, doing) from None
    except TimeoutError:
        raise Unavailable(
            f"Kafka did not answer within {ALTER_SECONDS:g} s ({doing} {topic})"
        ) from None


def _own(admin: AdminClient, topic: str) -> dict[str, str]:
    """Return those of the topic's own settings that the cleaner works by."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    [asked] = admin.describe_configs([resource], request_timeout=ALTER_SECONDS).values()
    described = answer_of(asked, ALTER_SECONDS)
    return {
        name: str(entry.value)
        for name, entry in described.items()
        if name in AT_ONCE and not entry.is_default and str(entry.source) in {"1", _TOPIC}
    }
