"""A client for administration, whose errors say what was heard of the connection."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections import deque
from collections.abc import Collection
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ClusterMetadata,
)

from commitlog.adapters.kafka_io import new_admin
from commitlog.adapters.kafka_settings import ClientSettings, error_of
from commitlog.errors import CommitLogError, Unavailable

_HTTP = f"size {int.from_bytes(b'HTTP')}"
"""What Kafka's client makes of the first word of an HTTP server."""
_ANSWER_IS_HTTP = ". That is, an HTTP server answers there: give the address of a Kafka broker"


METADATA_SECONDS_MAX = 4.0
"""How long to wait for an answer before the question is repeated."""


class Administration:
    """A client for administration. Thread-safe."""

    def __init__(self, settings: ClientSettings) -> None:
        """Make the client at its first use."""
        self._settings = settings
        self._lock = threading.Lock()
        self._client: AdminClient | None = None
        # A callback that held this object would keep the client from being freed with it.
        self._heard: deque[KafkaError] = deque(maxlen=1)

    def client(self) -> AdminClient:
        """Return the client."""
        with self._lock:
            if self._client is None:
                self._client = new_admin(self._settings, self._heard.append)
            return self._client

    def result(
        self,
        future: concurrent.futures.Future[Any],
        doing: str,
        timeout_seconds: float,
        *,
        allowed: Collection[int] = (),
    ) -> Any:
        """Wait for an answer within the timeout; None for an error whose code is `allowed`.

        Raises:
            Unavailable: no answer came in time; it says what was heard of the connection.
            CommitLogError: what the cluster's refusal means.
        """
        try:
            # Raised here, it would be in a circle with the future, and keep callers' frames alive.
            error = future.exception(timeout_seconds + 1)
        except concurrent.futures.TimeoutError as late:
            last, where = self._heard_last(), f"{doing} at {self._settings.address}"
            silent = self._settings.silent(where, f"no answer within {timeout_seconds} s")
            raise Unavailable(f"{silent}.{last}") from late
        finally:
            self._listen()
        if error is None:
            return future.result()
        if not isinstance(error, KafkaException):
            raise error
        if error_of(error).code() in allowed:
            return None
        raise self._meaning(error, doing) from error

    def metadata(self, topic: str, doing: str, timeout_seconds: float) -> ClusterMetadata:
        """Return what a broker knows of its cluster and of a topic; errors as of `result`.

        `describe_cluster` aborts the process if a lone broker, late with a heartbeat, lists none.
        """
        deadline, seconds = time.monotonic() + timeout_seconds, 0.5
        while True:
            remaining = max(0.01, deadline - time.monotonic())
            try:
                # No signal is handled meanwhile, so no wait is long.
                return self.client().list_topics(topic, min(seconds, remaining))
            except KafkaException as error:
                if seconds >= remaining:
                    raise self._meaning(error, doing) from error
            self._listen()
            seconds = min(2 * seconds, METADATA_SECONDS_MAX)

    def _meaning(self, error: KafkaException, doing: str) -> CommitLogError:
        last, translated = self._heard_last(), self._settings.translate(error, doing)
        if isinstance(translated, Unavailable) and last:
            return Unavailable(f"{translated}.{last}")
        return translated

    def _listen(self) -> None:
        """Run the callback for what the client had to say since the last time."""
        with self._lock:
            client = self._client
        if client is not None:
            client.poll(0)

    def _heard_last(self) -> str:
        self._listen()
        said = [self._settings.clean(error.str() or error.name()) for error in self._heard]
        return "".join(
            f" Last: {words}{_ANSWER_IS_HTTP if _HTTP in words else ''}" for words in said
        )

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            self._client = None
