"""Commands that copy a log with its tables, put it back, and move it to another cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from commitlog.adapters.places import bound
from consumers.commands import output
from consumers.commands.options import HERE, AsJson, Where, connect_to_files
from consumers.runtime.config import ConfigurationError

if TYPE_CHECKING:
    from consumers.tools.backup.remains import Remains


def backup(place: str, /, *, where: Where = HERE, as_json: AsJson = False) -> None:
    """Copy what is new of the log and its tables, while it runs.

    The first run copies all, later ones what came since. Everything is read again as it was
    written, and `backup.json` is written last: a run that was killed leaves the backup as it was.
    Tables outside the tables root are named, not copied.

    Parameters
    ----------
    place
        A folder, or a location in an object store such as s3://bucket/backup.
    """
    from consumers.tools.backup.writer import back_up

    config = where.load()
    where_to = _named(place)
    log = connect_to_files(config)
    try:
        _check_apart(where_to, config.root, log.genesis().tables_root)
        done = back_up(log, where_to, config.root)
    finally:
        log.close()
    if as_json:
        output.print_json(done.to_json())
        return
    positions = ", ".join(f"{n} of partition {p}" for p, n in done.positions.items())
    output.print_check("log", "ok", f"through position {positions}; {done.outcomes} outcomes new")
    files = f"{done.files} of {done.files_in_all} files copied, {done.bytes:,} bytes"
    output.print_check("tables", "ok", files)
    for one in done.elsewhere:
        output.print_check("elsewhere", "warn", f"{one} is not in the backup", "copy it yourself")


def _named(place: str) -> str:
    """Return where a backup is; ConfigurationError if nothing is named."""
    if not place.strip():
        raise ConfigurationError("no place is named: give a folder, or a location in a store")
    return place if "://" in place else os.path.abspath(Path(place).expanduser())


def _check_apart(place: str, root: Path | None, tables_root: str) -> None:
    """Refuse a place within what is backed up: it would be lost with that, or overwrite it."""
    for source in filter(None, (str(root or ""), bound(tables_root))):
        if f"{place.rstrip('/')}/".startswith(f"{source.rstrip('/')}/"):
            raise ConfigurationError(
                f"{place} is in {source}, which is backed up: name a place outside of it, best on"
                " another disk"
            )


def restore(
    place: str,
    /,
    *,
    where: Where = HERE,
    at: str = "",
    remains: str = "",
    as_json: AsJson = False,
) -> None:
    """Put a backup back: into the empty folder that --root names, or onto another cluster.

    Tables go to the place that the log names, which must be free. Everything is read again as it
    was written. `commitlog up` refuses the root until all is there; killed, run it again.

    Parameters
    ----------
    place
        Where `commitlog backup` put it.
    at
        Restore as of a position, or a time such as 2026-01-31T12:00:00Z; all that was copied, if
        it isn't named.
    remains
        What is left of the root that was lost, or of its tables: what was committed there after
        the backup is named, by table, version and transaction. It isn't changed.
    """
    from consumers.tools.backup.restore import restore as put_back

    config = where.load()
    left = _named(remains) if remains else ""
    done = put_back(_named(place), config, at, left)
    if as_json:
        output.print_json(done.to_json())
        return
    for partition, position in done.positions.items():
        has = done.backed_up[partition]
        left = "" if has == position else f"; {has - position} later ones were left out"
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
    if done.remains is not None:
        _show_lost(done.remains, done.backed_up)
    own = str(config.need_root() / "tables")
    tables = "" if bound(done.tables_root) == own else f" --tables-root {done.tables_root}"
    given = [config.places] if config.places else []
    pairs = ",".join([*given, *(f"{old}={new}" for old, new in done.places.items())])
    tables += f" --places {pairs}" if pairs else ""
    output.note(f"start it with: commitlog up --root {done.root}{tables}")


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
        output.print_check("lost", "ok", "nothing that is left tells of a commit after the backup")


def move(
    to: str,
    /,
    *,
    where: Where = HERE,
    to_kafka_file: Path | None = None,
    timeout: Annotated[float, Parameter(validator=Number(gt=0))] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Have the log go on on another Kafka cluster, at the same positions.

    Copies both topics while writers write, closes the old cluster's, copies the rest, and reads
    both sides: bytes, chain, state and each table's rows have to be the same. From then on the old
    cluster takes no record of the log, and says where it is. Killed, it goes on when it is run
    again. Tables stay where they are.

    Parameters
    ----------
    to
        The new cluster, HOST:PORT,...
    to_kafka_file
        Kafka client settings for the new cluster; the old one's, if not set.
    timeout
        Seconds that a cluster may take for an answer.
    """
    from commitlog.adapters.kafka_file import read_kafka_file
    from commitlog.adapters.kafka_settings import ClientSettings
    from consumers.tools.move import move as go

    config = where.load()
    old = ClientSettings(config.need_bootstrap_servers(), config.kafka)
    settings = read_kafka_file(str(to_kafka_file)) if to_kafka_file else config.kafka
    new = ClientSettings(to, settings)
    done = go(old, new, config.log, to, config.root, answer_seconds=timeout, say=output.note)
    if as_json:
        output.print_json(done.to_json())
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
    output.note(f"the log is at {to} now; the old cluster takes no record of it any more")
