"""The floor: a bare two-hop round trip through the same broker, nothing decided, nothing written.

One process sends a record to a topic, another one echoes it to a second topic, the first reads it
there. That is the least that any committer behind this broker costs a writer.
"""

from __future__ import annotations

import multiprocessing
import time
import uuid
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from consumers.tools.bench.measure import percentile

PAYLOAD = bytes(1024)
WAIT_SECONDS = 30.0
ROUNDS = 500
_CLIENT = {"socket.nagle.disable": True, "broker.address.family": "v4"}


def two_hop_ms(bootstrap_servers: str) -> tuple[float, float]:
    """Return p50 and p99 in milliseconds of round trips, one in flight."""
    name = f"floor-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    there, back = f"{name}-there", f"{name}-back"
    topics = [there, back]
    for created in admin.create_topics([NewTopic(t, 1, 1) for t in topics]).values():
        created.result(WAIT_SECONDS)
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    echo = context.Process(
        target=_echo, args=(bootstrap_servers, there, back, ready, stop), daemon=True
    )
    echo.start()
    try:
        if not ready.wait(WAIT_SECONDS):
            raise TimeoutError("the echo process did not start")
        latencies = _round_trips(bootstrap_servers, there, back)
    finally:
        stop.set()
        echo.join(10)
        for deleted in admin.delete_topics(topics).values():
            deleted.result(WAIT_SECONDS)
    ordered = sorted(latencies[ROUNDS // 10 :])
    return percentile(ordered, 0.5) * 1000, percentile(ordered, 0.99) * 1000


def _round_trips(bootstrap_servers: str, there: str, back: str) -> list[float]:
    producer, consumer = _producer(bootstrap_servers), _consumer(bootstrap_servers, back)
    latencies = []
    for _ in range(ROUNDS):
        before = time.perf_counter()
        producer.produce(there, PAYLOAD)
        producer.poll(0)
        message = consumer.poll(WAIT_SECONDS)
        if message is None or message.error():
            raise TimeoutError("no echo")
        latencies.append(time.perf_counter() - before)
    producer.flush(WAIT_SECONDS)
    consumer.close()
    return latencies


def _echo(bootstrap_servers: str, there: str, back: str, ready: Any, stop: Any) -> None:
    producer, consumer = _producer(bootstrap_servers), _consumer(bootstrap_servers, there)
    consumer.poll(0.1)
    ready.set()
    while not stop.is_set():
        message = consumer.poll(0.1)
        if message is not None and not message.error():
            producer.produce(back, message.value())
            producer.poll(0)
    producer.flush(WAIT_SECONDS)
    consumer.close()


def _producer(bootstrap_servers: str) -> Producer:
    settings = {"bootstrap.servers": bootstrap_servers, "linger.ms": 0, "acks": "all", **_CLIENT}
    return Producer(settings)


def _consumer(bootstrap_servers: str, topic: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "floor",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 1,
            **_CLIENT,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    return consumer
