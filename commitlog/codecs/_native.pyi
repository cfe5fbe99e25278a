from typing import Any

from commitlog.ports import RawRecord

INTERFACE: int

def encode_append(
    fragments: object, read_version: int, uuid: str, /
) -> tuple[bytes, int, int, list[tuple[str, int, list[int]]]] | None: ...

class Codec:
    def __init__(self, plan: tuple[Any, ...], prefix: bytes) -> None: ...
    def write(self, value: object) -> bytes | None: ...
    def read(self, data: bytes) -> tuple[Any, int] | None: ...

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
        /,
    ) -> tuple[int, int, int, int, int, bytes]: ...
