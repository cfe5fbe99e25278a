"""`commitlog maintain`: keeps tables fast."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from consumers.commands import output
from consumers.commands.columns import Column
from consumers.commands.exit_codes import ExitCode
from consumers.commands.on_spark import HERE as SPARK_HERE
from consumers.commands.on_spark import SparkEnded, check_spark, spark_session
from consumers.commands.options import (
    ABOVE_ZERO,
    HERE,
    AsJson,
    Flag,
    Where,
    connect,
    connect_client,
)
from consumers.runtime.process import OnReady, run_part, yielding

if TYPE_CHECKING:
    from consumers.runtime.config import Config
    from consumers.tools.maintenance.maintenance import Maintenance
    from consumers.tools.maintenance.table_acts import Act

STARTING_SECONDS = 30.0
"""Maintenance leaves the first moments of a start to others."""


def maintain(
    *,
    where: Where = HERE,
    once: Flag = False,
    dry_run: Flag = False,
    interval: Annotated[float, ABOVE_ZERO] = 60.0,
    removal_interval: Annotated[float, ABOVE_ZERO] = 3_600.0,
    policy: Annotated[
        tuple[str, ...],
        Parameter(negative="", consume_multiple=False, metavar="NAME=VALUE", show_default=False),
    ] = (),
    spark: Flag = False,
    master: str = SPARK_HERE,
    as_json: AsJson = False,
) -> ExitCode:
    """Keep tables fast: compact fragments, update indices, remove unneeded versions and files.

    Properties commitlog.maintain.* of a table or its namespace set the policy. Each act is a
    transaction in the log, with its reason. `commitlog up` runs this by default.

    Parameters
    ----------
    once
        Check each table once, do what is due, and exit: with 1 if anything failed.
    dry_run
        Only list what is due, and exit.
    interval
        Seconds between two checks.
    removal_interval
        Seconds between two searches for files to remove; each lists all files.
    policy
        Default for tables and namespaces without the property, for example expire-days=30.
    spark
        Compact by Spark jobs: executors rewrite the groups of fragments.
    master
        Spark's master URL; for --spark.
    """
    from consumers.tools.maintenance.maintenance_policy import parse_defaults

    check_spark("maintain", spark=spark, master=master)
    config = where.load()
    defaults = parse_defaults(policy)
    master = master if spark and not dry_run else ""
    more: dict[str, Any] = {"removal_seconds": removal_interval}
    if not (once or dry_run):

        def work(stop: threading.Event, on_ready: OnReady) -> None:
            more["yields"] = yielding()
            with _maintenance(config, defaults, master, stop, **more) as maintenance:
                on_ready("")
                stop.wait(min(interval, STARTING_SECONDS))
                maintenance.run(stop, interval)

        run_part("maintenance", config.root or Path.cwd(), work)
        return ExitCode.OK
    return _once(config, defaults, master, dry_run=dry_run, as_json=as_json, **more)


def _once(
    config: Config,
    defaults: Mapping[str, str],
    master: str,
    *,
    dry_run: bool,
    as_json: bool,
    **more: Any,
) -> ExitCode:
    """Look once, and print what was done, or what is due."""
    from consumers.tools.maintenance.table_acts import LEFT_FOR_LATER

    done: list[tuple[Act, str]] = []
    more["on_act"] = lambda act, result: done.append((act, result))
    stop = threading.Event()
    try:
        with _maintenance(config, defaults, master, stop, **more) as maintenance:
            due = maintenance.look(stop, dry_run=dry_run)
    except SparkEnded:
        if done:
            _print_acts(done, as_json=as_json)
        raise
    if dry_run:
        _print_acts([(act, "") for act in due], "result", as_json=as_json)
        return ExitCode.OK
    _print_acts(done, as_json=as_json)
    has_failed = any(result.startswith(LEFT_FOR_LATER) for _, result in done)
    return ExitCode.REFUSED if has_failed else ExitCode.OK


def _print_acts(acts: Iterable[tuple[Act, str]], but: str = "", *, as_json: bool) -> None:
    """Print acts and what came of them, in all columns but one."""
    rows = [
        {"table": act.table, "act": act.kind, "reason": act.reason, "result": result}
        for act, result in acts
    ]
    columns = tuple(
        Column(name, gives_way=name == "reason")
        for name in ("table", "act", "reason", "result")
        if name != but
    )
    output.print_listing(columns, rows, as_json=as_json, nothing="nothing is due")


@contextmanager
def _maintenance(
    config: Config, defaults: Mapping[str, str], master: str, stop: threading.Event, **more: Any
) -> Iterator[Maintenance]:
    """Yield what looks at tables; with a master of Spark, compactions are its jobs."""
    from consumers.tools.maintenance.maintenance import Maintenance

    with connect_client(config, "maintenance") as log, ExitStack() as stack:
        if master:
            from commitlog.spark.compaction import on_executors

            session = stack.enter_context(spark_session("maintain", master, config, stop))
            more["rewrite"] = on_executors(session)
        made = Maintenance(log, open_log=lambda: connect(config), defaults=defaults, **more)
        stack.callback(made.close)
        yield made
