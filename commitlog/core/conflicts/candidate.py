"""An operation that asks to commit, as the conflict rules see it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from commitlog.core.conflicts.write_sets import Keys
from commitlog.lancepb.transaction_pb2 import Transaction


class Verdict(StrEnum):
    """What a cell of the grid, or its rule, says about a pair of operations."""

    COMPATIBLE = "compatible"
    RETRYABLE = "retryable"
    INCOMPATIBLE = "incompatible"
    NOT_SUPPORTED = "not supported"


class Finding(NamedTuple):
    """A conflict: with which version, how bad, by which rule, on what."""

    version: int
    verdict: Verdict
    rule: str
    fragments: tuple[int, ...] = ()
    keys: tuple[str, ...] = ()


def moves_rows(operation: Transaction.Update) -> bool:
    """Return True if an Update takes rows out of their fragments and rewrites them."""
    return bool(operation.new_fragments) and operation.update_mode == Transaction.REWRITE_ROWS


class Candidate:
    """One operation that asks to commit."""

    def __init__(
        self,
        kind: str,
        transaction: Transaction,
        *,
        changed: Callable[[Any], Iterable[int]] | None = None,
        keys: Keys | None = None,
        declares_key: bool = False,
        rows_known: frozenset[int] = frozenset(),
        overlays_by_row: bool = False,
        reused: Iterable[Iterable[int]] = (),
        keeps_row_order: bool = False,
        awaits_columns: bool = False,
    ) -> None:
        """Describe the operation; `rows_known` are the fragments whose changed rows are known."""
        self.kind = kind
        self.transaction = transaction
        self.changed = changed
        """Returns the fragments that its operation changes or removes."""
        self.keys = keys
        """The keys of the rows that it adds; None if it adds none."""
        self.declares_key = declares_key
        """Whether the table promises that no key is there twice."""
        self.rows_known = rows_known
        self.overlays_by_row = overlays_by_row
        """Whether `rebase.overlay_rows` compares overlays by row, where the rows are known."""
        self.keeps_row_order = keeps_row_order
        """Whether it is a Rewrite that `rebase.carried_rewrites` can carry over deletions."""
        self.awaits_columns = awaits_columns
        """Whether its writer completes it at its turn (`operations.awaited_columns`)."""
        self.reused = frozenset(chain.from_iterable(reused))
        """The replaced fragments that a fragment reuse index names (`rebase.reused_fragments`)."""

    @cached_property
    def operation(self) -> Any:
        """The operation's own message."""
        field = self.transaction.WhichOneof("operation")
        return getattr(self.transaction, field) if field else None

    @cached_property
    def fragments(self) -> tuple[int, ...]:
        """The fragments that it changes or removes, ascending."""
        return tuple(sorted(set(self.changed(self.operation)))) if self.changed else ()

    def compares_overlaid(self, fragment_id: int) -> bool:
        """Whether a fragment's rows are compared with overlays later, one by one."""
        return self.overlays_by_row and fragment_id in self.rows_known

    @property
    def moves_rows(self) -> bool:
        """Whether it is an Update that rewrites rows in other fragments."""
        return self.kind == "Update" and moves_rows(self.operation)


class Nearest:
    """Keeps the finding of the earliest version; of one version's, the one offered first."""

    def __init__(self, rule: str, verdict: Verdict = Verdict.RETRYABLE) -> None:
        self._rule = rule
        self._verdict = verdict
        self.finding: Finding | None = None

    def offer(
        self,
        version: int,
        *,
        fragment: int | None = None,
        key: Hashable | None = None,
        rule: str = "",
        verdict: Verdict | None = None,
    ) -> None:
        """Take a version that conflicts; 0 means that none does."""
        if not version or (self.finding is not None and version > self.finding.version):
            return
        rule, verdict = rule or self._rule, verdict or self._verdict
        fragments = () if fragment is None else (fragment,)
        keys = () if key is None else (key.hex() if isinstance(key, bytes) else str(key),)
        known = self.finding
        if known is None or version < known.version:
            self.finding = Finding(
                version=version, verdict=verdict, rule=rule, fragments=fragments, keys=keys
            )
        elif known.rule == rule:
            self.finding = known._replace(
                fragments=(known.fragments + fragments)[:10], keys=(known.keys + keys)[:10]
            )
