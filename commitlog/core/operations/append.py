"""Append: new fragments, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable

from commitlog.core.conflicts.history import WriteSet
from commitlog.core.conflicts.write_sets import UNKNOWN_KEYS, Keys, explicit_keys
from commitlog.core.manifest.fragment_changes import with_ids
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.operations.operation import LanceOperation, ManifestChange
from commitlog.core.schema_check.messages import fragments_problem
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.names import NameProblem
from commitlog.model.operations import KeyHashes

PLAIN = WriteSet("Append")
"""What the history keeps of an append without keys."""
KEYED = "Append.keys"
"""What a history is keyed by that holds an append with keys."""


class AppendOperation(LanceOperation[Transaction.Append]):
    """Adds rows."""

    field = "append"
    only_adds = True
    keeps_indices = True
    built_here_since = 1

    def problem(self, body: Transaction.Append) -> NameProblem | None:
        return fragments_problem(body.fragments)

    def named_fragments(self, body: Transaction.Append) -> list[int]:
        return [fragment.id for fragment in body.fragments if fragment.id]

    def keys(self, body: Transaction.Append, explicit: KeyHashes | None) -> Keys | None:
        return explicit_keys(explicit) if explicit is not None else UNKNOWN_KEYS

    def write_set(
        self,
        body: Transaction.Append,
        explicit: KeyHashes | None,
        before: ManifestState,
        *,
        has_keys: bool,
    ) -> WriteSet:
        # That keys are unknown is noted only where an Append has some.
        if explicit is None and not has_keys:
            return PLAIN
        return super().write_set(body, explicit, before, has_keys=has_keys)

    def new_fragments(self, body: Transaction.Append) -> Iterable[DataFragment]:
        return body.fragments

    def build(self, state: ManifestState, transaction: Transaction) -> ManifestChange:
        is_current = transaction.read_version == state.version
        added = with_ids(state, transaction.append.fragments, is_current=is_current)
        return ManifestChange(
            fragments=added.fragments,
            features=state.fragments.features() | added.features,
            is_mixed=added.is_mixed,
            max_fragment_id=added.max_fragment_id,
            next_row_id=added.next_row_id,
        )
