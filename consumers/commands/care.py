"""Commands that look after a log: is it whole, is all in place, which version is this."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from importlib.metadata import version as package_version
from typing import TYPE_CHECKING, Annotated, Any

from commitlog.model.limits import GRACE_DAYS
from consumers.commands import output
from consumers.commands.columns import Column
from consumers.commands.exit_codes import ExitCode
from consumers.commands.options import (
    ABOVE_ZERO,
    FROM_ZERO,
    HERE,
    JSON_FLAG,
    AsJson,
    Flag,
    Where,
    connect,
    connect_client,
    connect_to_files,
)
from consumers.runtime.progress import told_now_and_then

if TYPE_CHECKING:
    from consumers.views.health import Check


def doctor(*, where: Where = HERE, strict: Flag = False, as_json: AsJson = False) -> ExitCode:
    """Check everything that the service depends on, with advice for each problem.

    Checks Python, settings, Java, Kafka's jars, disk, the server's certificate, cluster, topics,
    durability, clock, places, storage, leader, versions and index. Changes nothing. Exits with 1 if
    a check failed.

    Parameters
    ----------
    strict
        Exit with 1 for warnings too.
    """
    from consumers.tools.doctor import doctor as look
    from consumers.views.health import Level, is_whole

    found = _shown("doctor", look(where.load(), output.note), as_json=as_json)
    is_good = is_whole(found) and not (strict and any(one.level is Level.WARN for one in found))
    return ExitCode.OK if is_good else ExitCode.REFUSED


def _shown(title: str, checks: Iterable[Check], *, as_json: bool) -> tuple[Check, ...]:
    """Show each finding as it comes, or all of them at the end as JSON."""
    found: list[Check] = []

    def how_far() -> str:
        if not found:
            return f"{title}: the first check runs"
        return f"{title}: {len(found)} done, the last is {found[-1].name}"

    with told_now_and_then(how_far, output.note):  # no bar: findings are lines on the terminal
        for one in checks:
            found.append(one)
            if not as_json:
                output.print_check(one.name, one.level, one.message, one.advice)
    if as_json:
        output.print_json([one.to_json() for one in found])
    return tuple(found)


def orphans(
    table: str | None = None,
    /,
    *,
    age: Annotated[float, FROM_ZERO] = GRACE_DAYS * 24 * 3600,
    remove: Flag = False,
    where: Where = HERE,
    as_json: AsJson = False,
) -> None:
    """List unneeded files with the reason, or remove them.

    For Lance tables, these are data files, deletion files, blobs, indices and staged manifests that
    no existing version needs: only deleted versions read them (expired), their table was dropped,
    or no committed transaction names them (refused, abandoned, foreign). Without a table, lists
    files of all tables, including dropped and Iceberg tables: Iceberg metadata files that no
    outcome names, and the remains of tables that were dropped with their files.

    Parameters
    ----------
    table
        A Lance table's name, for example nyc$flights (quote the $).
    age
        Leave out files that were written, or that a version needed, within this many seconds.
        Readers of old versions and writers of uncommitted files have this long.
    remove
        Remove the listed files; a record in the log gives the reason for each table. A killed
        removal is continued by running it again.
    """
    from consumers.tools.maintenance.cleaning import clean

    config = where.load()
    with ExitStack() as opened:
        log = opened.enter_context(closing(connect_to_files(config)))
        client = opened.enter_context(connect_client(config, "orphans")) if remove else None
        with output.counts("orphans") as bar:
            found = clean(log, table, age, client, on_progress=bar)
    columns = (
        Column("file", "location"),
        Column("bytes", "size", is_number=True),
        Column("age, h", "age_hours", is_number=True),
        Column("why"),
        Column("reason"),
    )
    nothing = "no unneeded files"
    output.print_listing(columns, found, as_json=as_json, nothing=nothing)


def rules(
    *,
    upgrade: Flag = False,
    id_horizon: Annotated[float | None, ABOVE_ZERO] = None,
    history_versions: Annotated[int | None, ABOVE_ZERO] = None,
    operations_max: Annotated[int | None, ABOVE_ZERO] = None,
    lance_release: str = "",
    where: Where = HERE,
    as_json: AsJson = False,
) -> None:
    """Show the rules by which the log is decided, or put others in force.

    Rules are records of the log, so a replay decides each transaction by the rules of its time. A
    program that doesn't know a protocol stops at the record that raises it, so upgrade all programs
    that follow the log first. A protocol is never lowered.

    Parameters
    ----------
    upgrade
        Raise the protocol to the newest one that this program knows.
    id_horizon
        Remember transaction ids for this many seconds of log time.
    history_versions
        Accept commits that read a version up to this many before the head.
    operations_max
        Accept transactions of up to this many operations.
    lance_release
        The Lance release that manifests name as their writer, for example 14.0.2: the release of
        pylance that the log's leaders use. Needs protocol 4.
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
    with connect_client(where.load(), "rules") as log:
        found = (
            put_in_force(log, lambda rules: replace(rules, **given), lance_release)
            if given or lance_release
            else in_force(log)
        )
    columns = (
        Column("partition", is_number=True),
        Column("protocol", is_number=True),
        Column("ids kept, s", lambda row: row["id_horizon_ms"] / 1000, is_number=True),
        Column("versions back", "history_versions", is_number=True),
        Column("operations", "operations_max", is_number=True),
        Column("lance", "lance_release"),
    )
    rows = [
        {"partition": number, **asdict(one), "lance_release": one.lance_release}
        for number, one in enumerate(found)
    ]
    output.print_listing(columns, rows, as_json=as_json, nothing="no partition")


def upgrade(*, check: Flag = False, where: Where = HERE, as_json: AsJson = False) -> ExitCode:
    """Show the versions of log, programs and files, and the remaining steps of an upgrade.

    Findings are listed in the order of the steps; nothing is changed. Exits with 1 if a step
    remains. `commitlog rules --upgrade` raises the protocol.

    Parameters
    ----------
    check
        Required, to show that this only checks.
    """
    from consumers.runtime.config import ConfigurationError
    from consumers.tools.upgrade import check_upgrade
    from consumers.views.health import Level

    if not check:
        raise ConfigurationError(
            "`commitlog upgrade` changes nothing: run `commitlog upgrade --check`, "
            "then follow its advice"
        )
    config = where.load()
    with closing(connect(config)) as log:
        checks = check_upgrade(log, config.root, config.token)
        found = _shown("upgrade --check", checks, as_json=as_json)
    return ExitCode.OK if all(one.level is Level.OK for one in found) else ExitCode.REFUSED


def version(*, as_json: Annotated[bool, JSON_FLAG] = False) -> None:
    """Show the versions of this program and its dependencies.

    Parameters
    ----------
    as_json
        Print a JSON object.
    """
    from commitlog.codecs.lanes import lane
    from commitlog.model.limits import PROTOCOL_SUPPORTED
    from consumers.broker.pins import kafka_version, read_pins

    facts = {
        "commitlog": package_version("lance-commitlog"),
        "protocol": PROTOCOL_SUPPORTED,
        "pylance": package_version("pylance"),
        "kafka": kafka_version(read_pins()),
        "duckdb": package_version("duckdb"),
        "python": platform.python_version(),
        "lane": lane(),
    }
    output.print_facts(facts, as_json=as_json)
