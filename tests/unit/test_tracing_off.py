"""A variable that asks for traces, where none can be made: a program does its work without them."""

import sys
from collections.abc import Iterator

import pytest

from commitlog.adapters.tracing import VARIABLES, tracing
from tests.child import ended

ASKS = """
import sys
sys.modules["MISSING"] = None  # as if it were not installed
from commitlog.adapters.tracing import tracing
assert tracing() is None
assert tracing() is None
"""


@pytest.fixture(autouse=True)
def asked_once() -> Iterator[None]:
    tracing.cache_clear()
    yield
    tracing.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    "missing", ["opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter"]
)
@pytest.mark.parametrize("variable", VARIABLES)
def test_without_the_extra_a_warning_names_it(
    missing: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:1")
    ran = ended([sys.executable, "-c", ASKS.replace("MISSING", missing)])
    assert ran.returncode == 0
    assert ran.stderr == f"{variable} is set: pip install 'lance-commitlog[otel]' for traces\n"


def test_settings_that_traces_cannot_have_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLES[0], "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "0")
    assert tracing() is None
    (said,) = caplog.messages
    assert "traces are off: max_export_batch_size must be" in said
