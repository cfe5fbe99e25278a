"""`commitlog maintain`: keeps tables fast."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from consumers.commands import output
from consumers.commands.options import HERE, AsJson, Where, connect, connect_client
from consumers.runtime.process import OnReady, run_part

STARTING_SECONDS = 30.0
"""Maintenance leaves the first moments of a start to others."""


def maintain(
    *,
    where: Where = HERE,
    once: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    dry_run: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    interval: float = 60.0,
    policy: Annotated[
        tuple[str, ...],
        Parameter(negative="", consume_multiple=False, metavar="NAME=VALUE", show_default=False),
    ] = (),
    as_json: AsJson = False,
) -> None:
    """Keep tables fast: compact fragments, update indices, remove what nobody needs.

    What is done to a table, its properties commitlog.maintain.* say, or else its namespace's. Each
    act is a transaction of the log, with its reason. `commitlog up` runs this by itself.

    Parameters
    ----------
    once
        Look at each table once, do what is due, and end.
    dry_run
        Only list what is due, and end.
    interval
        Seconds between two looks.
    policy
        Holds for tables that don't say otherwise, nor their namespaces: expire-days=30, and so on.
    """
    from consumers.tools.maintenance import NICENESS, Maintenance
    from consumers.tools.maintenance_policy import parse_defaults

    config = where.load()
    defaults = parse_defaults(policy)
    if not (once or dry_run):
        root = config.root or Path.cwd()

        def work(stop: threading.Event, on_ready: OnReady) -> None:
            with connect_client(config, "maintenance") as log:
                on_ready("")
                stop.wait(min(interval, STARTING_SECONDS))
                maintenance = Maintenance(log, open_log=lambda: connect(config), defaults=defaults)
                maintenance.run(stop, interval)

        run_part("maintenance", root, work, niceness=NICENESS)
        return
    rows: list[dict[str, str]] = []
    with connect_client(config, "maintenance") as log:
        results: list[str] = []
        maintenance = Maintenance(
            log,
            on_act=lambda _, result: results.append(result),
            open_log=lambda: connect(config),
            defaults=defaults,
        )
        for number, act in enumerate(maintenance.look(dry_run=dry_run)):
            row = {"table": act.table, "act": act.kind, "reason": act.reason}
            rows.append(row | {"result": "" if dry_run else results[number]})
        maintenance.close()
    columns = tuple(
        output.Column(name, lambda row, name=name: row[name], gives_way=name == "reason")  # type: ignore[misc]
        for name in ("table", "act", "reason", "result")
        if name != "result" or not dry_run
    )
    output.print_listing(columns, rows, as_json=as_json, nothing="nothing is due")
