"""Tells of tests that failed at their first try, where a run allows others: `--reruns 2`.

CI does, for one test of thousands that a machine was too slow for would keep a whole change away.
What failed is shown as failures are, and a run in which more than a few tests needed that fails.
"""

from __future__ import annotations

from typing import Any

import pytest

SECTION = "FAILED AT THE FIRST TRY"
TESTS_MAX = 10


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
