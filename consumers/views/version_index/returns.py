"""What the registration of a table that was there before changed of its fragments.

Such a record has all fragments of the table. Of a table that came back, most are as they were, and
what is no longer there isn't named. So a row stays for what differs, and one is added for what is
gone: a fragment's rows tell its life, whoever reads them and however often the table went.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from commitlog.core.log.replica import Decided
from consumers.views.version_index.contents import Row, without_fragment
from consumers.views.version_index.operation_results import DoneOperation, Told, beside_appends
from consumers.views.version_index.rows import place_of

IMAGES_BEFORE = """
SELECT incarnation, fragment_id,
       arg_max(physical_rows, (sequence, ordinal)) FILTER (physical_rows IS NOT NULL),
       arg_max(deleted_rows, (sequence, ordinal)) FILTER (deleted_rows IS NOT NULL),
       arg_max(bytes, (sequence, ordinal)) FILTER (bytes IS NOT NULL),
       arg_max(files, (sequence, ordinal)) FILTER (files IS NOT NULL),
       arg_max_null(deletion_file, (sequence, ordinal))
FROM fragment_changes WHERE list_contains(?, incarnation)
GROUP BY ALL HAVING NOT arg_max(removed, (sequence, ordinal))
"""

_SEQUENCE, _ORDINAL = 1, 3
_FRAGMENT_ID, _REMOVED = 7, 8
_IMAGE = slice(9, 14)
"""Columns of `fragment_changes`: rows, deleted ones, bytes, files, the deletion file."""

Images = dict[int, Sequence[object]]
Load = Callable[[list[str]], Iterable[Row]]
"""Returns (incarnation, fragment, *image) of all fragments of these tables before the batch."""


def registers(told: Iterable[Told]) -> bool:
    """Return True if a batch registers a table, which may have been there before."""
    return any(one.lists_all for _, one in beside_appends(told))


def changed_by_returns(told: Sequence[Told], changes: Iterable[Row], load: Load) -> list[Row]:
    """Return a batch's rows of `fragment_changes`, those of registrations as what they changed."""
    by_place: Mapping[tuple[object, object], list[Row]] = defaultdict(list)
    for row in changes:
        by_place[row[_SEQUENCE], row[_ORDINAL]].append(row)
    operations = list(beside_appends(told))
    wanted = {one.incarnation for _, one in operations if one.incarnation and one.lists_all}
    standing: dict[str, Images] = {one: {} for one in wanted}
    for incarnation, number, *image in load(sorted(wanted)):
        standing[incarnation][number] = image
    kept: list[Row] = []
    for decided, one in operations:
        rows = by_place[decided.outcome.sequence, one.ordinal]
        known = standing.get(one.incarnation or "")
        if known is not None:
            if one.lists_all:
                rows = [*_differing(decided, one, rows, known)]
            _take(known, rows)
        kept += rows
    return kept


def _differing(
    decided: Decided, one: DoneOperation, rows: Iterable[Row], known: Images
) -> Iterable[Row]:
    found = {row[_FRAGMENT_ID]: row for row in rows}
    head = (*place_of(decided), one.ordinal, one.table, one.incarnation, one.version)
    for fragment_id in sorted(known.keys() - found.keys()):
        yield (*head, *without_fragment(fragment_id))
    for fragment_id, row in found.items():
        if list(row[_IMAGE]) != list(known.get(fragment_id, ())):
            yield row


def _take(known: Images, rows: Iterable[Row]) -> None:
    """Fold rows of one operation; what a row leaves out is as before, but for the last column."""
    for row in rows:
        fragment_id = row[_FRAGMENT_ID]
        if row[_REMOVED]:
            known.pop(fragment_id, None)
            continue
        *image, deletion_file = row[_IMAGE]
        before = known.get(fragment_id, (None,) * len(image))
        merged = [old if new is None else new for old, new in zip(before, image, strict=False)]
        known[fragment_id] = [*merged, deletion_file]
