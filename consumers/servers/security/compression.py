"""Bodies that arrive compressed, read as what they were; never more at a time than a piece."""

from __future__ import annotations

import asyncio
import zlib

from starlette.types import Message, Receive

PIECE_BYTES = 256 * 1024
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": 0}
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
        if self._inner is None:
            if not self._left:
                return b""
            # Many send raw deflate and call it by zlib's name.
            is_zlib = self._left[0] & 0x0F == 8
            self._inner = zlib.decompressobj(self._bits or (_ZLIB if is_zlib else _RAW))
        try:
            piece = self._inner.decompress(self._left, PIECE_BYTES)
        except zlib.error as error:
            raise ValueError(f"the body does not match its content encoding: {error}") from error
        self._left = self._inner.unconsumed_tail
        if self._inner.eof and self._inner.unused_data:
            raise ValueError("the body continues after its compressed content")
        return piece

    def _check_end(self, *, is_whole: bool) -> None:
        if is_whole and self._inner is not None and not self._inner.eof:
            raise ValueError("the body ends before its compressed content does")
