"""What Prometheus reads at `/metrics`: requests, commits, and how far the leaders are.

Names follow Prometheus' conventions: seconds, bytes, `_total`. Labels have few values: of tables
and principals, those that a leader counts by themselves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from commitlog.model.records import Outcome

Key = TypeVar("Key", str, tuple[str, str])

Statuses = Callable[[], Mapping[int, Mapping[str, Any]]]
"""Each partition's leader as it described itself last."""
IndexLags = Callable[[], Mapping[int, int]]
"""By partition, how many outcomes the published index lacks."""
IndexSteps = Callable[[], Mapping[str, Any]]
"""How late the index showed transactions, as leaders tell of their steps."""

_GAUGES = (
    ("sequence", "commitlog_log_sequence", "Outcomes decided."),
    ("undecided", "commitlog_queue_transactions", "Transactions waiting for their outcome."),
    ("epoch", "commitlog_leader_epoch", "The leader's term."),
    ("voids", "commitlog_void_records", "Outcome records that are void."),
    ("bypasses_found", "commitlog_bypasses", "Versions found that were written around the log."),
    ("files_lag_seconds", "commitlog_materializer_lag_seconds", "How late files are."),
    ("unwritten_versions", "commitlog_unwritten_versions", "Versions that wait for their files."),
    ("unwritten_bytes", "commitlog_unwritten_bytes", "About the memory that these take."),
    ("decision_lag_seconds", "commitlog_decision_lag_seconds", "How late decisions are."),
    ("rows_lag_seconds", "commitlog_rows_lag_seconds", "How late writes of rows are applied."),
    (
        "acknowledge_lag_seconds",
        "commitlog_acknowledge_lag_seconds",
        "For how long Kafka has acknowledged no outcome.",
    ),
)
_BY_NAME = (
    ("rebased", "rebases", "Commits that were moved over newer versions."),
    ("bytes", "added_bytes", "Bytes of data files that commits added."),
    ("rows", "written_rows", "Rows that commits wrote, rewritten ones included."),
)
_SIZES = (
    ("version", "commitlog_table_version", "A table's newest version."),
    ("fragments", "commitlog_table_fragments", "Fragments of a table's newest version."),
    ("versions", "commitlog_table_versions", "Versions of a table that weren't deleted."),
    ("bytes", "commitlog_table_bytes", "Bytes of its data files, as maintenance saw them last."),
    (
        "unwritten",
        "commitlog_materializer_lag_versions",
        "Versions of a table since the newest one that has its manifest.",
    ),
    (
        "unmaintained",
        "commitlog_maintenance_lag_versions",
        "Versions of a table that maintenance has not looked at.",
    ),
)


_STATES: tuple[tuple[str, str, Callable[[Mapping[str, Any]], float]], ...] = (
    (
        "commitlog_materializer_lag_outcomes",
        "Outcomes whose files aren't written yet.",
        lambda one: max(0, one.get("sequence", 0) - one.get("written_sequence", 0)),
    ),
    (
        "commitlog_failing_tables",
        "Tables whose manifests cannot be written.",
        lambda one: len(one.get("failing_tables") or ()),
    ),
    (
        "commitlog_full_tables",
        "Tables that get no more commits until their files follow.",
        lambda one: len(one.get("full_tables") or ()),
    ),
)


class LeaderMetrics:
    """Says how the leaders are, when asked."""

    def __init__(self, statuses: Statuses, index_lags: IndexLags, index_steps: IndexSteps) -> None:
        """Ask these when somebody reads."""
        self._statuses = statuses
        self._index_lags, self._index_steps = index_lags, index_steps

    def describe(self) -> Iterable[Metric]:
        """Name nothing ahead: registering must not ask."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield what there is, with values by partition."""
        statuses = dict(sorted(self._statuses().items()))
        outcomes = (
            ((str(partition), kind), count)
            for partition, status in statuses.items()
            for kind, count in sorted(status.get("outcomes", {}).items())
        )
        text = "Transactions decided, by kind."
        yield _counted("commitlog_outcomes", text, ("partition", "status"), outcomes)
        heard = [(partition, one) for partition, one in statuses.items() if "sequence" in one]
        for fact, name, text in _GAUGES:
            yield _gauged(name, text, "partition", ((at, one.get(fact, 0)) for at, one in heard))
        for name, text, value in _STATES:
            yield _gauged(name, text, "partition", ((at, value(one)) for at, one in heard))
        ready = ((partition, bool(one.get("ready"))) for partition, one in statuses.items())
        yield _gauged("commitlog_leader_ready", "1 if a leader decides.", "partition", ready)
        lags, text = self._index_lags().items(), "Outcomes that the published version index lacks."
        yield _gauged("commitlog_index_lag_outcomes", text, "partition", lags)
        measures = {partition: one.get("measures") or {} for partition, one in statuses.items()}
        name, text = "maintenance_silence_seconds", "Seconds since maintenance last reported."
        said = ((at, one.get("maintained_seconds")) for at, one in measures.items())
        silent = ((at, seconds) for at, seconds in said if seconds is not None)
        yield _gauged(f"commitlog_{name}", text, "partition", silent)
        yield from _measures([*measures.values(), self._index_steps()])


def _measures(found: list[Mapping[str, Any]]) -> Iterator[Metric]:
    """Yield what leaders counted, summed over the partitions."""
    for kind in ("table", "principal"):
        for what, name, text, label in (
            (f"{kind}s", "outcomes", f"Transactions decided, by {kind} and kind.", "status"),
            (f"{kind}_rules", "refusals", f"Attempts refused, by {kind} and rule or code.", "rule"),
        ):
            counts = _summed({(a, b): count for a, b, count in one.get(what, ())} for one in found)
            yield _counted(f"commitlog_{kind}_{name}", text, (kind, label), counts)
        yield _durations(
            found,
            f"{kind}_commits",
            f"commitlog_{kind}_commit_seconds",
            f"How long commits took, from the writer's clock to files that can be read, by {kind}.",
            kind,
        )
        yield _steps_by(kind, found)
        for fact, name, text in _BY_NAME:
            what = fact if kind == "table" else f"{kind}_{fact}"
            pairs = (((key,), count) for key, count in _summed(one.get(what, {}) for one in found))
            yield _counted(f"commitlog_{kind}_{name}", text, (kind,), pairs)
    rules = (((rule,), count) for rule, count in _summed(one.get("rules", {}) for one in found))
    text = "Attempts refused, by rule or code."
    yield _counted("commitlog_refusals", text, ("rule",), rules)
    sizes = {table: size for one in found for table, size in one.get("sizes", {}).items()}
    for fact, name, text in _SIZES:
        known = ((table, size[fact]) for table, size in sorted(sizes.items()) if fact in size)
        yield _gauged(name, text, "table", known)
    yield _durations(
        found,
        "steps",
        "commitlog_step_seconds",
        "How long transactions took for a step: submit (the writer's clock to the log), queue"
        " (until the leader has read them), decide,"
        " acknowledge (by Kafka), files (until they can be read); commit is all of them."
        " Beside them, index (from the log until the version index shows them).",
        "step",
    )


def _summed(found: Iterable[Mapping[Key, float]]) -> list[tuple[Key, float]]:
    """Return the sums of what each leader counted, in order."""
    sums: defaultdict[Key, float] = defaultdict(float)
    for key, count in chain.from_iterable(one.items() for one in found):
        sums[key] += count
    return sorted(sums.items())


def _durations(found: list[Mapping[str, Any]], what: str, name: str, text: str, by: str) -> Metric:
    family = HistogramMetricFamily(name, text, labels=[by])
    bounds: list[float] = next((one["bounds"] for one in found if "bounds" in one), [])
    _add_histograms(family, [one.get(what, {}) for one in found], bounds)
    return family


def _steps_by(kind: str, found: list[Mapping[str, Any]]) -> Metric:
    """Return the histograms of each table's, or principal's, steps."""
    text = f"How long the steps of commits took, by {kind}; see commitlog_step_seconds."
    family = HistogramMetricFamily(f"commitlog_{kind}_step_seconds", text, labels=[kind, "step"])
    bounds: list[float] = next(
        (one["coarse_bounds"] for one in found if "coarse_bounds" in one), []
    )
    by_step = [one.get(f"{kind}_steps", {}) for one in found]
    for step in sorted({step for one in by_step for step in one}):
        _add_histograms(family, [one.get(step, {}) for one in by_step], bounds, step)
    return family


def _add_histograms(
    family: HistogramMetricFamily, found: list[Mapping[str, Any]], bounds: list[float], *labels: str
) -> None:
    """Add what leaders counted by name, summed over them."""
    counts: dict[str, list[float]] = {}
    sums: defaultdict[str, float] = defaultdict(float)
    for one in found:
        for key, seen in one.items():
            known = counts.get(key, [0.0] * len(seen["counts"]))
            counts[key] = [a + b for a, b in zip(known, seen["counts"], strict=True)]
            sums[key] += seen["sum"]
    ends = [*map(str, bounds), "+Inf"]
    for key, numbers in sorted(counts.items()):
        total, buckets = 0.0, []
        for end, number in zip(ends, numbers, strict=True):
            total += number
            buckets.append((end, total))
        family.add_metric([key, *labels], buckets, sums[key])


def _gauged(name: str, text: str, by: str, values: Iterable[tuple[object, float]]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[by])
    for key, value in values:
        family.add_metric([str(key)], float(value))
    return family


def _counted(
    name: str, text: str, by: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float]]
) -> Metric:
    family = CounterMetricFamily(name, text, labels=by)
    for keys, value in values:
        family.add_metric(keys, float(value))
    return family


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
