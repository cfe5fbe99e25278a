"""`commitlog erase`: takes rows out of a table, its history, the log and the archive."""

from __future__ import annotations

import getpass
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from consumers.commands import output
from consumers.commands.exit_codes import ExitCode
from consumers.commands.options import HERE, AsJson, Where, connect, connect_client

if TYPE_CHECKING:
    from consumers.tools.erasure.erase import Erasure

STDIN = "-"


def erase(
    table: str,
    /,
    *,
    rows: Annotated[str, Parameter(name="--where", show_default=False)] = "",
    reason: str = "",
    by: str = "",
    now: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    dry_run: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    backup: Annotated[
        tuple[str, ...], Parameter(negative="", consume_multiple=False, show_default=False)
    ] = (),
    where: Where = HERE,
    as_json: AsJson = False,
) -> ExitCode:
    """Erase rows of a Lance table from all versions, the log's topic and the archive.

    A record says who erased, when and why, and which writes; it holds no row and no key. The log
    keeps its chain. Ends with 3 as long as a copy still has such rows, and says which one: run it
    again.

    Parameters
    ----------
    table
        The table, for example shop$orders (quote the $).
    rows
        Which rows: SQL over the table's columns; - reads it from standard input, so that no list
        of processes shows it. Without it, what was recorded before is carried out.
    reason
        Why, in words that may stay. The record keeps them.
    by
        Who erases, as the record says (the user of the system).
    now
        Have Kafka's cleaner remove records at once, not after a week: until they have gone, the
        transactions topic is set so.
    dry_run
        Only say how much would be erased.
    backup
        Look also into the backup at this place; may be repeated.
    """
    from commitlog.adapters.kafka_cleaning import cleaned_at_once
    from consumers.tools.erasure.carrying import Places
    from consumers.tools.erasure.erase import erase as run

    config = where.load()
    predicate = sys.stdin.read().strip() if rows == STDIN else rows
    servers, root = config.need_bootstrap_servers(), config.need_root()
    clean = partial(cleaned_at_once, servers, config.log, config.kafka) if now else None
    client = connect_client(config, by or getpass.getuser())
    try:
        with output.progress(table) as bar:
            found = run(
                client,
                lambda: connect(config),
                table,
                predicate,
                Places(root, backup, clean),
                reason=reason,
                dry_run=dry_run,
                on_step=output.note,
                on_progress=bar,
            )
    finally:
        client.close()
    if as_json:
        output.print_json([found.to_json()])
    else:
        _show(found, is_new=bool(predicate), dry_run=dry_run)
    return ExitCode.OK if found.is_done else ExitCode.UNAVAILABLE


def _show(found: Erasure, *, is_new: bool, dry_run: bool) -> None:
    what = f"{found.rows:,} rows of the newest version, the rows of {found.writes:,} writes"
    if dry_run:
        text = f"would erase {what}, and {found.versions:,} older versions"
        output.print_check(found.table, "ok", text)
    elif is_new:
        record = f"record {found.record}: {what}" if found.record else "nothing new to erase"
        output.print_check(found.table, "ok", record)
    if found.unreadable:
        text = f"what {found.unreadable:,} writes hold can't be read, and stays"
        output.print_check(found.table, "warn", text)
    for copy in found.copies:
        output.print_check(copy.name, "ok" if copy.is_gone else "warn", copy.said)
