"""Bodies that arrive compressed, read as what they were; never more at a time than a piece."""

from __future__ import annotations

import asyncio
import zlib

from starlette.types import Message, Receive

PIECE_BYTES = 256 * 1024
MEMBERS_SPARED, MEMBER_BYTES_MIN = 100, 1024
"""So many members of gzip may be of any size; all others hold so much, on average. Each is work,
even one of 20 bytes with nothing in it."""
_GZIP = 16 + zlib.MAX_WBITS
_WINDOW_BITS = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": 0}
_ZLIB, _RAW = zlib.MAX_WBITS, -zlib.MAX_WBITS


class UnknownEncoding(ValueError):
    """A body is compressed in a way that isn't known here."""


class Decompressed:
    """Gives a body's pieces decompressed, each of a bounded size, as they are asked for."""

    def __init__(self, receive: Receive, encoding: str, turn: asyncio.Lock) -> None:
        """Read from `receive`, and share `turn` with other bodies; raise UnknownEncoding."""
        bits = _WINDOW_BITS.get(encoding.strip().lower())
        if bits is None:
            known = ", ".join(_WINDOW_BITS)
            raise UnknownEncoding(
                f"the content encoding {encoding!r} is not supported; use one of {known}, or none"
            )
        self._receive = receive
        self._turn = turn
        self._bits = bits
        self._inner: zlib._Decompress | None = None
        self._left = b""
        self._members = self._bytes = 0
        self._is_last = False

    async def receive(self) -> Message:
        """Return the next piece; raise ValueError for bytes that aren't compressed so."""
        while True:
            if self._left or self._is_last:
                # However much comes of little, of however many bodies: one piece, then others.
                async with self._turn:
                    await asyncio.sleep(0)
                    piece = self._decompress()
            else:
                message = await self._receive()
                if message["type"] != "http.request":
                    return message
                self._left = message.get("body", b"")
                self._is_last = not message.get("more_body", False)
                piece = self._decompress()
            is_whole = self._is_last and not self._left and len(piece) < PIECE_BYTES
            if piece or is_whole:
                self._check_end(is_whole=is_whole)
                return {"type": "http.request", "body": piece, "more_body": not is_whole}

    def _decompress(self) -> bytes:
        while True:
            if self._inner is None and not self._left:
                return b""
            inner = self._inner = self._inner or self._begun()
            try:
                piece = inner.decompress(self._left, PIECE_BYTES)
            except zlib.error as error:
                problem = f"the body does not match its content encoding: {error}"
                raise ValueError(problem) from error
            self._bytes += len(piece)
            self._left = inner.unconsumed_tail
            if inner.eof and inner.unused_data:
                if self._bits != _GZIP:
                    raise ValueError("the body continues after its compressed content")
                # Members may follow each other (RFC 1952): `cat a.gz b.gz` is one file, too.
                self._left, self._inner = inner.unused_data, None
                self._members += 1
                if self._members > MEMBERS_SPARED + self._bytes // MEMBER_BYTES_MIN:
                    raise ValueError(
                        f"the body has {self._members} gzip members, of {self._bytes} bytes in"
                        f" all: put at least {MEMBER_BYTES_MIN} into each"
                    )
            if piece or not self._left:
                return piece

    def _begun(self) -> zlib._Decompress:
        # Many send raw deflate and call it by zlib's name.
        is_zlib = self._left[0] & 0x0F == 8
        return zlib.decompressobj(self._bits or (_ZLIB if is_zlib else _RAW))

    def _check_end(self, *, is_whole: bool) -> None:
        if is_whole and self._inner is not None and not self._inner.eof:
            raise ValueError("the body ends before its compressed content does")
