"""Commands that copy a log with its tables, put it back, and move it to another cluster."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from commitlog.adapters.places import bound, is_misspelt_uri
from commitlog.adapters.storage import store_for
from commitlog.errors import UnsupportedFormat
from consumers.commands import output
from consumers.commands.exit_codes import ExitCode
from consumers.commands.options import (
    ABOVE_ZERO,
    HERE,
    AsJsonObject,
    Flag,
    Where,
    connect_to_files,
)
from consumers.runtime.config import Config, ConfigurationError, expanded

if TYPE_CHECKING:
    from consumers.tools.backup.remains import Remains
    from consumers.tools.backup.restore import Restored


def backup(
    place: str, /, *, check: Flag = False, where: Where = HERE, as_json: AsJsonObject = False
) -> ExitCode:
    """Back up the log and its tables incrementally, while the service runs.

    The first run copies everything, later runs copy only what is new. Each file is read back after
    it is written, and `backup.json` is written last, so a killed run leaves the previous backup
    intact. Tables outside the tables root are listed, not copied.

    Parameters
    ----------
    place
        A folder, or a location in an object store such as s3://bucket/backup.
    check
        Copy nothing; read the whole backup that is there and compare it with what was written.
        Needs no log. Exits with 1 if a file is missing or damaged.
    """
    from commitlog.client.rows.full_storage import naming_full_disk  # brings the log's records in
    from consumers.tools.backup.writer import back_up

    config = where.load()
    where_to = _named(place)
    if check:
        return _check(where_to, as_json=as_json)
    with closing(connect_to_files(config)) as log:
        _check_apart(where_to, config.root, log.genesis().tables_root)
        with output.counts("backup") as bar, naming_full_disk(where_to):
            done = back_up(log, where_to, config.root, bar)
    if as_json:
        output.print_json(done)
        return ExitCode.OK
    positions = ", ".join(f"{n} of partition {p}" for p, n in done.positions.items())
    output.print_check("log", "ok", f"through position {positions}; {done.outcomes} outcomes new")
    files = f"{done.files} of {done.files_in_all} files copied, {done.bytes:,} bytes"
    output.print_check("tables", "ok", files)
    for one in done.elsewhere:
        output.print_check("elsewhere", "warn", f"{one} is not in the backup", "copy it yourself")
    return ExitCode.OK


def _check(place: str, *, as_json: bool) -> ExitCode:
    from consumers.tools.backup.check import check

    with output.counts("backup --check") as bar:
        done = check(place, bar)
    if as_json:
        output.print_json(done)
    else:
        positions = ", ".join(f"1 to {n} of partition {p}" for p, n in done.positions.items())
        read = f"{done.records} records and {done.files} files, {done.bytes:,} bytes, were read"
        output.print_check("log", "ok", f"{done.log!r}, positions {positions}; {read}")
        for one in done.damage:
            output.print_check("damage", "fail", one, "make a new backup at another place")
        if left := done.leftovers:
            text = f"a run that was killed left {len(left)} files half written, such as {left[0]}"
            output.print_check("leftovers", "warn", text, "the next backup removes them")
    return ExitCode.REFUSED if done.damage else ExitCode.OK


def _named(place: str) -> str:
    """Return where a backup is; ConfigurationError if nothing is named."""
    if not place.strip():
        raise ConfigurationError(
            "no destination is given: name a folder, or a location in an object store"
        )
    if is_misspelt_uri(place):
        raise ConfigurationError(
            f"{place} is neither a folder nor a URI such as s3://bucket/backup: correct it, or"
            f" write ./{place} if a folder has this name"
        )
    if "://" in place or place.startswith("file:/"):
        try:
            store_for(place)
        except UnsupportedFormat as error:
            raise ConfigurationError(str(error)) from error
        return place
    folder = os.path.abspath(expanded(place))
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise ConfigurationError(f"{folder} is not a folder: name one, or a location in a bucket")
    return folder


def _check_apart(place: str, root: Path | None, tables_root: str) -> None:
    """Refuse a place within what is backed up, or around it: one would overwrite the other."""
    for source in filter(None, (str(root or ""), bound(tables_root))):
        here, there = _real(place), _real(source)
        if here.startswith(there):
            raise ConfigurationError(
                f"{place} is inside {source}, which is to be backed up: choose a "
                "destination outside it, preferably on another disk"
            )
        if there.startswith(here):
            raise ConfigurationError(
                f"{place} contains {source}, which is to be backed up: choose a destination beside"
                " it, preferably on another disk"
            )


def _real(place: str) -> str:
    """Return a place, whatever links lead there, with a slash at its end."""
    return f"{place if '://' in place else os.path.realpath(place)}".rstrip("/") + "/"


def restore(
    place: str,
    /,
    *,
    where: Where = HERE,
    at: str = "",
    remains: str = "",
    strict: Flag = False,
    as_json: AsJsonObject = False,
) -> ExitCode:
    """Restore a backup into the empty folder that --root names, or onto another cluster.

    Tables go to the location that the log names, which must be empty. Each file is read back after
    it is written. `commitlog up` refuses the root until the restore is complete; a killed restore
    is continued by running it again. If files of tables are damaged in the backup, everything else
    is restored, and the exit code is 1.

    Parameters
    ----------
    place
        The location of the backup.
    at
        Restore to a position, or to a time such as 2026-01-31T12:00:00Z. Without it, everything is
        restored.
    remains
        What is left of the lost root or its tables. Commits made there after the backup are listed
        by table, version and transaction. It isn't changed.
    strict
        Exit with 1 if the backup lacks decided transactions or files, after restoring what it has.
    """
    from consumers.tools.backup.restore import restore as put_back

    config = where.load()
    left = _named(remains) if remains else ""
    with output.counts("restore") as bar:
        done = put_back(_named(place), config, at, left, bar)
    is_whole = not (done.missing or done.lacking)
    fails = done.damage or (strict and not is_whole)
    code = ExitCode.REFUSED if fails else ExitCode.OK
    if as_json:
        output.print_json(done)
        return code
    _show_restored(done)
    output.note(f"start it with: {shlex.join(_start(done, config))}")
    return code


def _start(done: Restored, config: Config) -> list[str]:
    """Return the command that runs what was restored."""
    given = [config.places] if config.places else []
    is_own = bound(done.tables_root) == str(config.need_root() / "tables")
    flags = {
        "--bootstrap-servers": config.bootstrap_servers,
        "--log": "" if done.log in ("", Config().log) else done.log,
        "--tables-root": "" if is_own else done.tables_root,
        "--places": ",".join([*given, *(f"{old}={new}" for old, new in done.places.items())]),
        "--kafka-file": config.kafka_file,
        "--storage-file": config.storage_file,
    }
    named = (one for flag, value in flags.items() if value for one in (flag, value))
    return ["commitlog", "up", "--root", done.root, *named]


def _show_restored(done: Restored) -> None:
    for partition, position in done.positions.items():
        has = done.backed_up[partition]
        left = "" if has == position else f"; {has - position} later positions were left out"
        name = f"partition {partition}"
        output.print_check(name, "ok", f"positions 1 to {position}{left}")
    if done.undecided:
        text = f"{done.undecided} transactions were undecided; the next leader decides them"
        output.print_check("undecided", "warn", text)
    if done.missing:
        text = f"{done.missing} decided transactions are neither in the backup's topic nor archive"
        output.print_check("missing", "warn", text, "put back the archive that has them")
    output.print_check("tables", "ok", f"{done.files} files, {done.bytes:,} bytes")
    for one in done.elsewhere:
        output.print_check("elsewhere", "warn", f"{one} was not in the backup", "put it back")
    for lacking in done.lacking:
        text = (
            f"version {lacking.version} lacks {len(lacking.files)} files that the backup hasn't or"
            f" that are damaged: {lacking.rows:,} rows can't be read. First: {lacking.files[0]}"
        )
        advice = "restore a position at which a backup was made, or roll the table back"
        output.print_check(lacking.table, "warn", text, advice)
    for one in done.damage:
        advice = "put back another copy of it; `commitlog verify` says what else it hurts"
        output.print_check("damage", "fail", one, advice)
    if done.remains is not None:
        _show_lost(done.remains, done.backed_up)


def _show_lost(remains: Remains, backed_up: Mapping[int, int]) -> None:
    """Name what was committed after the backup, as far as anything left tells."""
    for partition, position in sorted(remains.positions.items()):
        if position > (has := backed_up.get(partition, 0)):
            text = (
                f"positions {has + 1} to {position} of partition {partition} are not in the backup"
            )
            output.print_check("lost", "warn", text)
    for one in remains.lost:
        version = f" version {one.version}" if one.version else ""
        by = f" by transaction {one.transaction_id}" if one.transaction_id else ""
        where = f", position {one.position}" if one.position else ""
        rows = f"its rows are in {one.file}" if one.file else ""
        output.print_check("lost", "warn", f"{one.table}{version}{by}{where}", rows)
    for problem in remains.unread:
        output.print_check("remains", "warn", f"cannot be read: {problem}")
    if not remains.lost:
        output.print_check("lost", "ok", "what is left shows no commit after the backup")


def move(
    to: str,
    /,
    *,
    where: Where = HERE,
    to_kafka_file: Path | None = None,
    timeout: Annotated[float, ABOVE_ZERO] = 60.0,
    as_json: AsJsonObject = False,
) -> None:
    """Move the log to another Kafka cluster, keeping all positions.

    Copies both topics while writers write, closes the old topics, copies the rest, and compares
    both clusters: bytes, hash chain, state and the rows of each table. After that the old cluster
    accepts no records of the log and refers clients to the new one. A killed move is continued by
    running it again. Tables stay where they are.

    Parameters
    ----------
    to
        The new cluster, HOST:PORT,...
    to_kafka_file
        Kafka client settings for the new cluster (those of the old one).
    timeout
        Seconds that a cluster may take to answer.
    """
    from commitlog.adapters.kafka_file import read_kafka_file
    from commitlog.adapters.kafka_settings import ClientSettings
    from consumers.tools.move import move as go

    config = where.load()
    old = ClientSettings(config.need_bootstrap_servers(), config.kafka)
    settings = read_kafka_file(str(to_kafka_file)) if to_kafka_file else config.kafka
    new = ClientSettings(to, settings)
    with output.counts("move") as bar:
        done = go(
            old, new, config.log, to, config.root, bar, answer_seconds=timeout, say=output.note
        )
    if as_json:
        output.print_json(done)
        return
    for partition, side in enumerate(done.partitions):
        text = (
            f"{side.transactions} transactions and {side.outcomes} outcome records are the same on"
            f" both, sha256 {side.sha256[:16]}; {side.committed} commits, the chain ends with"
            f" {side.sequence}:{side.hash[:16]}; the state is {side.digest[:16]}"
        )
        output.print_check(f"partition {partition}", "ok", text)
        for table, rows in side.rows.items():
            output.print_check(table, "ok", f"{rows} rows on both")
    output.note(f"the log is at {to} now; the old cluster accepts no more records of it")
