"""Traces: each transaction is one, from its writer to its files.

A trace's id is the transaction's own id, and so the id of its first span follows from it too.
Writer, leader and materializer need to tell each other nothing, and no record carries anything for
it. Spans go where the standard `OTEL_EXPORTER_OTLP_ENDPOINT` says, if the extra `otel` is
installed; without both, nothing here costs anything.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
import uuid
from functools import cache
from typing import Any

VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

FLUSH_MILLISECONDS = 2_000

logger = logging.getLogger("commitlog")


def trace_id(transaction_id: str) -> int:
    """Return the id of a transaction's trace: its own, or the hash of one that is no UUID."""
    try:
        return uuid.UUID(transaction_id).int
    except ValueError:
        return int.from_bytes(_digest(transaction_id)[:16], "big")


def first_span_id(transaction_id: str) -> int:
    """Return the id of the writer's span, which all others of the trace are parts of."""
    return int.from_bytes(_digest(transaction_id)[:8], "big") or 1


def _digest(transaction_id: str) -> bytes:
    return hashlib.sha256(transaction_id.encode()).digest()


class Tracing:
    """Makes the spans of transactions. Thread-safe."""

    def __init__(self, exporter: Any = None) -> None:
        """Send spans to an exporter, or where the environment says."""
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

        wanted = self._wanted = threading.local()

        class Ids(RandomIdGenerator):
            """Gives the ids that this thread wants, else random ones."""

            def generate_trace_id(self) -> int:
                return getattr(wanted, "trace", 0) or super().generate_trace_id()

            def generate_span_id(self) -> int:
                return getattr(wanted, "span", 0) or super().generate_span_id()

        self.provider = TracerProvider(
            resource=Resource.create({"service.name": "commitlog"}), id_generator=Ids()
        )
        if exporter is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            self.provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        else:
            self.provider.add_span_processor(SimpleSpanProcessor(exporter))
        self.tracer = self.provider.get_tracer("commitlog")

    def first(self, transaction_id: str, name: str, seconds: float, **facts: Any) -> None:
        """Tell of the whole way of a transaction, which ends now."""
        from opentelemetry.context import Context

        self._wanted.trace = trace_id(transaction_id)
        self._wanted.span = first_span_id(transaction_id)
        try:
            self._span(Context(), name, seconds, 0.0, facts)
        finally:
            self._wanted.trace = self._wanted.span = 0

    def part(
        self, transaction_id: str, name: str, seconds: float, ago: float = 0.0, **facts: Any
    ) -> None:
        """Tell of a part of it, which took `seconds` and ended `ago` seconds before now."""
        from opentelemetry import trace

        parent = trace.SpanContext(
            trace_id(transaction_id),
            first_span_id(transaction_id),
            is_remote=True,
            trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
        )
        context = trace.set_span_in_context(trace.NonRecordingSpan(parent))
        self._span(context, name, seconds, ago, facts)

    def flush(self) -> None:
        """Send what is gathered, before a process that may end without warning continues."""
        self.provider.force_flush(FLUSH_MILLISECONDS)

    def _span(
        self, context: Any, name: str, seconds: float, ago: float, facts: dict[str, Any]
    ) -> None:
        end = time.time_ns() - round(ago * 1e9)
        attributes = {f"commitlog.{key}": value for key, value in facts.items()}
        span = self.tracer.start_span(
            name, context, attributes=attributes, start_time=end - round(max(seconds, 0.0) * 1e9)
        )
        span.end(end_time=end)


@cache
def tracing() -> Tracing | None:
    """Return what makes spans, or None if tracing is off.

    Often the variable is set for all programs of a machine: it must keep none from its work.
    """
    name = next((name for name in VARIABLES if os.environ.get(name)), "")
    if not name:
        return None
    try:
        return Tracing()
    except ModuleNotFoundError:
        why = "pip install 'lance-commitlog[otel]' for traces"
    except ValueError as error:
        why = f"traces are off: {error}"
    logger.warning("%s is set: %s", name, why)
    return None
