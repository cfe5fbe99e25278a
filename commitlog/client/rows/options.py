"""The options of the methods that change rows, for type checkers, editors and `check_options`.

`Execution` and `MergeOptions` say what each means and what holds without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from commitlog.client.leader.tickets import Wait
from commitlog.client.rows.host import Pairs
from commitlog.model.records import Application, Expect


class RowsOptions(TypedDict, total=False):
    """Options of `append`, `update`, `delete` and `merge_insert`; see `Execution`."""

    transaction_id: str | None
    application: Application | None
    properties: Pairs
    expects: Sequence[Expect]
    attempts_max: int
    timeout: float
    wait: Wait
    notes_counts: bool
    by_log: bool


class UpsertChoices(TypedDict, total=False):
    """Options of `write_rows` with the mode `upsert`; see `MergeOptions`."""

    when_matched_update_all: bool | None
    when_matched_update_all_filt: str | None
    when_not_matched_insert_all: bool


class MergeChoices(UpsertChoices, total=False):
    """Options of a merge; see `MergeOptions`."""

    when_not_matched_by_source_delete: bool
    when_not_matched_by_source_delete_filt: str | None
    when_matched_delete: bool
    when_matched_fail: bool
    use_index: bool


class MergeInsertOptions(MergeChoices, RowsOptions, total=False):
    """Options of `CommitLog.merge_insert`."""
