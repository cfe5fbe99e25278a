"""How a log's topics are closed once it goes on elsewhere, and where it says so.

A topic beside them, `LOG.moved`, holds one record: where the log is now. And the topics of the log
take no record any more, whoever sends it, since each is larger than they allow. Reading goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from commitlog.adapters.kafka_io import KafkaReader, Watermarks, new_admin, new_producer
from commitlog.adapters.kafka_settings import ClientSettings, error_of
from commitlog.adapters.log_records import to_raw
from commitlog.errors import Unavailable, WrongLog
from commitlog.protocol import moved_topic, outcomes_topic, transactions_topic

ADMIN_SECONDS = 30.0
LIMIT = "max.message.bytes"
CLOSED = "1"
_NOBODY_SAYS = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED)
"""There is no such topic, or its reader has rights of before there was one."""


class Moves:
    """What a cluster says of a log's move away from it."""

    def __init__(
        self, settings: ClientSettings, log: str, admin: AdminClient | None = None
    ) -> None:
        """Set up without asking, by an `admin` client of the cluster's if there is one."""
        self._settings = settings
        self._topic = moved_topic(log)
        self._names = (transactions_topic(log), outcomes_topic(log))
        self._admin = admin or new_admin(settings)

    def note(self) -> dict[str, Any] | None:
        """Return where the log is now, None if it is here."""
        asked = self._admin.describe_topics(
            TopicCollection([self._topic]), request_timeout=ADMIN_SECONDS
        )
        try:
            asked[self._topic].result(ADMIN_SECONDS)
        except KafkaException as error:
            if error_of(error).code() in _NOBODY_SAYS:
                return None
            raise self._settings.translate(error, f"looking for {self._topic}") from error
        watermarks = Watermarks(self._settings)
        reader = KafkaReader(self._settings, watermarks, self._topic, 0, 0, to_raw)
        deadline = time.monotonic() + ADMIN_SECONDS
        try:
            while time.monotonic() < deadline:
                for raw in reader.poll(timeout_seconds=0.2):
                    found: dict[str, Any] = json.loads(raw.value or b"{}")
                    return found
                if reader.end_offset() == 0:
                    return None  # ended before it was written
        finally:
            reader.close()
            watermarks.close()
        raise Unavailable(f"{self._topic} did not deliver its record. Retry")

    def check_here(self, log: str) -> None:
        """Raise WrongLog if the log is elsewhere now."""
        found = self.note()
        if found is not None:
            raise WrongLog(
                f"the log {log!r} was moved from {self._settings.address} to"
                f" {found['bootstrap_servers']}: connect there. What this cluster has of it is a"
                " copy that takes no record any more"
            )

    def close_here(self, note: Mapping[str, object], factor: int) -> None:
        """Say where the log goes, then take no record any more; may be done again."""
        config = {"cleanup.policy": "delete", "retention.ms": "-1"}
        topic = NewTopic(self._topic, num_partitions=1, replication_factor=factor, config=config)
        try:
            self._admin.create_topics([topic])[self._topic].result(ADMIN_SECONDS)
        except KafkaException as error:
            if error_of(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._settings.translate(error, f"making {self._topic}") from error
        if self.note() is None:
            failures: list[str] = []
            producer = new_producer(self._settings)
            value = json.dumps(dict(note)).encode()
            producer.produce(
                self._topic,
                key=b"moved",
                value=value,
                partition=0,
                on_delivery=lambda error, _: failures.append(str(error)) if error else None,
            )
            if producer.flush(ADMIN_SECONDS) or failures:
                raise Unavailable(f"{self._topic} took no record: {failures or 'no answer'}. Retry")
        resources = [
            ConfigResource(
                ResourceType.TOPIC,
                name,
                incremental_configs=[
                    ConfigEntry(LIMIT, CLOSED, incremental_operation=AlterConfigOpType.SET)
                ],
            )
            for name in self._names
        ]
        for future in self._admin.incremental_alter_configs(resources).values():
            future.result(ADMIN_SECONDS)
