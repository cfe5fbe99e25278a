"""What Prometheus reads at `/metrics`: requests, commits, and how far the leaders are.

Names follow Prometheus' conventions: seconds, bytes, `_total`. Labels have few values: of tables
and principals, those that a leader counts by themselves.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from commitlog.model.records import Outcome
from consumers.servers.leader_metrics import IndexLags, IndexSteps, LeaderMetrics, Statuses

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """One server's counters. Thread-safe."""

    def __init__(
        self,
        statuses: Statuses | None = None,
        index_lags: IndexLags = dict,
        index_steps: IndexSteps = dict,
    ) -> None:
        """Count from zero; what is given is asked when somebody reads."""
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
            "commitlog_http_requests_running", "Requests being carried out.", registry=self.registry
        )
        self._commit_seconds = Histogram(
            "commitlog_commit_seconds",
            "Time from a submission here to its outcome, with files that can be read.",
            ["status"],
            buckets=SECONDS,
            registry=self.registry,
        )
        if statuses is not None:
            self.registry.register(LeaderMetrics(statuses, index_lags, index_steps))

    def request(self, operation: str, method: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(operation, method, str(status)).inc()
        self._seconds.labels(operation).observe(seconds)

    def outcome(self, outcome: Outcome, seconds: float) -> None:
        """Count an outcome of what this server submitted."""
        self._commit_seconds.labels(str(outcome.status)).observe(seconds)

    def certificate(self, ends: Callable[[], float]) -> None:
        """Show until when the server's certificate is valid, in seconds since 1970."""
        Gauge(
            "commitlog_http_certificate_expiry_timestamp_seconds",
            "When the certificate expires that this server shows to its clients.",
            registry=self.registry,
        ).set_function(ends)

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self.registry)
