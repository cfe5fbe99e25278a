"""Reads the rows of every table's newest version and counts them against its manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from commitlog.adapters.lance_datasets import count_rows
from commitlog.core.manifest.encoded_fragments import living_rows
from commitlog.errors import CommitLogError
from commitlog.model.table import format_table_id
from consumers.tools.verify.findings import Problem, ProblemKind
from consumers.tools.verify.versions import LifeManifests


def read_contents(
    lives: Iterable[LifeManifests], on_rows: Callable[[int], None] = lambda rows: None
) -> Iterator[Problem]:
    """Read the tables one after the other; `on_rows` is called with how many rows were read."""
    for life in lives:
        name, version = format_table_id(life.table), life.state.version
        read: dict[int, int] = {}
        try:
            for fragment_id, rows in count_rows(life.location, version):
                read[fragment_id] = rows
                on_rows(rows)
        except (CommitLogError, OSError) as error:
            text = f"the rows of {name}, version {version}, cannot be read: {error}"
            yield Problem(ProblemKind.ROWS, text, table=name, version=version)
            continue
        expected = {number: living_rows(data) for number, data in life.state.fragments.items()}
        wrong = [n for n in sorted({*expected, *read}) if expected.get(n) != read.get(n)]
        for number in wrong:
            text = (
                f"fragment {number} of {name}, version {version}, has {read.get(number)} rows, "
                f"and the log says {expected.get(number)}"
            )
            yield Problem(ProblemKind.ROWS, text, table=name, version=version)
