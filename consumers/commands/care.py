"""Commands that look after a log: is it whole, is all in place, which version is this."""

from __future__ import annotations

import platform
from importlib.metadata import version as package_version
from typing import Annotated

from cyclopts import Parameter

from consumers import output
from consumers.commands.options import HERE, AsJson, Where, connect
from consumers.exit_codes import ExitCode


def doctor(*, where: Where = HERE, as_json: AsJson = False) -> ExitCode:
    """Check what the service rests on; each line says what to do.

    Looks at Python, settings, Java, Kafka's jars, disk, cluster, topics, durability, storage,
    leader and index. Changes nothing.
    """
    from consumers.doctor import run
    from consumers.health import Check, is_whole

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
    from consumers.iceberg.orphans import find_orphans
    from consumers.orphans import find_table_orphans

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
