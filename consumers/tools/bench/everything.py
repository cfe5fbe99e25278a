"""`commitlog bench all`: every suite in turn, in one run, into one file.

Suites that need a service share one, which is stopped before those that need none. What went wrong
in one suite is told in its place, and the others continue; the file is rewritten after each.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

from commitlog.protocol import LOG_NAME_DEFAULT
from consumers.tools.bench.environment import environment, loop_ms
from consumers.tools.bench.measure import Report
from consumers.tools.bench.service import OwnService, own_service

FORMAT = 1
SERVICE, HTTP, ALONE = "service", "http", "alone"
SUITES: Mapping[str, str] = {
    "commit": SERVICE,
    "merge": SERVICE,
    "rows": SERVICE,
    "growth": SERVICE,
    "server": HTTP,
    "iceberg": HTTP,
    "spark": SERVICE,
    "replay": ALONE,
    "index": ALONE,
    "conflicts": ALONE,
}
"""In the order in which they run, with what each needs."""
FULL: Mapping[str, Mapping[str, Any]] = {
    "commit": {"writers": (1, 32, 64), "rounds": 5},
    "merge": {"writers": (1, 32), "rounds": 3},
    "rows": {"writers": (1, 32), "keys": ("uniform", "hot"), "rounds": 2, "seconds": 3.0},
    "server": {"writers": (1, 32), "rounds": 3},
}
QUICK: Mapping[str, Mapping[str, Any]] = {
    "commit": {"writers": (1, 32, 64), "rounds": 3, "seconds": 2.0, "warm_up": 10_000},
    "merge": {"writers": (32,), "rounds": 1, "seconds": 3.0},
    "rows": {"writers": (32,), "rounds": 1, "seconds": 2.0},
    "growth": {"versions": (10, 10_000), "machine_versions": (10, 10_000, 100_000), "commits": 50},
    "server": {"writers": (1, 32), "rounds": 1, "seconds": 2.0},
    "iceberg": {"writers": (8,), "rounds": 1, "seconds": 2.0, "snapshots": (10, 1_000)},
    "spark": {
        "batches": 4,
        "batch_rows": 5_000,
        "queries": (1,),
        "read_rows": 500_000,
        "rounds": 1,
    },
    "replay": {"transactions": 100_000, "decisions": 30_000, "rounds": 3},
    "index": {"sizes": (1_000, 30_000), "rate": 300, "seconds": 4.0},
    "conflicts": {"missed": (1, 100, 10_000), "fragments": (1, 1_000, 100_000)},
}


def run(
    *,
    start: Callable[[], AbstractContextManager[OwnService]] = own_service,
    suites: Sequence[str] = tuple(SUITES),
    is_quick: bool = False,
    into: Path | None = None,
    before: Mapping[str, Any] | None = None,
    report: Report = print,
) -> dict[str, Any]:
    """Run the suites; return all their reports by name, and keep them in the file `into`.

    `start` runs a service for those that need one. `before` is an earlier report, of which the
    suites that don't run stay; those that do are marked as measured apart.
    """
    sizes = QUICK if is_quick else FULL
    began = time.monotonic()
    machine = environment()
    apart = {"taken_apart_at": machine["taken_at"]} if before is not None else {}
    found: dict[str, Any] = {
        "format": FORMAT,
        "is_quick": is_quick,
        "environment": machine,
        **(before or {}),
        "suites": dict((before or {}).get("suites", {})),
    }
    with ExitStack() as stack:
        service: OwnService | None = None
        refused = ""
        for name in [one for one in SUITES if one in suites]:
            if SUITES[name] == ALONE:
                stack.close()
            elif service is None and not refused:
                report("starting a service")
                try:
                    service = stack.enter_context(start())
                except Exception as error:
                    refused = f"no service: {type(error).__name__}: {error}"
                    report(refused)
            speed = {"loop_ms": loop_ms()}
            started = time.monotonic()
            report(f"== {name} ({started - began:.0f} s after the start)")
            if refused and SUITES[name] != ALONE:
                one: dict[str, Any] = {"error": refused}
            else:
                one = _run_one(name, service, sizes.get(name, {}), report)
            took = time.monotonic() - started
            found["suites"][name] = {**one, **apart, **speed, "took_seconds": took}
            if before is None:
                found["took_seconds"] = time.monotonic() - began
            if into is not None:
                into.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    report(f"all done after {time.monotonic() - began:.0f} s")
    return found


def _run_one(
    name: str, service: OwnService | None, sizes: Mapping[str, Any], report: Report
) -> dict[str, Any]:
    more: dict[str, Any] = {**sizes, "report": report}
    arguments: tuple[str, ...] = ()
    if SUITES[name] != ALONE:
        assert service is not None
        is_http = SUITES[name] == HTTP
        arguments = (service.http,) if is_http else (service.servers, LOG_NAME_DEFAULT)
        if name == "commit":
            more["service_pid"] = service.pid
    try:
        suite: Any = import_module(f"consumers.tools.bench.{name}")
        return dict(suite.run(*arguments, **more))
    except ModuleNotFoundError as error:
        report(f"{name} is left out: {error}")
        return {"skipped": f"it needs {error.name}, which is not installed"}
    except Exception as error:
        report(f"{name} failed: {type(error).__name__}: {error}")
        return {"error": f"{type(error).__name__}: {error}"}
