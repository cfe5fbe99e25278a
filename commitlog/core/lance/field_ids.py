"""Ids of columns that mean another column by now.

A file names its columns by their ids. Lance gives a new column the highest id that no column and no
fragment has, so the id of a dropped column comes back once the fragments that had it are compacted
or gone. Files that were written before would then be read as the new column.
"""

from __future__ import annotations

from typing import Any

from commitlog.core.conflicts.candidate import Nearest
from commitlog.core.draft import Parsed, View
from commitlog.core.operations.operation import LanceOperation
from commitlog.core.operations.references import DROPPED_BY
from commitlog.core.refusals import conflict_refused


def check_field_ids(
    view: View, of_kind: LanceOperation[Any], parsed: Parsed, read_version: int
) -> None:
    """Refuse files with a column that was dropped since, and whose id another column has now.

    A column that the head doesn't have is ignored, as by Lance.
    """
    history, state = view.table.history, view.state
    kinds = {how: how.partition(".")[0] for how in DROPPED_BY}
    hows = [how for how, kind in kinds.items() if history.first_of_kind(kind, read_version)]
    if not hows or state is None or of_kind.replaces_fragments:
        return
    files = of_kind.brought_files(of_kind.body(parsed.transaction))
    named = {field_id for file in files for field_id in file.fields}
    nearest = Nearest("field_dropped")
    for field_id in sorted(named.intersection(state.header.fields)):
        for how in hows:
            nearest.offer(history.first(how, field_id, read_version), key=field_id)
    if nearest.finding is not None:
        raise conflict_refused(
            view.table, of_kind.name, nearest.finding, read_version, view.table.version
        )
