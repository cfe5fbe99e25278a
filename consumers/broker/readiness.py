"""Waiting until a broker answers Kafka's protocol."""

import socket
import time
from collections.abc import Callable

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from consumers.runtime.patience import Patience

CONNECT_TIMEOUT_SECONDS = 1.0
METADATA_TIMEOUT_SECONDS = 5.0
POLL_SECONDS = 0.03


def wait_until_ready(
    host: str, port: int, *, patience: Patience, has_ended: Callable[[], bool]
) -> str | None:
    """Return the cluster id that the broker tells, None if it ended or makes no progress.

    A connection that is refused is cheap to try again; a client is only made once one is taken.
    """
    while not _accepts(host, port):
        if has_ended() or not patience.left:
            return None
        time.sleep(POLL_SECONDS)
    client = AdminClient(
        {
            "bootstrap.servers": f"{host}:{port}",
            "broker.address.family": "v4",
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            # It may still refuse for a moment, which is nothing to print.
            "log_level": 0,
        }
    )
    while not has_ended() and (left := patience.left):
        try:
            metadata = client.list_topics(timeout=min(left, METADATA_TIMEOUT_SECONDS))
        except KafkaException:
            continue
        if metadata.brokers and metadata.cluster_id:
            return str(metadata.cluster_id)
        time.sleep(POLL_SECONDS)
    return None


def _accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), CONNECT_TIMEOUT_SECONDS).close()
    except OSError:
        return False
    return True
