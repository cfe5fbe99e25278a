"""A client for administration, which asks again where no answer comes."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ClusterMetadata,
)

from commitlog.adapters.kafka_io import meaning, new_admin
from commitlog.adapters.kafka_settings import ClientSettings, error_of
from commitlog.errors import CommitLogError

FIRST_SECONDS, AGAIN_SECONDS_MAX = 0.5, 4.0
"""How long to wait for an answer before the question is repeated, at first and later."""

Request = Callable[[AdminClient, float], Mapping[str, concurrent.futures.Future[Any]]]
"""To a client, about topics, which takes at most so many seconds."""


class Administration:
    """A client for administration. Thread-safe."""

    def __init__(self, settings: ClientSettings) -> None:
        """Make the client at its first use."""
        self._settings = settings
        self._lock = threading.Lock()
        self._client: AdminClient | None = None

    def client(self) -> AdminClient:
        """Return the client."""
        with self._lock:
            if self._client is None:
                self._client = new_admin(self._settings)
            return self._client

    def answers(
        self,
        ask: Request,
        doing: str,
        timeout_seconds: float,
        *,
        allowed: Collection[int] = (),
    ) -> dict[str, Any]:
        """Return by topic what is answered in time; None for an error whose code is `allowed`.

        A request without an answer is made again, by what brokers know then: for seconds they name
        a broker as the controller, whom the client asks, that is dead or hangs.

        Raises:
            Unavailable: no answer came in time; it says what was heard of the connection.
            CommitLogError: what the cluster's refusal means.
        """
        deadline, seconds = time.monotonic() + timeout_seconds, FIRST_SECONDS
        while True:
            seconds = max(0.01, min(seconds, deadline - time.monotonic()))
            found: dict[str, Any] = {}
            for topic, future in ask(self.client(), seconds).items():
                error = _error_in(future, seconds)
                self._listen()
                if error is None:
                    found[topic] = future.result()
                elif error.code() in allowed:
                    found[topic] = None
                elif error.code() != KafkaError._TIMED_OUT or time.monotonic() >= deadline:
                    raise self._meaning(error, f"{doing} {topic}")
                else:
                    self._look(topic, min(seconds, deadline - time.monotonic()))
                    break
            else:
                return found
            seconds = min(2 * seconds, AGAIN_SECONDS_MAX)

    def metadata(self, topic: str, doing: str, timeout_seconds: float) -> ClusterMetadata:
        """Return what a broker knows of its cluster and of a topic; errors as of `answers`.

        `describe_cluster` aborts the process if a lone broker, late with a heartbeat, lists none.
        """
        deadline, seconds = time.monotonic() + timeout_seconds, FIRST_SECONDS
        while True:
            remaining = max(0.01, deadline - time.monotonic())
            try:
                # No signal is handled meanwhile, so no wait is long.
                return self.client().list_topics(topic, min(seconds, remaining))
            except KafkaException as error:
                if seconds >= remaining:
                    raise self._meaning(error, doing) from error
            self._listen()
            seconds = min(2 * seconds, AGAIN_SECONDS_MAX)

    def _look(self, topic: str, seconds: float) -> None:
        """Have the client hear who is the controller now."""
        with contextlib.suppress(KafkaException):
            self.client().list_topics(topic, max(0.01, seconds))

    def _meaning(self, error: KafkaException | KafkaError, doing: str) -> CommitLogError:
        return meaning(self.client(), self._settings, error, doing)

    def _listen(self) -> None:
        """Run the callback for what the client had to say since the last time."""
        with self._lock:
            client = self._client
        if client is not None:
            client.poll(0)

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            self._client = None


def _error_in(future: concurrent.futures.Future[Any], seconds: float) -> KafkaError | None:
    """Return why a request failed, None if it didn't.

    Raised, the future's error would be in a circle with it, and keep callers' frames alive.
    """
    try:
        error = future.exception(seconds + 1)
    except concurrent.futures.TimeoutError:
        return KafkaError(KafkaError._TIMED_OUT)
    if error is None:
        return None
    if not isinstance(error, KafkaException):
        raise error
    return error_of(error)
