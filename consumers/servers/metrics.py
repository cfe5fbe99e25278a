"""What Prometheus reads at `/metrics`: requests, commits, and how far the leaders are.

Names follow Prometheus' conventions: seconds, bytes, `_total`. Labels have few values: an
operation's name, never a table's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from commitlog.model.records import Outcome

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
CONTENT_TYPE = CONTENT_TYPE_LATEST

Statuses = Callable[[], Mapping[int, Mapping[str, Any]]]
"""Each partition's leader as it described itself last."""


class Metrics:
    """One server's counters. Thread-safe."""

    def __init__(self, statuses: Statuses | None = None) -> None:
        """Count from zero; `statuses` tells about the leaders when somebody reads."""
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "commitlog_http_requests",
            "Requests answered.",
            ["operation", "method", "status"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "commitlog_http_request_seconds",
            "Time from a request's first byte to its answer's last.",
            ["operation"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.running = Gauge(
            "commitlog_http_requests_running",
            "Requests being carried out.",
            registry=self.registry,
        )
        self._commit_seconds = Histogram(
            "commitlog_commit_seconds",
            "Time from a submission here to its outcome, with files that can be read.",
            ["status"],
            buckets=SECONDS,
            registry=self.registry,
        )
        if statuses is not None:
            self.registry.register(_Leaders(statuses))

    def request(self, operation: str, method: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(operation, method, str(status)).inc()
        self._seconds.labels(operation).observe(seconds)

    def outcome(self, outcome: Outcome, seconds: float) -> None:
        """Count an outcome of what this server submitted."""
        self._commit_seconds.labels(str(outcome.status)).observe(seconds)

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self.registry)


_LEADER_GAUGES = (
    ("sequence", "commitlog_log_sequence", "Outcomes decided."),
    ("undecided", "commitlog_queue_transactions", "Transactions waiting for their outcome."),
    ("epoch", "commitlog_leader_epoch", "The leader's term."),
    ("voids", "commitlog_void_records", "Records of outcomes that nobody counts."),
)


class _Leaders:
    """Says how the leaders are, when asked."""

    def __init__(self, statuses: Statuses) -> None:
        self._statuses = statuses

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Name nothing ahead: registering must not ask."""
        return ()

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        """Yield a gauge per fact, with a value per partition."""
        statuses = self._statuses()
        outcomes = CounterMetricFamily(
            "commitlog_outcomes", "Transactions decided, by kind.", labels=["partition", "status"]
        )
        for partition, status in sorted(statuses.items()):
            for kind, count in sorted(status.get("outcomes", {}).items()):
                outcomes.add_metric([str(partition), kind], float(count))
        yield outcomes
        for fact, name, text in _LEADER_GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=["partition"])
            for partition, status in sorted(statuses.items()):
                gauge.add_metric([str(partition)], float(status.get(fact, 0)))
            yield gauge
        lag = GaugeMetricFamily(
            "commitlog_materializer_lag_outcomes",
            "Outcomes whose files aren't written yet.",
            labels=["partition"],
        )
        failing = GaugeMetricFamily(
            "commitlog_failing_tables",
            "Tables whose manifests cannot be written.",
            labels=["partition"],
        )
        up = GaugeMetricFamily(
            "commitlog_leader_ready", "1 if a leader decides.", labels=["partition"]
        )
        for partition, status in sorted(statuses.items()):
            label, sequence = [str(partition)], float(status.get("sequence", 0))
            behind = max(0.0, sequence - float(status.get("written_sequence", sequence)))
            lag.add_metric(label, behind)
            failing.add_metric(label, float(len(status.get("failing_tables") or ())))
            up.add_metric(label, 1.0 if status.get("ready") else 0.0)
        yield from (lag, failing, up)
