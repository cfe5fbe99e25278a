"""Commands that prove something of a log: that it is whole, and that all else follows from it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from consumers.commands import output
from consumers.commands.exit_codes import ExitCode
from consumers.commands.options import (
    FROM_ZERO,
    HERE,
    AsJson,
    Flag,
    Folder,
    Where,
    connect,
    connect_client,
    connect_to_files,
    is_number,
    partitions_of,
    user,
)
from consumers.runtime.config import ConfigurationError, expanded

if TYPE_CHECKING:
    from commitlog.ports import ArchivableLog
    from consumers.runtime.config import Config
    from consumers.tools.archive.writer import ArchiveRun
    from consumers.tools.replay.replay import Replayed
    from consumers.tools.verify import PartitionFindings
    from consumers.tools.verify.findings import Expired
    from consumers.tools.verify.witnesses import Witness

STATE = "verify"
"""In a root: where an interrupted verification continues."""

OnePartition = Annotated[int | None, Parameter(help="Only this partition (all).")]


def verify(
    *,
    where: Where = HERE,
    table: str = "",
    partition: OnePartition = None,
    contents: Flag = False,
    log_only: Flag = False,
    chain_only: Flag = False,
    expect_head: Annotated[str, Parameter(show_default=False)] = "",
    state: Folder | None = None,
    again: Flag = False,
    as_json: AsJson = False,
) -> ExitCode:
    """Read the whole log, decide every transaction again, and compare all derived files.

    Checks hashes, order and answers from Genesis on, and names the first bad sequence after any
    edit, drop, swap or truncation; decides each transaction again with the leader's own code; and
    compares manifests, data files and version index with the log. Changes nothing. An interrupted
    run is continued. Exits with 5 if the log is bad, with 1 if only derived files are.

    Parameters
    ----------
    table
        Check only this table's files.
    contents
        Read every row of the tables' newest versions too.
    log_only
        Skip tables and index.
    chain_only
        Check only hashes, order and answers: the fastest.
    expect_head
        SEQUENCE:HASH as an earlier run printed it: the log must still have that outcome.
    state
        Folder for the progress of an interrupted run, with nothing else in it (ROOT/verify).
    again
        Start at Genesis, even after an interrupted run.
    """
    from consumers.tools.verify import VerifyOptions
    from consumers.tools.verify import verify as check

    _check_parts(table=table, contents=contents, log_only=log_only, chain_only=chain_only)
    config = where.load()
    folder = state or (config.root / STATE if config.root is not None else None)
    options = VerifyOptions(
        root=config.root,
        table=table,
        contents=contents,
        log_only=log_only,
        chain_only=chain_only,
        state=folder,
        expected_head=_expected(expect_head),
    )
    if folder is not None:
        _check_state(folder)
        for entry in _entries(folder) if again else ():
            shutil.rmtree(entry, ignore_errors=True)
    with closing(connect_to_files(config, needs_checkpoint=False)) as log:
        verdicts = []
        for number in partitions_of(log, partition):
            with output.progress(f"verify, partition {number}") as bar:
                verdicts.append(check(log, number, options, on_progress=bar))
    if as_json:
        output.print_json([verdict.to_json() for verdict in verdicts])
    for verdict in verdicts if not as_json else ():
        _show(verdict)
    if not all(verdict.is_log_whole for verdict in verdicts):
        return ExitCode.STOP
    return ExitCode.OK if all(v.is_whole for v in verdicts) else ExitCode.REFUSED


def _check_parts(*, table: str, contents: bool, log_only: bool, chain_only: bool) -> None:
    """Refuse a check of tables that another flag skips: it would pass without a look at them."""
    if (skips := "--log-only" if log_only else "--chain-only" if chain_only else "") and (
        wanted := "--contents" if contents else "--table" if table else ""
    ):
        raise ConfigurationError(
            f"{wanted} checks tables, and {skips} skips them: leave one of the two out"
        )


def _expected(text: str) -> Witness | None:
    if not text:
        return None
    from consumers.tools.verify.witnesses import Witness

    sequence, _, digest = text.partition(":")
    is_hex = all(character in "0123456789abcdefABCDEF" for character in digest)
    if not is_number(sequence) or len(digest) < 8 or not is_hex:
        raise ConfigurationError(
            f"--expect-head takes SEQUENCE:HASH with at least 8 digits of the hash, not {text!r}"
        )
    return Witness("--expect-head", int(sequence), digest)


def _check_state(folder: Path) -> None:
    """Refuse a folder that has something else in it: a run removes there what it finds."""
    from consumers.tools.verify.check import INDEX
    from consumers.tools.verify.state import PROGRESS

    _check_folder("--state", folder)
    for entry in _entries(folder):
        kept = {one.name.partition(PROGRESS)[0] for one in _entries(entry)} - {"", "checkpoint"}
        if entry.name != INDEX and (kept or not is_number(entry.name)):
            raise ConfigurationError(
                f"--state {folder} contains something else ({entry.name}): name an empty folder,"
                " or the one of an interrupted run"
            )


def _show(verdict: PartitionFindings) -> None:
    from consumers.tools.verify import ProblemKind

    name = f"partition {verdict.partition}"
    last = verdict.first_bad_sequence
    resumed = f", going on at {verdict.resumed_at}" if verdict.resumed_at else ""
    terms = f"{verdict.terms} term{'s' if verdict.terms != 1 else ''}"
    log = (
        f"{verdict.outcomes} outcomes in {terms}{resumed}, {verdict.committed} "
        f"committed, {verdict.undecided} undecided, {verdict.voids} void; head {verdict.outcomes}:"
        f"{verdict.head[:16]}"
    )
    if verdict.is_log_whole:
        output.print_check(name, "ok", log)
    else:
        bad = f"sequence {last} is bad: {verdict.problem}; {log}"
        output.print_check(name, "fail", bad, "stop the committers; keep the topics as they are")
    bad_kinds = {problem.kind for problem in verdict.problems}
    for kind, count, what in (
        (ProblemKind.DECISION, verdict.decided_again, "transactions decided again"),
        (ProblemKind.MANIFEST, verdict.versions, "compared with the log"),
        (ProblemKind.FILE, verdict.files, "looked at"),
        (ProblemKind.ROWS, verdict.rows, "read"),
        (ProblemKind.ROWS, verdict.rows_rebuilt, "rebuilt from the log's writes"),
        (ProblemKind.INDEX, verdict.index_rows, "rows compared"),
        (ProblemKind.ARCHIVE, verdict.archived, "archived outcomes proven"),
    ):
        if count and kind not in bad_kinds:
            output.print_check(kind, "ok", f"{count} {what}")
    if verdict.not_decided_again:
        gone = f"{verdict.not_decided_again} were decided on files that no longer exist"
        output.print_check(
            ProblemKind.DECISION, "warn", f"{gone}; for these, the log's own record was used"
        )
    if verdict.unattributed:
        text = (
            f"{verdict.unattributed} name a principal that is not in their content, so no "
            "hash covers it"
        )
        output.print_check(ProblemKind.TRANSACTION, "warn", text)
    _show_expired(verdict.expired)
    for said in verdict.erased.newest:
        output.print_check("erased", "ok", said)
    for said in verdict.rows_expired.newest:
        output.print_check("expired", "ok", said)
    for problem in verdict.problems:
        output.print_check(problem.kind, "fail", problem.message)
    more = verdict.problems_count - len(verdict.problems)
    if more:
        output.print_check("more", "fail", f"{more} problems like these")


def _check_folder(flag: str, path: Path) -> None:
    """Refuse what can't be written to: an interrupted run is continued from there."""
    nearest = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not nearest.is_dir():
        raise ConfigurationError(f"{flag} {path} is not a folder: name a folder")
    if not os.access(nearest, os.W_OK):
        raise ConfigurationError(f"{nearest} cannot be written: name another folder by {flag}")


def _entries(folder: Path) -> Iterator[Path]:
    return folder.iterdir() if folder.is_dir() else iter(())


def _show_expired(expired: Expired) -> None:
    if not expired.records:
        return
    before = expired.records - len(expired.newest)
    text = f"{expired.versions} versions were deleted by {expired.records} records"
    output.print_check("expired", "ok", f"{text}; the last ones:" if before else text)
    for one in expired.newest:
        output.print_check("expired", "ok", str(one))


def replay(
    into: Folder,
    *,
    where: Where = HERE,
    against: Folder | None = None,
    all_versions: Flag = False,
    rows: Literal["missing", "all", "none"] = "missing",
    as_json: AsJson = False,
) -> ExitCode:
    """Rebuild every manifest and the version index from the log alone, in a separate folder.

    Reads only the log; the service and the old root may be gone. If the old root is reachable,
    every manifest is compared byte by byte (registered ones by their fields) and the index row by
    row. An interrupted run is continued.

    Parameters
    ----------
    into
        The folder to build in: tables/, index.duckdb, and elsewhere/ for tables outside the tables
        root.
    against
        The location of the old root (--root).
    all_versions
        Write every version of tables under policy `latest` too, not only the newest.
    rows
        Write the log's rows of tables to rows/: for tables without data files, for all, or for
        none. A folder or bucket that can't be reached counts as one without data files.
    """
    from consumers.tools.replay.replay import BUILT, ReplayOptions
    from consumers.tools.replay.replay import replay as build

    config = where.load()
    target = expanded(into).absolute()
    old = expanded(against or config.root or Path()).absolute()
    if (config.root or against) and (old == target or old in target.parents):
        raise ConfigurationError(f"{target} is inside the root {old}: choose a folder outside it")
    _check_folder("--into", target)
    strange = sorted({one.name for one in _entries(target)} - BUILT)
    if strange:
        raise ConfigurationError(
            f"{target} contains something else ({strange[0]}): name an empty folder, or the "
            "one of an earlier replay"
        )
    seen = old if against or config.root else None
    options = ReplayOptions(target, seen, all_versions, rows)
    with closing(connect_to_files(config, needs_checkpoint=False)) as log:
        results = []
        for number in range(log.partitions()):
            with output.progress(f"replay, partition {number}") as bar:
                results.append(build(log, number, options, on_progress=bar))
    if as_json:
        output.print_json([result.to_json() for result in results])
    for result in results if not as_json else ():
        _show_replayed(result)
    return ExitCode.OK if all(result.is_equal for result in results) else ExitCode.REFUSED


def _show_replayed(result: Replayed) -> None:
    built = f"{result.manifests} manifests, {result.metadata_files} metadata files"
    compared = (
        f"{result.equal_bytes} equal byte for byte, {result.equal_fields} by fields, "
        f"{result.index_rows} index rows equal"
    )
    resumed = f", going on at {result.resumed_at}" if result.resumed_at else ""
    text = f"{result.outcomes} outcomes{resumed}, {result.tables} tables, {built}; {compared}"
    output.print_check(f"partition {result.partition}", "ok", text)
    for table in result.rebuilt:
        output.print_check(f"rows of {table.table}", "warn" if table.why else "ok", str(table))
    _show_expired(result.expired)
    for said in result.rows_expired:
        output.print_check("expired", "ok", said)
    for problem in result.problems:
        output.print_check(problem.kind, "fail", problem.message)


def archive(
    *,
    where: Where = HERE,
    partition: OnePartition = None,
    through: Annotated[int | None, FROM_ZERO] = None,
    older_than_days: Annotated[float | None, FROM_ZERO] = None,
    give_up: Flag = False,
    expire_rows: Flag = False,
    by: str = "",
    as_json: AsJson = False,
) -> None:
    """Copy decided records to Parquet files in ROOT/archive, with their proof.

    Each segment is read back from disk and verified before it counts. From then on every command
    that reads the log with this root reads old transactions there. The next run continues after the
    last segment.

    Parameters
    ----------
    through
        Archive up to this sequence (everything decided).
    older_than_days
        Archive only what was decided at least this many days ago.
    give_up
        Then let Kafka's compaction remove the archived transactions from their topic, for segments
        entirely within --through and --older-than-days. From then on, reading the log from its
        beginning needs the archive. Outcomes are kept.
    expire_rows
        Then remove the rows of applied writes from segments that were given up, once the rows are
        as old as their table's policy says (`commitlog.maintain.expire-rows-days`). A record in the
        log names them. Their hashes and everything else are kept.
    by
        Who removes rows, for that record (the current user).
    """
    from consumers.tools.archive.log import FOLDER
    from consumers.tools.archive.proof import alone
    from consumers.tools.archive.writer import archive as copy
    from consumers.tools.archive.writer import give_up as tombstone
    from consumers.tools.verify.witnesses import check_root

    if expire_rows and not give_up:
        raise ConfigurationError(
            "--expire-rows needs --give-up: rows that the topic has stay there"
        )
    config = where.load()
    folder = config.need_root() / FOLDER
    limits = {"through": through, "before_ms": _before_ms(older_than_days)}
    with closing(connect(config)) as log, alone(folder):
        done = []
        numbers = partitions_of(log, partition)
        for number in numbers:
            check_root(log, config.need_root(), number)
        for number in numbers:
            with output.progress(f"archive, partition {number}") as bar:
                result = copy(log, number, folder, **limits, on_progress=bar)
            done.append(result)
            if give_up:
                with output.progress(f"archive, partition {number}, giving up") as bar:
                    tombstone(log, number, folder, result, **limits, on_progress=bar)
        if expire_rows:
            _expire_rows(config, log, done, by)
    if as_json:
        output.print_json(done)
    for one in done if not as_json else ():
        _show_archived(one, give_up=give_up)


def _expire_rows(config: Config, log: ArchivableLog, done: Sequence[ArchiveRun], by: str) -> None:
    from consumers.tools.archive.log import FOLDER
    from consumers.tools.rows.expiry import expire_rows

    with connect_client(config, by or user()) as client:
        for one in done:
            expire_rows(client, log, config.need_root() / FOLDER, one)


def _show_archived(one: ArchiveRun, *, give_up: bool) -> None:
    text = (
        f"{one.outcomes} outcomes and {one.transactions} transactions in {one.segments} new "
        f"segments of {one.bytes:,} bytes; archived through {one.through}:{one.head[:16]}"
    )
    gone = f"; {one.given_up} transactions left to compaction" if give_up else ""
    if one.beyond:
        gone += f"; {one.beyond} segments stay: they reach beyond the limits"
    if one.waiting:
        gone += f"; {one.waiting} segments stay: rows in them wait for a row writer"
    output.print_check(f"partition {one.partition}", "ok", text + gone)
    for expiry in one.expired:
        output.print_check("expired", "ok", expiry)


def _before_ms(days: float | None) -> int | None:
    import time

    return None if days is None else int((time.time() - days * 86_400) * 1000)
