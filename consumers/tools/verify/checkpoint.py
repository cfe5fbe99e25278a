"""Could a committer continue from the checkpoint in a root? Looks at its files, not into them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from commitlog.adapters.disk import with_advice
from commitlog.errors import CorruptLog
from consumers.partition.checkpoints.checkpoint_heads import check_files
from consumers.tools.verify.findings import Problem, ProblemKind


def checkpoint_problems(root: Path | None, partition: int) -> Iterator[Problem]:
    """Read a partition's checkpoint in a root; yield what is wrong with it."""
    if root is None:
        return
    try:
        check_files(root, partition)
    except (CorruptLog, OSError) as error:
        yield Problem(ProblemKind.CHECKPOINT, with_advice(error))
