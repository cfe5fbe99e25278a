"""ReserveFragments: ids of fragments for a compaction that is to come."""

from __future__ import annotations

from commitlog.core.manifest.fragment_changes import FRAGMENT_ID_MAX, ids_exhausted
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.operations.operation import LanceOperation, ManifestChange
from commitlog.lancepb.transaction_pb2 import Transaction


class ReserveFragmentsOperation(LanceOperation[Transaction.ReserveFragments]):
    """Takes ids that no other fragment gets."""

    field = "reserve_fragments"
    keeps_rows = True
    keeps_indices = True
    reserves_ids = True
    built_here_since = 1
    is_carried = True

    def build(self, state: ManifestState, transaction: Transaction) -> ManifestChange:
        return ManifestChange(max_fragment_id=_maximum(state, transaction.reserve_fragments))

    def complete(self, built: ManifestState, transaction: Transaction) -> None:
        built.max_fragment_id = _maximum(built, transaction.reserve_fragments)


def _maximum(state: ManifestState, body: Transaction.ReserveFragments) -> int:
    """Return the highest fragment id once the operation reserved its own."""
    maximum = state.max_fragment_id
    if maximum is None:
        maximum = max(state.fragments.last_id, 0)
    maximum += body.num_fragments
    if maximum > FRAGMENT_ID_MAX:
        raise ids_exhausted(maximum)
    return maximum
