"""Remembered ids: packed or not, they are what a plain table of all of them would say."""

from __future__ import annotations

import json
import random
import tracemalloc
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import pytest

from commitlog.core.log import deduplication
from commitlog.core.log.canonical import to_json
from commitlog.core.log.deduplication import Deduplication
from commitlog.core.log.known_ids import KnownId, known, made_ms, row_of
from commitlog.core.log.packed_ids import IdIndex, PackedIds
from commitlog.model.records import Code, OperationResult, Outcome, Status

CHUNK = 16
HORIZON_MS = 1000


class Plain:
    """All ids in one table, and the chunks that a snapshot has of them."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Any]] = {}
        self.changed: dict[int, int] = {}
        self.forgotten_ms = -1

    def get(self, transaction_id: str) -> KnownId | None:
        row = self.rows.get(transaction_id)
        return None if row is None else known(json.dumps(row).encode())

    def remember(self, outcome: Outcome, kept_from_ms: int, made_at_ms: int) -> None:
        before = self.rows.pop(outcome.transaction_id, None)
        if before is not None:
            self.changed[before[8] // CHUNK] = outcome.sequence
        row = json.loads(row_of(outcome, kept_from_ms, made_at_ms))
        self.rows[outcome.transaction_id] = row
        self.changed[outcome.sequence // CHUNK] = outcome.sequence

    def prune(self, floor_ms: int, sequence: int) -> None:
        for name, row in list(self.rows.items()):
            if row[5] >= floor_ms:
                return
            del self.rows[name]
            self.changed[row[8] // CHUNK] = sequence
            self.forgotten_ms = max(self.forgotten_ms, made_ms(row))
            self.changed = {n: at for n, at in self.changed.items() if n >= row[8] // CHUNK}

    def parts(self) -> dict[int, tuple[int, Any, list[str]]]:
        found = {}
        for number, changed in self.changed.items():
            rows = [row for row in self.rows.values() if row[8] // CHUNK == number]
            body = {"changed": changed, "ids": rows}
            found[number] = (changed, body, [row[0] for row in rows])
        return found


def an_outcome(random_: random.Random, sequence: int, name: str, attempt: int) -> Outcome:
    result = OperationResult(("t", "\u00fc\n"), "i-7", "append", sequence)
    digest = random_.choice([random_.randbytes(32), random_.randbytes(32), b"", b"short"])
    return Outcome(
        transaction_id=name,
        attempt=attempt,
        transaction_offset=sequence,
        sequence=sequence,
        status=random_.choice([Status.COMMITTED, Status.RETRYABLE]),
        time_ms=sequence,
        payload_hash=digest,
        code=random_.choice([Code.NONE, Code.CONFLICT]),
        results=random_.choice([(), (result,)]),
    )


def a_name(random_: random.Random) -> str:
    made = str(uuid.UUID(int=random_.getrandbits(128)))
    odd = f'a "{random_.random()}",\\1,"x" \u00e9\x01\x02\n'
    return random_.choice([made, made, made.upper(), made.replace("-", ""), odd])


def restored(once: Deduplication, random_: random.Random) -> Deduplication:
    again = Deduplication()
    again.forgotten_ms = once.forgotten_ms
    for number, _ in list(once.chunks()):
        data, hint = once.encode_with_hint(number)
        again.restore_chunk(number, data, hint if random_.random() < 0.8 else None)
    return again


def check_same(once: Deduplication, plain: Plain, asked: list[str]) -> None:
    for name in asked:
        assert once.get(name) == plain.get(name), name
        assert once.is_known(name) == (name in plain.rows)
    assert once.forgotten_ms == plain.forgotten_ms
    found = {}
    for number, changed in once.chunks():
        data, hint = once.encode_with_hint(number)
        names, lengths = json.loads(hint)
        assert data == to_json(json.loads(data)), "canonical"
        assert len(data) == len(b'{"changed":%d,"ids":[]}' % changed) + sum(lengths) + max(
            0, len(lengths) - 1
        )
        found[number] = (changed, json.loads(data), names)
    assert found == plain.parts()
    assert list(found) == sorted(found)


def test_a_chunk_is_unpacked_once_however_many_of_its_ids_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A writer may send again all that it ever sent, in any order."""
    monkeypatch.setattr(deduplication, "CHUNK_OUTCOMES", CHUNK)
    once, random_, chunks = Deduplication(), random.Random(1), 6
    for sequence in range(chunks * CHUNK):
        once.remember(an_outcome(random_, sequence, f"{sequence}", 1), 0, 0)
    again, unpacked = Deduplication(), Counter[int]()
    for number, _ in once.chunks():
        saved = once.encode_with_hint(number)

        def unpack(number: int = number, saved: tuple[bytes, bytes] = saved) -> tuple[bytes, bytes]:
            unpacked[number] += 1
            return saved

        again.restore_sealed(number, unpack)
    for sequence in random_.choices(range(chunks * CHUNK), k=400):
        assert again.get(f"{sequence}") == once.get(f"{sequence}")
    assert unpacked == dict.fromkeys(range(chunks), 2), "to restore it, and to look into it"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_ids_are_those_of_a_plain_table_whatever_happens(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_ = random.Random(seed)
    for name, value in {
        "CHUNK_OUTCOMES": CHUNK,
        "_OPEN_CHUNKS": random_.choice([1, 2, 5]),
        "_UNPACKED_CHUNKS": random_.choice([1, 2, 100]),
        "_ROWS_PER_STEP": random_.choice([1, 3, 64]),
    }.items():
        monkeypatch.setattr(deduplication, name, value)
    monkeypatch.setattr("commitlog.core.log.packed_ids._BLOCK_ROWS", random_.choice([3, 128]))
    once, plain = Deduplication(), Plain()
    names: list[str] = []
    now_ms = 0
    for sequence in range(1, random_.choice([30, 400, 900])):
        now_ms += random_.choice([0, 1, 1, 1, 5, HORIZON_MS // 20])
        now_ms += random_.choice([HORIZON_MS, 3 * HORIZON_MS]) if random_.random() < 0.004 else 0
        again = bool(names) and random_.random() < 0.2
        name = random_.choice(names) if again else a_name(random_)
        names.append(name)
        before = plain.get(name)
        made = an_outcome(random_, sequence, name, (before.attempt + 1) if before else 1)
        kept_ms = now_ms + random_.choice([0, 0, 3, HORIZON_MS])
        made_at_ms = kept_ms - random_.choice([0, 0, 2])
        for each in (once, plain):
            each.remember(made, kept_ms, made_at_ms)
            each.prune(now_ms - HORIZON_MS, sequence)
        if random_.random() < 0.03:
            check_same(once, plain, [*random_.choices(names, k=20), a_name(random_)])
        if random_.random() < 0.02:
            once = restored(once, random_)
    check_same(once, plain, names)


def test_no_outcome_waits_for_a_whole_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    packed, add = [0], PackedIds.add

    def counting(self: PackedIds, ids: Iterable[tuple[str, bytes]]) -> None:
        rows = list(ids)
        packed[0] += len(rows)
        add(self, rows)

    monkeypatch.setattr(PackedIds, "add", counting)
    monkeypatch.setattr(deduplication, "CHUNK_OUTCOMES", 256)
    random_, once, most = random.Random(1), Deduplication(), 0
    for sequence in range(1, 2_000):
        before = packed[0]
        once.remember(an_outcome(random_, sequence, str(sequence), 1), sequence, sequence)
        most = max(most, packed[0] - before)
    assert packed[0] > 1_000
    assert most <= deduplication._ROWS_PER_STEP


def test_ids_that_share_a_key_are_told_apart() -> None:
    odd = "not a uuid"
    twin = str(uuid.UUID(bytes=blake2b(odd.encode(), digest_size=16).digest()))
    random_ = random.Random(1)
    outcomes = [an_outcome(random_, at, name, 1) for at, name in enumerate((odd, twin))]
    rows = [row_of(one, 1, 1) for one in outcomes]
    both = PackedIds(zip((odd, twin), rows, strict=True))
    assert [both.get(odd), both.get(twin)] == rows
    both.take_out(odd)
    assert both.get(odd) is None
    assert both.get(twin) == rows[1]
    assert list(both.rows()) == rows[1:]
    assert both.count == 1


def test_the_index_finds_what_was_added_and_not_removed() -> None:
    index, random_ = IdIndex(), random.Random(2)
    chunks = {a_name(random_): random_.randrange(1 << 20) for _ in range(20_000)}
    for name, chunk in chunks.items():
        index.add(name, chunk)
    gone = set(random_.sample(sorted(chunks), 5_000))
    for name in gone:
        index.remove(name, chunks[name])
    for name, chunk in chunks.items():
        assert (chunk in index.find(name)) is (name not in gone)


@pytest.mark.slow
def test_an_id_of_long_ago_costs_a_hundred_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deduplication, "CHUNK_OUTCOMES", 512)
    random_, count = random.Random(3), 15_000
    once = Deduplication()
    tracemalloc.start()
    try:
        for sequence in range(1, count + 1):
            name = str(uuid.UUID(int=random_.getrandbits(128)))
            result = OperationResult(("shop", "orders"), "i-1", "append", sequence + 1, sequence)
            made = replace(
                an_outcome(random_, sequence, name, 1),
                payload_hash=random_.randbytes(32),
                results=(result,),
            )
            once.remember(made, 1, 1)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    open_chunks = 3  # the oldest and the two newest
    assert held < count * 100 + open_chunks * deduplication.CHUNK_OUTCOMES * 700
