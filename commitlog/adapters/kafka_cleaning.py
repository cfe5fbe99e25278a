"""Has Kafka's cleaner remove at once what tombstones name, instead of after a week."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    ConfigResource,
    ResourceType,
)

from commitlog.adapters.kafka_io import ALTER_SECONDS, answer_of, new_admin, set_topics
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
    settings = ClientSettings(bootstrap_servers, passed)
    admin = new_admin(settings)
    topic = ConfigResource(ResourceType.TOPIC, transactions_topic(log))
    try:
        described = answer_of(admin.describe_configs([topic])[topic], ALTER_SECONDS)
        own = {
            name: str(entry.value)
            for name, entry in described.items()
            if name in AT_ONCE and not entry.is_default and str(entry.source) in {"1", _TOPIC}
        }
        if own == AT_ONCE:  # a killed run has left it so
            own = {n: v for n, v in TRANSACTIONS_SETTINGS.items() if n in AT_ONCE}
        set_topics(admin, [topic.name], AT_ONCE)
        try:
            yield
        finally:
            set_topics(admin, [topic.name], {name: own.get(name) for name in AT_ONCE})
    except KafkaException as error:
        raise settings.translate(error, "setting the transactions topic for its cleaner") from None
    except TimeoutError:
        raise Unavailable(f"Kafka did not set {topic.name} within {ALTER_SECONDS:g} s") from None
