"""Whether the counters of a version leave room for what comes after it."""

from __future__ import annotations

from typing import Any

from commitlog.core.decisions import Refused, rejected
from commitlog.core.manifest.fragment_changes import FRAGMENT_ID_MAX
from commitlog.core.manifest.manifest_state import ManifestDelta, ManifestState
from commitlog.core.operations.operation import LanceOperation
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.model.records import Code


def check_fragment_ids(
    state: ManifestState, delta: ManifestDelta, of_kind: LanceOperation[Any]
) -> None:
    """Refuse ids of fragments that leave no room for others: they end at 2**32."""
    last = state.last_fragment_id
    new = [i for i, _ in delta.fragments if i not in state.fragments]
    highest = max(new, default=-1)
    if delta.max_fragment_id is not None and delta.max_fragment_id < highest:
        raise _counter_refused(
            "max_fragment_id", delta.max_fragment_id, highest, highest=FRAGMENT_ID_MAX
        )
    maximum = max(highest, delta.max_fragment_id or 0)
    allowed = max(last, 0) + len(new)
    if not of_kind.reserves_ids and maximum > allowed:
        raise _counter_refused("max_fragment_id", maximum, 0, highest=allowed)
    if maximum > FRAGMENT_ID_MAX:
        raise _counter_refused("max_fragment_id", maximum, 0, highest=FRAGMENT_ID_MAX)


def check_row_ids(state: ManifestState, delta: ManifestDelta) -> None:
    """Refuse a next row id that leaves no room: they end at 2**64."""
    rows = sum(DataFragment.FromString(encoded).physical_rows for _, encoded in delta.fragments)
    if delta.next_row_id > state.next_row_id + rows:
        most = state.next_row_id + rows
        raise _counter_refused("next_row_id", delta.next_row_id, 0, highest=most)


def _counter_refused(counter: str, value: int, lowest: int, *, highest: int) -> Refused:
    bounds = {"lowest": lowest, "highest": highest}
    return rejected(
        Code.INVALID_OPERATION, "staged_counter_unusable", counter=counter, value=value, **bounds
    )
