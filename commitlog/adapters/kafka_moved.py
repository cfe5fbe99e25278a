"""Where a log is that was moved between clusters, as its clusters record it.

A topic beside the log's own, `LOG.moved`, holds what happened to it on that cluster: that it
arrived there, from where and with what proof, or that it left, and where to. The last record
counts. A log that left accepts no records from any client, since each is larger than its topics
allow. They can still be read.

Genesis names the cluster that a log was made on, and checkpoints, indices and archives name its
topics. An arrival says which topics here continue those, so the log keeps its identity.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from typing import Any

from confluent_kafka import KafkaError, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    NewTopic,
    OffsetSpec,
)

from commitlog.adapters.kafka_administration import Administration, Request
from commitlog.adapters.kafka_io import KafkaReader, Watermarks, new_producer, set_topics
from commitlog.adapters.kafka_settings import ClientSettings
from commitlog.adapters.log_records import to_raw
from commitlog.errors import LogMoved, Unavailable
from commitlog.ports import LogIdentity, Move
from commitlog.protocol import moved_topic, outcomes_topic, transactions_topic

ADMIN_SECONDS = 30.0
LIMIT = "max.message.bytes"
CLOSED = "1"
_NOBODY_SAYS = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED)
"""There is no such topic, or its reader has rights of before there was one."""

Event = dict[str, Any]
"""One record: of an arrival with `here`, `identity` and `moves`, or of a departure without."""


class Moves:
    """What a cluster says of a log's moves to it and away from it."""

    def __init__(
        self, settings: ClientSettings, log: str, admin: Administration | None = None
    ) -> None:
        """Set up without asking, with the cluster's `admin` if there is one."""
        self._settings = settings
        self._topic = moved_topic(log)
        self._log = log
        self._names = (transactions_topic(log), outcomes_topic(log))
        self._admin = admin or Administration(settings)
        self._known: tuple[tuple[str, int], list[Event]] = (("", 0), [])
        """The topic's id and end when it was read last, and what was in it."""

    def events(self, timeout_seconds: float = ADMIN_SECONDS) -> list[Event]:
        """Return what happened, oldest first; empty if the log was never moved."""
        asked, place = TopicCollection([self._topic]), TopicPartition(self._topic, 0)
        topic = self._asked(
            lambda admin, seconds: admin.describe_topics(asked, request_timeout=seconds),
            timeout_seconds,
        )
        if topic is None:
            return []
        latest = {place: OffsetSpec.latest()}  # type: ignore[no-untyped-call]
        end = self._asked(
            lambda admin, seconds: {
                self._topic: admin.list_offsets(latest, request_timeout=seconds)[place]
            },
            timeout_seconds,
        )
        if end is None:
            return []
        read_to = (str(topic.topic_id), end.offset)
        if self._known[0] != read_to:
            self._known = read_to, self._read(end.offset, timeout_seconds)
        return list(self._known[1])

    def _asked(self, ask: Request, timeout_seconds: float) -> Any:
        found = self._admin.answers(ask, "looking for", timeout_seconds, allowed=_NOBODY_SAYS)
        return found[self._topic]

    def _read(self, end: int, timeout_seconds: float) -> list[Event]:
        found: list[Event] = []
        with (
            closing(Watermarks(self._settings)) as watermarks,
            closing(KafkaReader(self._settings, watermarks, self._topic, 0, 0, to_raw)) as reader,
        ):
            deadline = time.monotonic() + timeout_seconds
            while reader.position() < end:
                polled = reader.poll(timeout_seconds=0.2)
                found += [json.loads(raw.value or b"{}") for raw in polled]
                if time.monotonic() > deadline:
                    raise Unavailable(f"{self._topic} did not deliver its records. Retry")
        return found

    def departure(self) -> Event | None:
        """Return where the log is now, None if it is here."""
        return departed(self.events())

    def check_here(self, timeout_seconds: float = ADMIN_SECONDS) -> list[Event]:
        """Raise LogMoved if the log is elsewhere now; return what happened to it."""
        events = self.events(timeout_seconds)
        found = departed(events)
        if found is not None:
            servers = str(found["bootstrap_servers"])
            raise LogMoved(
                f"the log {self._log!r} was moved from {self._settings.address} to {servers}: "
                "connect there. The copy on this cluster accepts no more records",
                servers,
            )
        return events

    def identity(self, here: LogIdentity) -> LogIdentity:
        """Return the identity that the log of these topics had when it was made."""
        return identity_in(self.events(), here)

    def moves(self, here: LogIdentity) -> tuple[Move, ...]:
        """Return the moves that brought the log of these topics here, oldest first."""
        found = _arrival(self.events(), here)
        return tuple(Move.of(one) for one in found["moves"]) if found is not None else ()

    def arrive(
        self, here: LogIdentity, identity: LogIdentity, moves: tuple[Move, ...], factor: int
    ) -> None:
        """Record that the log is in these topics from now on; may be done again."""
        events = self.events()
        # It may have been here before, and have left: then it comes again.
        if departed(events) is not None or _arrival(events, here) is None:
            event = {
                # Programs that know departures only stop here, too, instead of failing.
                "bootstrap_servers": self._settings.address,
                "here": asdict(here),
                "identity": asdict(identity),
                "moves": [asdict(one) for one in moves],
            }
            self._append(event, factor)

    def close_here(self, servers: str, factor: int) -> None:
        """Say where the log goes, then take no record any more; may be done again."""
        if self.departure() is None:
            now = time.time_ns() // 1_000_000
            self._append({"bootstrap_servers": servers, "closed_at_ms": now}, factor)
        set_topics(self._admin.client(), self._names, {LIMIT: CLOSED})

    def _append(self, event: Mapping[str, object], factor: int) -> None:
        config = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
        topic = NewTopic(self._topic, num_partitions=1, replication_factor=factor, config=config)
        self._admin.answers(
            lambda admin, seconds: admin.create_topics([topic], request_timeout=seconds),
            "making",
            ADMIN_SECONDS,
            allowed=(KafkaError.TOPIC_ALREADY_EXISTS,),
        )
        failures: list[str] = []
        producer = new_producer(self._settings)
        producer.produce(
            self._topic,
            key=b"moved",
            value=json.dumps(dict(event)).encode(),
            partition=0,
            on_delivery=lambda error, _: failures.append(str(error)) if error else None,
        )
        if producer.flush(ADMIN_SECONDS) or failures:
            raise Unavailable(f"{self._topic} accepted no record: {failures or 'no answer'}. Retry")


def departed(events: list[Event]) -> Event | None:
    """Return where events say that the log is now, None if it is here."""
    return events[-1] if events and "here" not in events[-1] else None


def identity_in(events: list[Event], here: LogIdentity) -> LogIdentity:
    """Return the identity that the log of these topics had when it was made."""
    found = _arrival(events, here)
    return LogIdentity(**found["identity"]) if found is not None else here


def _arrival(events: list[Event], here: LogIdentity) -> Event | None:
    return next((one for one in reversed(events) if one.get("here") == asdict(here)), None)
