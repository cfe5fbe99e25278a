"""Which rows a table's property may call expired: what it says is done to the archive."""

from __future__ import annotations

import re
from collections.abc import Sequence

from commitlog.core.decisions import rejected
from commitlog.core.draft import Draft
from commitlog.model.limits import ROWS_EXPIRED_SINCE
from commitlog.model.names import ROWS_EXPIRED_THROUGH
from commitlog.model.operations import Properties
from commitlog.model.records import Code
from commitlog.model.table import TableId, format_table_id

_POSITION = re.compile(r"[1-9][0-9]{0,17}")


def check_expired(
    draft: Draft,
    table: TableId,
    upserts: Properties,
    removals: Sequence[str] = (),
    *,
    said: Properties = (),
    applied: int,
) -> None:
    """Refuse a property that says that rows expired which aren't applied, or takes that back.

    What it says is done to the archive. `said` are the table's properties before.
    """
    values = [value for key, value in upserts if key == ROWS_EXPIRED_THROUGH]
    is_named = bool(values) or ROWS_EXPIRED_THROUGH in removals
    if not is_named or draft.rules.protocol < ROWS_EXPIRED_SINCE:
        return
    known = dict(said).get(ROWS_EXPIRED_THROUGH, "")
    after = int(known) if _POSITION.fullmatch(known) else 0
    is_next = [bool(_POSITION.fullmatch(one)) and after < int(one) <= applied for one in values]
    if is_next != [True] or ROWS_EXPIRED_THROUGH in removals:
        raise rejected(
            Code.INVALID_OPERATION,
            "rows_expired_wrong",
            key=ROWS_EXPIRED_THROUGH,
            table=format_table_id(table),
            value=values[0] if values else "",
            after=after,
            applied=applied,
        )
