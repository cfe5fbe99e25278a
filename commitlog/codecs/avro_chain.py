"""The chain of hashes over records' bytes, where machine code is there.

It follows what most of a log is: outcomes that are valid where they stand, each of which answers
the next transaction; a transaction that is what its outcome says, is made of commits to Lance
tables alone, names in its content whoever submitted it or nobody, and has no property that the
caller wants to see. Before the first pair that is anything else it stops, and Python looks at it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from commitlog.codecs import lanes
from commitlog.codecs.avro import compiled
from commitlog.model.operations import LanceCommit
from commitlog.model.records import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commitlog.codecs._native import Appends, Chain
    from commitlog.ports import RawRecord

DIGEST_BYTES = 32
_OUTCOMES = ("outcome-v1", "outcome-v2")
_TRANSACTION = "transaction-v1"
# In the order in which the machine code takes them.
_OUTCOME_FIELDS = (
    *("epoch", "node", "previous_hash", "hash", "sequence", "transaction_id"),
    *("transaction_offset", "status", "payload_hash"),
)
_TRANSACTION_FIELDS = (
    *("transaction_id", "principal", "properties", "operations", "attempt", "submitted_at_ms"),
    *("application", "expects"),
)


class ChainHead(NamedTuple):
    """The chain where a run begins: under whom, and behind which outcome."""

    epoch: int
    sequence: int
    node: str
    hash: bytes


class FollowedRun(NamedTuple):
    """Plain outcomes that follow each other."""

    outcomes: int
    committed: int
    unattributed: int
    """Transactions with a principal that their content doesn't name."""
    first_answered: int
    """The least offset of a transaction that is answered; -1 if there is none."""
    last_answered: int
    hashes: bytes
    """Of the outcomes, in their order: 32 bytes each."""


class PlainChain:
    """Follows records that are plain."""

    def __init__(self, principal: str, noted: Sequence[str], native: type[Chain]) -> None:
        """Take the properties of a transaction that name its principal, and that are looked at."""
        transaction = compiled(_TRANSACTION)
        kinds = _plan_of(transaction.shape(_TRANSACTION_FIELDS), "operations")[1][0][1]
        [operation] = [number for number, kind in enumerate(kinds) if kind[1] is LanceCommit]
        outcomes = tuple(compiled(name).shape(_OUTCOME_FIELDS) for name in _OUTCOMES)
        self._native = native(
            outcomes=outcomes,
            transaction=transaction.shape(_TRANSACTION_FIELDS),
            principal=principal.encode(),
            noted=tuple(name.encode() for name in noted),
            committed=_plan_of(outcomes[0], "status")[1].index(Status.COMMITTED),
            operation=operation,
        )

    def follow(
        self,
        outcomes: list[RawRecord],
        first: int,
        end: int,
        head: ChainHead,
        transactions: list[RawRecord] | None = None,
        taken: int = 0,
        appends: Appends | None = None,
    ) -> FollowedRun:
        """Follow outcomes from index `first` on, and before offset `end`.

        What they answer is `transactions` from index `taken` on; None: it isn't looked at. With
        `appends` the run ends before what they don't decide alike.
        """
        found = self._native.follow(outcomes, first, end, transactions, taken, *head, appends)
        return FollowedRun(*found)


def _plan_of(shape: tuple[Any, ...], field: str) -> Any:
    """Return the plan of a record's field."""
    names, plans = shape[0][2:4]
    return plans[names.index(field)]


@cache
def plain_chain(principal: str, noted: tuple[str, ...] = ()) -> PlainChain | None:
    """Return what follows plain records in machine code; None where there is none."""
    return None if lanes.CHAIN is None else PlainChain(principal, noted, lanes.CHAIN)
