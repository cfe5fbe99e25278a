from collections.abc import Callable
from typing import Any

from commitlog.codecs.lanes import AppendedFiles, Around, EncodedAppend, PlainAppend
from commitlog.ports import RawRecord

INTERFACE: int

def encode_append(fragments: object, read_version: int, uuid: str, /) -> EncodedAppend | None: ...
def encode_append_record(
    fragments: object, read_version: int, uuid: str, time_ms: int, around: Around, /
) -> tuple[bytes, AppendedFiles] | None: ...
def read_plain_append(message: bytes, /) -> PlainAppend | None: ...
def is_plain_fragment(encoded: bytes, /) -> bool: ...
def to_json(value: object, /) -> bytes | None: ...
def read_fragments(data: bytes, /) -> list[tuple[int, bytes]] | None: ...
def read_pairs(data: bytes, at: int, /) -> list[tuple[str, str]] | None: ...

class Codec:
    def __init__(self, plan: tuple[Any, ...], prefix: bytes) -> None: ...
    def write(self, value: object) -> bytes | None: ...
    def read(self, data: bytes) -> tuple[Any, int] | None: ...

class AppendHead:
    def __init__(
        self,
        *,
        incarnation: str,
        row: bytes,
        accepted: dict[tuple[object, ...], bool],
        is_stable: bool,
        unmixed_alike: bool,
        mixed_alike: bool,
        version: int,
        next_fragment_id: int,
        next_row_id: int,
        oldest: int,
        window: int,
        ruled: int,
        room: int,
    ) -> None: ...
    ids: list[str]
    fragments: list[tuple[int, bytes]]
    uuid: str
    read_version: int
    version: int
    next_fragment_id: int
    next_row_id: int
    time_ms: int
    sequence: int

class Appends:
    def __init__(
        self,
        *,
        head_of: Callable[[tuple[str, ...]], AppendHead | None],
        known: dict[str, int],
        packed_in: Callable[[str], list[int]],
        time_ms: int,
        clock_ms: int,
        appended_ms: int,
        step_ms: int,
        horizon_ms: int,
        forgotten_ms: int,
        oldest_ms: int,
        is_bounded: bool,
        is_confirmed: bool,
    ) -> None: ...
    heads: dict[tuple[str, ...], AppendHead | None]
    rows: dict[str, bytes]
    time_ms: int
    clock_ms: int
    appended_ms: int

class Chain:
    def __init__(
        self,
        outcomes: tuple[tuple[Any, ...], ...],
        transaction: tuple[Any, ...],
        principal: bytes,
        noted: tuple[bytes, ...],
        committed: int,
        operation: int,
    ) -> None: ...
    def follow(
        self,
        outcomes: list[RawRecord],
        first: int,
        end: int,
        transactions: list[RawRecord] | None,
        taken: int,
        epoch: int,
        sequence: int,
        node: str,
        hash: bytes,
        appends: Appends | None,
        /,
    ) -> tuple[int, int, int, int, int, bytes]: ...

# Nulls, items of lists, validity, ends of rows, ends of items, values.
ArrowColumn = tuple[int, int, bytes, bytes | None, bytes | None, bytes]

class AppendColumns:
    def __init__(
        self,
        transaction: type[Any],
        operation: type[Any],
        committed: Any,
        transactions: str,
        operations: str,
        fragment_changes: str,
    ) -> None: ...
    def add(
        self, decided: object, /
    ) -> tuple[str, str, int, int, int, tuple[tuple[int, int, int], ...]] | None: ...
    def take(self) -> tuple[tuple[int, tuple[ArrowColumn, ...]], ...]: ...
