"""Commands that look after a log: is it whole, is all in place, which version is this."""

from __future__ import annotations

import platform
from dataclasses import asdict, replace
from importlib.metadata import version as package_version
from typing import Annotated, Any

from cyclopts import Parameter

from consumers.commands import output
from consumers.commands.exit_codes import ExitCode
from consumers.commands.options import HERE, AsJson, Where, connect, connect_client


def doctor(*, where: Where = HERE, as_json: AsJson = False) -> ExitCode:
    """Check what the service rests on; each line says what to do.

    Looks at Python, settings, Java, Kafka's jars, disk, cluster, topics, durability, storage,
    leader and index. Changes nothing.
    """
    from consumers.tools.doctor import run
    from consumers.views.health import Check, is_whole

    def show(check: Check) -> None:
        if not as_json:
            output.print_check(check.name, check.level, check.message, check.advice)

    found = run(where.load(), show)
    if as_json:
        output.print_json([check.to_json() for check in found])
    return ExitCode.OK if is_whole(found) else ExitCode.REFUSED


def orphans(
    table: str | None = None,
    /,
    *,
    age: float = 3600.0,
    where: Where = HERE,
    as_json: AsJson = False,
) -> None:
    """List files that nothing leads to. Removes nothing.

    Of a Lance table: data and deletion files that no committed transaction names, as lost attempts
    leave them. Without a table, of all Iceberg tables: metadata files that no outcome names, as a
    leader that died leaves them until the next one decides again, and what is left of tables that
    were dropped with their files.

    Parameters
    ----------
    table
        A Lance table's name, for example nyc$flights (quote the $).
    age
        Leave out files of a Lance table that are younger than this many seconds.
    """
    from consumers.tools.iceberg_orphans import find_orphans
    from consumers.tools.orphans import find_table_orphans

    log = connect(where.load())
    try:
        found = (
            find_orphans(log, log.genesis().tables_root)
            if table is None
            else find_table_orphans(log, table, age_seconds=age)
        )
    finally:
        log.close()
    columns = (
        output.Column("file", lambda orphan: orphan["location"]),
        output.Column("why", lambda orphan: orphan["reason"]),
    )
    rows = [orphan.to_json() for orphan in found]
    output.print_listing(columns, rows, as_json=as_json, nothing="no orphans")


def rules(
    *,
    upgrade: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    id_horizon: float | None = None,
    history_versions: int | None = None,
    operations_max: int | None = None,
    lance_release: str = "",
    where: Where = HERE,
    as_json: AsJson = False,
) -> None:
    """Show the rules that the log decides by, or put others in force.

    Rules are records of the log: whoever replays it decides each transaction by those that held
    then. A program that doesn't know a protocol stops where it begins, so upgrade all programs that
    follow the log before its protocol; it never goes back.

    Parameters
    ----------
    upgrade
        Go on with the newest protocol that this program knows.
    id_horizon
        Remember transaction ids for this many seconds of log time.
    history_versions
        Take commits that read a version up to this many before the head.
    operations_max
        Take transactions of up to this many operations.
    lance_release
        Have manifests name this release of Lance as their writer, for example 14.0.2: the one of
        pylance that the log's leaders have. It needs protocol 4.
    """
    from commitlog.model.limits import PROTOCOL_SUPPORTED
    from consumers.tools.rules import in_force, put_in_force

    asked = {
        "protocol": PROTOCOL_SUPPORTED if upgrade else None,
        "id_horizon_ms": None if id_horizon is None else round(id_horizon * 1000),
        "history_versions": history_versions,
        "operations_max": operations_max,
    }
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    log = connect_client(where.load())
    try:
        found = (
            put_in_force(log, lambda rules: replace(rules, **given), lance_release)
            if given or lance_release
            else in_force(log)
        )
    finally:
        log.close()
    columns = (
        output.Column("partition", lambda row: row["partition"], is_number=True),
        output.Column("protocol", lambda row: row["protocol"], is_number=True),
        output.Column("ids kept, s", lambda row: row["id_horizon_ms"] / 1000, is_number=True),
        output.Column("versions back", lambda row: row["history_versions"], is_number=True),
        output.Column("operations", lambda row: row["operations_max"], is_number=True),
        output.Column("lance", lambda row: row["lance_release"]),
    )
    rows = [
        {"partition": number, **asdict(one), "lance_release": one.lance_release}
        for number, one in enumerate(found)
    ]
    output.print_listing(columns, rows, as_json=as_json, nothing="no partition")


def version(
    *, as_json: Annotated[bool, Parameter(name="--json", negative="", show_default=False)] = False
) -> None:
    """Show the versions of this program and of what it rests on.

    Parameters
    ----------
    as_json
        Print a JSON object.
    """
    from commitlog.model.limits import PROTOCOL_SUPPORTED
    from consumers.broker.pins import kafka_version, read_pins

    facts = {
        "commitlog": package_version("lance-commitlog"),
        "protocol": PROTOCOL_SUPPORTED,
        "pylance": package_version("pylance"),
        "kafka": kafka_version(read_pins()),
        "duckdb": package_version("duckdb"),
        "python": platform.python_version(),
    }
    if as_json:
        output.print_json(facts)
    else:
        output.print_facts(list(facts.items()))
