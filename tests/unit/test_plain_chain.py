"""Does the chain that machine code follows over bytes come to what Python finds?"""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from commitlog.adapters.memory import MemoryLog
from commitlog.codecs.avro import encode_transaction
from commitlog.core.log.attribution import PRINCIPAL_PROPERTY
from commitlog.model.operations import DropTable, LanceCommit
from commitlog.model.records import Outcome, Status, Transaction
from consumers.tools.erasure.acts import ERASURE
from consumers.tools.verify import VerifyOptions, verify
from consumers.tools.verify.walk import HASHES_KEPT, Hashes
from tests.lanes import search_logs, verified_alike
from tests.tampering import Copy
from tests.unit.test_verify import Hand, first

if TYPE_CHECKING:
    from commitlog.codecs._native import Chain

SECONDS, SEED = 2.0, 1
TABLE = ("shop", "orders")


@pytest.mark.slow
def test_golden_logs_are_followed(
    native_chain: type[Chain], released_logs: dict[str, MemoryLog]
) -> None:
    for name, log in released_logs.items():
        whole = verify(log, 0, VerifyOptions(chain_only=True))
        assert whole.is_whole, name
        assert verified_alike(log, native_chain)[0] > 0, name
        for sequence in (1, whole.outcomes // 2, whole.outcomes):
            verified_alike(log, native_chain, (sequence, "ab"))


@pytest.mark.slow
def test_logs_that_were_tampered_with_are_found_alike(
    native_chain: type[Chain], released_logs: dict[str, MemoryLog]
) -> None:
    tried, followed = search_logs(released_logs.values(), native_chain, SECONDS, SEED)
    assert tried > 10
    assert followed > tried


def append(*, principal: str = "", named: str | None = None, **others: str) -> Transaction:
    """Return a transaction that may be plain, with properties."""
    properties = others if named is None else {PRINCIPAL_PROPERTY: named, **others}
    return Transaction(
        transaction_id=str(uuid.uuid4()),
        operations=(LanceCommit(TABLE, "Append", 1, b"message"),),
        principal=principal,
        properties=tuple(properties.items()),
    )


def begun() -> Hand:
    """Return a log whose first transaction, which sets the rules, has its outcome."""
    hand = Hand()
    hand.lead(1)
    [submitted] = hand.log.read_transactions(0).poll()
    assert not isinstance(submitted.record, Transaction)
    hand.decide(
        Outcome(
            sequence=1,
            transaction_id=submitted.record.transaction_id,
            transaction_offset=submitted.offset,
            status=Status.COMMITTED,
            payload_hash=submitted.record.payload_hash,
        )
    )
    return hand


def decided(*transactions: Transaction) -> Hand:
    """Return a log in which all of them are committed."""
    hand = begun()
    offset = first(hand)
    for number, transaction in enumerate(transactions):
        hand.log.transactions_writer().append(transaction, partition=0)
        hand.decide(hand.outcome(transaction, offset + number))
    return hand


PLAIN, DROP = append(), DropTable(TABLE)


@pytest.mark.parametrize(
    ("transaction", "is_plain"),
    [
        (PLAIN, True),
        (append(principal="eve"), True),
        (append(principal="eve", named="eve"), True),
        (append(principal="eve", named="mallory"), False),
        (append(named="mallory"), False),
        (append(principal="ävé", note="€" * 100), True),
        (append(**{ERASURE: "{}"}), False),
        (append(**{"a": "b", ERASURE: '{"reason":"r","writes":[[1,0]]}'}), False),
        (replace(PLAIN, transaction_id="x" * 128), True),
        (replace(PLAIN, operations=()), True),
        (replace(PLAIN, operations=(DROP,)), False),
        (replace(PLAIN, operations=(*PLAIN.operations, DROP)), False),
        (replace(PLAIN, payloads=(b"rows",)), False),
    ],
)
def test_what_is_plain(native_chain: type[Chain], transaction: Transaction, is_plain: bool) -> None:
    hand = decided(append(), transaction, append())
    assert verified_alike(hand.log, native_chain)[0] == 2 + is_plain


@pytest.mark.parametrize("key", [None, b"", b"/", b"another/1", b"x", b"ID", b"ID/", b"ID1"])
def test_keys_are_looked_at(native_chain: type[Chain], key: bytes | None) -> None:
    transaction = append()
    copy = Copy(decided(transaction, append()).log)
    at = copy.transaction_of(2)
    named = key and key.replace(b"ID", transaction.transaction_id.encode())
    copy.transactions[at] = replace(copy.transactions[at], key=named)
    is_its = key in (b"ID", b"ID/")
    assert verified_alike(copy.log, native_chain)[0] == (2 if is_its else 0)


def test_answers_out_of_order_end_a_run_until_all_are_given(native_chain: type[Chain]) -> None:
    hand = begun()
    offset = first(hand)
    made = [append() for _ in range(5)]
    for one in made:
        hand.log.transactions_writer().append(one, partition=0)
    for number in (0, 2, 1, 3):
        hand.decide(hand.outcome(made[number], offset + number))
    verified_alike(hand.log, native_chain)
    hand.lead(2)
    hand.decide(hand.outcome(made[4], offset + 4))
    verified_alike(hand.log, native_chain)


def test_content_of_any_size_is_hashed(native_chain: type[Chain]) -> None:
    sizes = (*range(130), 1_000, 70_000)
    made = [append(note="x" * size) for size in sizes]
    assert verified_alike(decided(*made).log, native_chain)[0] == len(sizes)
    transaction = append()
    digest = hashlib.sha256(encode_transaction(transaction)).digest()
    wrong = Copy(decided(transaction).log)
    wrong.chain_again(lambda o: replace(o, payload_hash=digest) if o.sequence == 2 else o)
    assert verified_alike(wrong.log, native_chain)[0] == 0


def test_the_newest_hashes_are_known() -> None:
    hashes = Hashes()
    known: dict[int, bytes] = {}
    sequence = 1
    for count in (1, 2, 9_000, 3, 5_000, 9_000, 1):
        added = [hashlib.sha256(b"%d" % (sequence + n)).digest() for n in range(count)]
        hashes.add(sequence, b"".join(added))
        known |= dict(enumerate(added, sequence))
        sequence += count
        for at in (0, 1, 2, sequence - HASHES_KEPT - 1, sequence - HASHES_KEPT, sequence - 1):
            is_kept = max(1, sequence - HASHES_KEPT) <= at < sequence
            assert hashes.of(at) == (known[at] if is_kept else b""), (at, sequence)
        assert hashes.of(sequence) == b""
