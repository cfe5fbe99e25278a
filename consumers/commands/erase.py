"""`commitlog erase`: takes rows out of a table, its history, the log and the archive."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from consumers.commands import output
from consumers.commands.exit_codes import ExitCode
from consumers.commands.options import (
    HERE,
    AsJson,
    Flag,
    Where,
    connect,
    connect_client,
    from_stdin,
    user,
)
from consumers.runtime.config import Config, ConfigurationError

if TYPE_CHECKING:
    from consumers.tools.erasure.erase import Erasure

STDIN = "-"


def erase(
    table: str,
    /,
    *,
    rows: Annotated[
        str | None, Parameter(name="--where", allow_leading_hyphen=True, show_default=False)
    ] = None,
    reason: str = "",
    by: str = "",
    now: Flag = False,
    dry_run: Flag = False,
    backup: Annotated[
        tuple[str, ...], Parameter(negative="", consume_multiple=False, show_default=False)
    ] = (),
    where: Where = HERE,
    as_json: AsJson = False,
) -> ExitCode:
    """Erase rows of a Lance table from all versions, the log's topic and the archive.

    A record in the log says who erased which writes, when and why; it holds no rows and no keys.
    The hash chain stays valid. Exits with 3 and names the copy as long as one still has such rows;
    then run it again.

    Parameters
    ----------
    table
        The table, for example shop$orders (quote the $).
    rows
        The rows, as an SQL predicate over the table's columns; - reads it from standard input,
        which keeps it out of process listings. Without it, erasures that were recorded before are
        continued.
    reason
        The reason; the record keeps it. A dry run needs none.
    by
        Who erases, for the record (the current user).
    now
        Have Kafka's log cleaner remove records at once, not after a week. The settings of the
        transactions topic are changed until the records are gone.
    dry_run
        Only show how much would be erased.
    backup
        Check the backup at this location too; may be repeated.
    """
    from consumers.tools.erasure.carrying import Places
    from consumers.tools.erasure.erase import erase as run

    config, predicate = where.load(), _predicate(rows)
    if predicate and not dry_run:
        _expect_words(reason)
    client = connect_client(config, by or user())
    with client, output.progress(f"erase, {table}") as bar:
        found = run(
            client,
            lambda: connect(config),
            table,
            predicate,
            Places(config.need_root(), backup, _cleaning(config, now=now)),
            reason=reason,
            dry_run=dry_run,
            on_step=output.note,
            on_progress=bar,
        )
    if as_json:
        output.print_json([found.to_json()])
    else:
        _show(found, is_new=bool(predicate), dry_run=dry_run)
    return ExitCode.OK if found.is_done else ExitCode.UNAVAILABLE


def _cleaning(config: Config, *, now: bool) -> Callable[[], AbstractContextManager[None]] | None:
    """Return what has Kafka's cleaner work at once; None: it works when its settings say so.

    What a killed run with --now has left is ended by the next one, with --now or without.
    """
    from commitlog.adapters.kafka_cleaning import cleaned_at_once, is_cleaned_at_once

    topic = config.need_bootstrap_servers(), config.log, config.kafka
    return partial(cleaned_at_once, *topic) if now or is_cleaned_at_once(*topic) else None


def _expect_words(reason: str) -> None:
    if not reason.strip():
        raise ConfigurationError(
            "--reason is missing, and the record of an erasure keeps it: say why, in words that may"
            " stay, not whom it is about"
        )


def _predicate(rows: str | None) -> str:
    """Return what --where says; an empty one is refused, since nothing would be erased."""
    if rows is None:
        return ""
    text = (from_stdin() if rows == STDIN else rows).strip()
    if not text:
        place = "standard input" if rows == STDIN else "--where"
        raise ConfigurationError(
            f"{place} has no predicate: name the rows, or leave --where out to continue what is"
            " recorded"
        )
    return text


def _show(found: Erasure, *, is_new: bool, dry_run: bool) -> None:
    what = f"{found.rows:,} rows of the newest version, the rows of {found.writes:,} writes"
    if found.older:
        what = f"rows that only older versions have, such as version {found.older}"
    if dry_run:
        text = f"would erase {what}, and {found.versions:,} older versions"
        output.print_check(found.table, "ok", text)
    elif is_new:
        record = f"record {found.record}: {what}" if found.record else "nothing new to erase"
        output.print_check(found.table, "ok", record)
    if found.unreadable:
        text = f"{found.unreadable:,} writes can't be read, and are kept"
        output.print_check(found.table, "warn", text)
    for copy in found.copies:
        output.print_check(copy.name, "ok" if copy.is_gone else "warn", copy.said)
