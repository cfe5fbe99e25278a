"""Which transactions were decided: an id commits at most once, whatever is sent again.

Ids are kept for the horizon of log time that the rules set; a transaction that says it may be
older is refused, since the log could not tell whether it committed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from itertools import islice, takewhile
from typing import NamedTuple

from commitlog.core.log.canonical import to_json
from commitlog.core.log.known_ids import NOTED, TIME_MS, KnownId, id_of, known, made_ms, row_of
from commitlog.core.log.packed_ids import IdIndex, PackedIds
from commitlog.model.records import Outcome

CHUNK_OUTCOMES = 4096
"""Ids whose last outcomes lie in one such range are saved together."""
_OPEN_CHUNKS = 2
"""How many of the newest chunks aren't packed."""
_UNPACKED_CHUNKS = 2
"""How many sealed chunks stay unpacked after an id was looked up in them. Those looked at before
have been packed, so that a chunk is unpacked once, however many of its ids are asked for."""
_ROWS_PER_STEP = 32
"""To pack a chunk at once would have everybody wait for 10 ms. So an outcome does it for so many
ids: the rows of all are packed first, then the ids are moved."""

_UUID_LENGTH = 36
_UUID_VERSION_AT = 14


@lru_cache(maxsize=8)
def uuid_time_ms(transaction_id: str) -> int:
    """Return the time inside a UUIDv7, 0 for every other id; a decision asks three times."""
    if len(transaction_id) != _UUID_LENGTH or transaction_id[_UUID_VERSION_AT] != "7":
        return 0
    try:
        return int(transaction_id[:8] + transaction_id[9:13], 16)
    except ValueError:
        return 0


class Deduplication:
    """The ids of the horizon, in chunks; most chunks no longer change.

    There are millions of them and hardly one is ever asked for. Each is kept as the row that a
    snapshot has of it, which costs neither the garbage collector nor a checkpoint anything; the
    rows of all but the newest chunks are packed. What a checkpoint brings back stays sealed as it
    was read, for the sake of a quick start: only the index learns which ids are in it.
    """

    def __init__(self) -> None:
        self._changed: dict[int, int] = {}
        """All chunks, the oldest first; each is open, sealed or packed."""
        self._open: dict[int, dict[str, bytes]] = {}
        """Rows of chunks that change, the one decided least recently first."""
        self._sealed: dict[int, _Sealed] = {}
        self._unsealed: dict[int, dict[str, bytes]] = {}
        """Rows of sealed chunks in which an id was looked up, the one of the last look-up last."""
        self._packed: dict[int, PackedIds] = {}
        self._packing: Iterator[None] = iter(())
        """The steps that are left to pack a chunk, which is open until the last one."""
        self._in_packing = -1
        """The chunk that is being packed; -1: none."""
        self._chunk_of: dict[str, int] = {}
        """The ids of chunks that are open."""
        self._index = IdIndex()
        """The ids of chunks that are packed or sealed."""
        self._unknown: str | None = None
        """The id that was looked for last and isn't known: a new one is looked for three times."""
        self.oldest_ms = 0
        """A time at or before which nothing was decided that is still known; 0: look."""
        self.forgotten_ms = -1
        """No id that was made later, by its own account, has been forgotten."""
        self.clock_ms = 0
        """What ids are forgotten by, where that isn't the time of the outcomes."""
        self.appended_ms = 0
        """What the broker's clock said at the last record, where `clock_ms` goes on by it."""

    def get(self, transaction_id: str) -> KnownId | None:
        """Return what is known of an id."""
        found = self._find(transaction_id)
        return None if found is None else known(found[1])

    def is_known(self, transaction_id: str) -> bool:
        """Return True if an id was decided."""
        return self._find(transaction_id) is not None

    def is_too_old(self, transaction_id: str, submitted_at_ms: int, floor_ms: int) -> bool:
        """Return True if an unknown id may have been decided and forgotten."""
        floor = max(floor_ms, self.forgotten_ms + 1)
        born = uuid_time_ms(transaction_id)
        return 0 < submitted_at_ms < floor or 0 < born < floor

    def remember(self, outcome: Outcome, kept_from_ms: int, made_at_ms: int) -> None:
        """Note an outcome under its id.

        The id's horizon counts from `kept_from_ms`; by its own account it was made at
        `made_at_ms`.
        """
        transaction_id, sequence = outcome.transaction_id, outcome.sequence
        before = self._find(transaction_id)
        if before is not None:
            self._take_out(transaction_id, before[0])
            self._changed[before[0]] = sequence
            self.oldest_ms = 0
        self._note(transaction_id, row_of(outcome, kept_from_ms, made_at_ms), sequence, sequence)
        next(self._packing, None)

    def lookups(self) -> tuple[dict[str, int], Callable[[str], list[int]]]:
        """Return the chunks of open ids, and what finds the other chunks that an id may be in."""
        return self._chunk_of, self._index.find

    def remember_all(self, rows: Mapping[str, bytes], sequence: int) -> None:
        """Note ids that aren't known: the last one under outcome `sequence`, without a gap."""
        left, at = iter(rows.items()), sequence + 1 - len(rows)
        while at <= sequence:
            number = at // CHUNK_OUTCOMES
            end = min((number + 1) * CHUNK_OUTCOMES, sequence + 1)
            of_chunk = dict(islice(left, end - at))
            self._unknown = None
            self._opened(number).update(of_chunk)
            self._chunk_of.update(dict.fromkeys(of_chunk, number))
            self._changed[number] = end - 1
            for _ in range(at, end):
                next(self._packing, None)
            at = end

    def prune(self, floor_ms: int, sequence: int) -> None:
        """Forget ids that were decided before `floor_ms`, as of outcome `sequence`."""
        if self.oldest_ms >= floor_ms and self.oldest_ms:
            return
        while (chunk := next(filter(self._count, self._changed), None)) is not None:
            ids = self._opened(chunk)
            transaction_id = next(iter(ids))
            row = json.loads(ids[transaction_id])
            self.oldest_ms = row[TIME_MS]
            if self.oldest_ms >= floor_ms:
                return
            self._take_out(transaction_id, chunk)
            self._changed[chunk] = sequence
            self.forgotten_ms = max(self.forgotten_ms, made_ms(row))
            for empty in list(takewhile(chunk.__ne__, self._changed)):
                if empty == self._in_packing:
                    self._pack(empty)
                del self._changed[empty]
                self._packed.pop(empty, None)
                self._open.pop(empty, None)
                self._unseal(empty)

    def chunks(self) -> Iterable[tuple[int, int]]:
        """Return the chunks' numbers, each with the sequence of the outcome that changed it."""
        return self._changed.items()

    def changed_at(self, number: int) -> int | None:
        """Return the sequence of the outcome that changed a chunk, None if there is none."""
        return self._changed.get(number)

    def encode_chunk(self, number: int) -> bytes:
        """Return a chunk's ids as JSON, in the order in which they were decided last."""
        return self.encode_with_hint(number)[0]

    def encode_with_hint(self, number: int) -> tuple[bytes, bytes]:
        """Return also what lets `restore_chunk` take a chunk back without reading its rows."""
        if number in self._sealed:
            return self._sealed[number].unpack()
        rows = list(self._rows(number))
        data = b'{"changed":%d,"ids":[%b]}' % (self._changed[number], b",".join(rows))
        ids = self._open[number] if number in self._open else map(id_of, rows)
        return data, to_json([list(ids), list(map(len, rows))])

    def restore_chunk(self, number: int, data: bytes, hint: bytes | None = None) -> None:
        """Restore a chunk, the oldest first; a sealed one with a hint of what is in it."""
        if hint is not None:
            self.restore_sealed(number, partial(tuple[bytes, bytes], (data, hint)))
            return
        chunk = json.loads(data)
        self._changed[number] = chunk["changed"]
        # A chunk whose ids were all decided again later is empty, and a part all the same.
        self._opened(number)
        for row in chunk["ids"]:
            self._note(row[0], to_json(row), row[NOTED], chunk["changed"])

    def expect(self, chunks: int) -> None:
        """Prepare for so many chunks, all of which are restored next."""
        self._index.expect(chunks * CHUNK_OUTCOMES)

    def restore_sealed(self, number: int, unpack: Callable[[], tuple[bytes, bytes]]) -> None:
        """Restore a chunk, the oldest first, of which `unpack` returns the bytes and the hint."""
        data, hint = unpack()
        ids, _ = json.loads(hint)
        self._unknown = None
        self._changed[number] = int(data[len(_BEFORE_CHANGED) : data.index(b",")])
        self._sealed[number] = _Sealed(unpack, len(ids))
        self._index.add_all(ids, number)

    def _find(self, transaction_id: str) -> tuple[int, bytes] | None:
        if transaction_id == self._unknown:
            return None
        number = self._chunk_of.get(transaction_id)
        if number is None:
            for number in self._index.find(transaction_id):
                is_sealed = number in self._sealed
                found_in = self._sealed_rows(number) if is_sealed else self._packed[number]
                row = found_in.get(transaction_id)
                if row is not None:
                    return number, row
            self._unknown = transaction_id
            return None
        return number, self._open[number][transaction_id]

    def _count(self, number: int) -> int:
        if number in self._packed:
            return self._packed[number].count
        return len(self._open[number]) if number in self._open else self._sealed[number].id_count

    def _rows(self, number: int) -> Iterable[bytes]:
        if number in self._packed:
            return self._packed[number].rows()
        is_open = number in self._open
        return (self._open[number] if is_open else self._sealed_rows(number)).values()

    def _sealed_rows(self, number: int) -> Mapping[str, bytes]:
        """Return a sealed chunk's rows by id, in their order."""
        rows = self._unsealed.pop(number, None)
        if rows is None:
            rows = self._sealed[number].rows()
        self._unsealed[number] = rows
        if len(self._unsealed) > _UNPACKED_CHUNKS:
            self._pack_sealed(next(iter(self._unsealed)))
        return rows

    def _pack_sealed(self, number: int) -> None:
        rows = self._unsealed.pop(number, None) or self._sealed[number].rows()
        del self._sealed[number]
        self._packed[number] = PackedIds(rows.items())

    def _unseal(self, number: int) -> None:
        self._sealed.pop(number, None)
        self._unsealed.pop(number, None)

    def _note(self, transaction_id: str, row: bytes, noted: int, changed: int) -> None:
        number = noted // CHUNK_OUTCOMES
        self._unknown = None
        self._opened(number)[transaction_id] = row
        self._chunk_of[transaction_id] = number
        self._changed[number] = changed

    def _take_out(self, transaction_id: str, number: int) -> None:
        if number == self._in_packing:
            self._pack(number)
        if number in self._sealed:
            self._pack_sealed(number)
        if number in self._packed:
            self._packed[number].take_out(transaction_id)
            self._index.remove(transaction_id, number)
        else:
            del self._open[number][transaction_id], self._chunk_of[transaction_id]

    def _opened(self, number: int) -> dict[str, bytes]:
        """Return a chunk's rows to be changed; the oldest and the newest chunks are asked for."""
        if number == self._in_packing:
            self._pack(number)
        if number in self._open:
            return self._open[number]
        rows = {}
        if number in self._packed or number in self._sealed:
            rows = {id_of(row): row for row in self._rows(number)}
            for transaction_id in rows:
                self._index.remove(transaction_id, number)
            self._packed.pop(number, None)
            self._unseal(number)
            self._chunk_of.update(dict.fromkeys(rows, number))
        self._open[number] = rows
        for older in sorted(self._open)[:-_OPEN_CHUNKS]:
            if older not in (number, next(iter(self._changed))):
                self._begin_packing(older)
        return rows

    def _pack(self, number: int) -> None:
        """Pack a chunk now."""
        self._begin_packing(number)
        for _ in self._packing:
            pass

    def _begin_packing(self, number: int) -> None:
        """Pack a chunk a step at a time; what was begun before is finished at once."""
        if number == self._in_packing:
            return
        for _ in self._packing:
            pass
        if number in self._open:  # unless what was finished just now was this chunk's packing
            self._packing, self._in_packing = self._steps(number), number

    def _steps(self, number: int) -> Iterator[None]:
        ids, rows = list(self._open[number]), iter(self._open[number].items())
        packed = PackedIds()
        for _ in range(0, len(ids), _ROWS_PER_STEP):
            packed.add(islice(rows, _ROWS_PER_STEP))
            yield
        packed.end()
        self._packed[number] = packed
        for at in range(0, len(ids), _ROWS_PER_STEP):
            for transaction_id in ids[at : at + _ROWS_PER_STEP]:
                del self._chunk_of[transaction_id]
                self._index.add(transaction_id, number)
            yield
        del self._open[number]
        self._in_packing = -1


_BEFORE_CHANGED = b'{"changed":'


class _Sealed(NamedTuple):
    """A chunk as it was saved."""

    unpack: Callable[[], tuple[bytes, bytes]]
    """Returns its bytes, and the hint: the ids, and the lengths of their rows."""
    id_count: int

    def rows(self) -> dict[str, bytes]:
        data, hint = self.unpack()
        rows: dict[str, bytes] = {}
        at = data.index(b"[") + 1
        for transaction_id, length in zip(*json.loads(hint), strict=True):
            rows[transaction_id] = data[at : at + length]
            at += length + 1
        return rows
