"""What others remember of a log's end: a log that lost its tail is whole by itself.

The committer's checkpoint and the version index each name the last outcome that they hold, with
its offset and hash; an operator may have noted one too. An outcome that somebody holds and the log
has not, or has otherwise, means that acknowledged commits are lost.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from commitlog.adapters.disk import with_advice
from commitlog.adapters.reading import record_at
from commitlog.client.commits.names import like_known
from commitlog.errors import (
    CommitLogError,
    CorruptLog,
    NoSuchTable,
    WrongLog,
)
from commitlog.model.records import Genesis, Outcome
from commitlog.model.table import DomainMap, TableId, format_table_id, parse_table_id
from commitlog.ports import Log
from consumers.partition.checkpoints.checkpoint_heads import check_files, head_path
from consumers.tools.verify.findings import Problem, ProblemKind


@dataclass(frozen=True, slots=True)
class Witness:
    """One outcome that somebody holds."""

    name: str
    sequence: int
    hash: str
    """In hex; a prefix is enough."""
    offset: int = -1
    """In the outcomes topic; -1: it wasn't noted."""


def witnesses(root: Path | None, partition: int) -> Iterator[Witness]:
    """Return what is in a root: a checkpoint, an index."""
    if root is None:
        return
    path = head_path(root, partition)
    try:
        head = json.loads(path.read_bytes())
        chain = head["chain"]
        if head["identity"]["partition"] == partition:
            yield Witness(
                f"the checkpoint {path}", chain["sequence"], chain["hash"], head["outcome_offset"]
            )
    except (OSError, ValueError, KeyError, TypeError):
        pass  # none, or one that `checkpoint_problems` finds
    # DuckDB is loaded here: there may be no index to look at.
    from consumers.views.version_index import comparison

    try:
        sequence, digest, offset = comparison.position(root, partition)
        yield Witness(f"the version index of {root}", sequence, digest.hex(), offset)
    except CommitLogError:
        pass


def checkpoint_problems(root: Path | None, partition: int) -> Iterator[Problem]:
    """Yield why no committer could continue from a root's checkpoint.

    Looks at its files, not into them.
    """
    if root is None:
        return
    try:
        check_files(root, partition)
    except (CorruptLog, OSError) as error:
        yield Problem(ProblemKind.CHECKPOINT, with_advice(error))


def check_table(genesis: Genesis, partition: int, table: str, known: Collection[TableId]) -> None:
    """Raise NoSuchTable if a table would be in this partition and isn't."""
    wanted = parse_table_id(table)
    if DomainMap(genesis.domains).partition(wanted) == partition and wanted not in known:
        there = [format_table_id(one) for one in known]
        hint = like_known(table, there)
        raise NoSuchTable(f"the log has no table {table!r}.", hint=hint)


def check_root(log: Log, root: Path, partition: int) -> None:
    """Raise WrongLog if the checkpoint or the index in a root is another log's."""
    genesis = log.genesis(partition)
    path = head_path(root, partition)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        theirs = json.loads(path.read_bytes())["identity"]
        if theirs["log_id"] != genesis.log_id:
            raise WrongLog(
                f"the checkpoint {path} is of log {theirs['log']!r} ({theirs['log_id']}), not of"
                f" {genesis.log!r} ({genesis.log_id}): name this log's root, or the other log"
            )
    # DuckDB is loaded here: not everybody who imports this has an index to look at.
    from consumers.views.version_index.comparison import check_index_of

    check_index_of(root, genesis.log, genesis.log_id)


def hear(log: Log, partition: int, witness: Witness, sequence: int) -> Problem | None:
    """Compare a witness with a log that is whole up to `sequence`."""
    if witness.sequence <= 0:
        return None
    if witness.sequence > sequence:
        text = (
            f"{witness.name} holds outcome {witness.sequence}, and the log ends with {sequence}: "
            "it lost its tail"
        )
        return Problem(ProblemKind.END, text, sequence + 1)
    if witness.offset < 0:
        return None
    found = _outcome_at(log, partition, witness.offset)
    if found is not None and found.hash.hex().startswith(witness.hash):
        return None
    text = (
        f"{witness.name} holds another outcome {witness.sequence} than the log: it lost outcomes "
        "and went on with others"
    )
    return Problem(ProblemKind.END, text, witness.sequence, witness.offset)


def _outcome_at(log: Log, partition: int, offset: int) -> Outcome | None:
    try:
        found = record_at(log.read_outcomes(partition, offset), offset)
    except CorruptLog:
        return None
    return found.record if found is not None and isinstance(found.record, Outcome) else None
