"""Decides plain appends of a log again in machine code, and applies them to the state in one step.

Most records of a log are appends without a conflict. A program that decides a log again from its
records alone lets machine code decide runs of them: an append counts if deciding it gives the bytes
of its outcome. Any other record ends the run. The machine, which is the reference for all of this,
decides that one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from commitlog.codecs.lanes import APPEND_HEAD, APPENDS
from commitlog.core.conflicts.grid import RULED
from commitlog.core.lance.direct import append_flags
from commitlog.core.log.canonical import to_json
from commitlog.core.manifest.feature_flags import FLAG_STABLE_ROW_IDS
from commitlog.core.manifest.manifest_state import ManifestDelta, apply_delta
from commitlog.core.manifest.plain_appends import KIND
from commitlog.core.operations.append import KEYED
from commitlog.core.partition.machine import Machine
from commitlog.model.limits import (
    BOUNDED_CLOCK_SINCE,
    CLOCK_STEP_MS,
    CONFIRMED_CLOCK_SINCE,
    INT64_MAX,
)
from commitlog.model.table import TableId

if TYPE_CHECKING:
    from commitlog.codecs._native import AppendHead, Appends

_MS_MIN, _MS_MAX = -1, INT64_MAX // 4
"""Sums of such times fit 64 bits. Other times, and records with such, are left to Python."""


def appends_on(machine: Machine) -> Appends | None:
    """Return the machine code that decides appends on this state; None if Python has to.

    Nothing may be applied to the machine before `apply_appends`.
    """
    once, horizon_ms = machine.deduplication, machine.rules.id_horizon_ms
    times = (machine.time_ms, once.clock_ms, once.appended_ms, once.forgotten_ms, once.oldest_ms)
    if APPENDS is None or min(times) < _MS_MIN or max(*times, horizon_ms) > _MS_MAX:
        return None
    known, packed_in = once.lookups()
    return APPENDS(
        head_of=partial(_head_of, machine),
        known=known,
        packed_in=packed_in,
        time_ms=machine.time_ms,
        clock_ms=once.clock_ms,
        appended_ms=once.appended_ms,
        step_ms=CLOCK_STEP_MS,
        horizon_ms=horizon_ms,
        forgotten_ms=once.forgotten_ms,
        oldest_ms=once.oldest_ms,
        is_bounded=machine.rules.protocol >= BOUNDED_CLOCK_SINCE,
        is_confirmed=machine.rules.protocol >= CONFIRMED_CLOCK_SINCE,
    )


def _head_of(machine: Machine, table_id: TableId) -> AppendHead | None:
    """Return a table's head for appends; None if Python has to look at each of them."""
    table, rules = machine.tables.get(table_id), machine.rules
    if table is None or table.manifest is None or not machine.decides(table_id):
        return None
    state, history, release = table.manifest, table.history, rules.lance_release
    flags = [append_flags(state, release, is_mixed=is_mixed) for is_mixed in (False, True)]
    if None in flags or KEYED in history.keyed or state.next_row_id > INT64_MAX:
        return None
    now = state.reader_feature_flags, state.writer_feature_flags
    others = [kind for kind in history.kinds if kind in RULED[KIND] and kind != KIND]
    assert APPEND_HEAD is not None
    return APPEND_HEAD(
        incarnation=table.incarnation,
        row=to_json([table_id, table.incarnation, KIND])[:-1],
        accepted=state.header.accepted_layouts,
        is_stable=bool(state.reader_feature_flags & FLAG_STABLE_ROW_IDS),
        unmixed_alike=flags[0] == now,
        mixed_alike=flags[1] == now,
        version=state.version,
        next_fragment_id=state.last_fragment_id + 1,
        next_row_id=state.next_row_id,
        oldest=history.floor,
        window=rules.history_versions,
        ruled=INT64_MAX
        if table.declares_key
        else max([history.kinds[kind][-1] for kind in others], default=0),
        room=min(history.room(rules.history_versions), INT64_MAX - state.version),
    )


def apply_appends(machine: Machine, appends: Appends, sequence: int) -> None:
    """Apply the appends that were decided, the last of them by outcome `sequence`."""
    for table_id, head in appends.heads.items():
        if head is None or not head.ids:
            continue
        table = machine.tables[table_id]
        state = table.manifest
        assert state is not None
        delta = ManifestDelta(
            version=head.version,
            timestamp_nanos=head.time_ms * 1_000_000,
            reader_feature_flags=state.reader_feature_flags,
            writer_feature_flags=state.writer_feature_flags,
            max_fragment_id=head.next_fragment_id - 1,
            next_row_id=head.next_row_id,
            transaction_file=f"{head.read_version}-{head.uuid}.txn",
            fragments=tuple(head.fragments),
        )
        apply_delta(state, delta)
        table.history.record_all(head.ids, KIND)
        table.changed_at = head.sequence
    once = machine.deduplication
    once.remember_all(appends.rows, sequence)
    once.clock_ms, once.appended_ms = appends.clock_ms, appends.appended_ms
    machine.sequence, machine.time_ms = sequence, appends.time_ms
