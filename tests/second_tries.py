"""Tells of tests that failed at their first try, where a run allows others: `--reruns 2`.

CI does, for one test of thousands that a machine was too slow for would keep a whole change away.
What failed is shown as failures are, and a run in which more than a few tests needed that fails.
A try that waited for long, for its timeout above all, takes one of the others with it. A worker
that hears no signal, because a library doesn't come back, is ended.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Generator
from typing import Any

import pytest
import pytest_timeout
from _pytest.faulthandler import fault_handler_stderr_fd_key

SECTION = "FAILED AT THE FIRST TRY"
TESTS_MAX = 10
LONG_SECONDS = 120.0
DEAF_SECONDS = 60.0
"""So long after its timeout a test may need to hear of it."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Give each try all of its time."""
    _start_timer(item)
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Give the end of a try as much once more."""
    _start_timer(item)
    return (yield)


def _start_timer(item: pytest.Item) -> None:
    """Begin a test's timeout anew: pytest-timeout ends it with the first failure, for all tries."""
    settings = pytest_timeout._get_item_settings(item)
    if settings.timeout and not settings.func_only:
        hooks = item.config.pluginmanager.hook
        hooks.pytest_timeout_cancel_timer(item=item)
        hooks.pytest_timeout_set_timer(item=item, settings=settings)
        if hasattr(item.config, "workerinput"):
            seconds, errors = settings.timeout + DEAF_SECONDS, fault_handler_stderr_fd_key
            faulthandler.dump_traceback_later(seconds, file=item.config.stash[errors], exit=True)


def pytest_runtest_logfinish() -> None:
    """Let a worker wait for its next test."""
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Count a long try that failed as two: whatever hangs must not cost an hour."""
    report = yield
    tries: Any = item  # pytest-rerunfailures counts there
    if report.failed and call.duration > LONG_SECONDS and hasattr(tries, "execution_count"):
        tries.execution_count += 1
    return report


def _first_tries(config: pytest.Config) -> dict[str, Any]:
    """Return the reports of what was tried again, by test."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    return {one.nodeid: one for one in reporter.stats.get("rerun", ())} if reporter else {}


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run in which too many tests needed another try."""
    if session.exitstatus == 0 and len(_first_tries(session.config)) > TESTS_MAX:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show what failed first, whatever came of it then."""
    found = _first_tries(terminalreporter.config)
    if not found:
        return
    terminalreporter.section(SECTION)
    for name, report in found.items():
        terminalreporter.write_sep("_", name)
        terminalreporter.write_line(report.longreprtext)
    if len(found) > TESTS_MAX:
        terminalreporter.write_line(f"{len(found)} tests needed another try, {TESTS_MAX} may")
