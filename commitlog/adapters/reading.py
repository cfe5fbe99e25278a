"""Reading one partition's records in one go: up to an offset, at an offset, or where they end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Protocol, TypeVar

from commitlog.adapters.disk import or_no_files
from commitlog.errors import Unavailable
from commitlog.ports import Reader

SILENCE_SECONDS = 30.0
_SLICE_SECONDS = 0.1


class _HasOffset(Protocol):
    @property
    def offset(self) -> int: ...


OffsetRecord = TypeVar("OffsetRecord", bound=_HasOffset)


class ReadsThrough:
    """The half of a `Reader` that another one answers; it may be replaced on the way."""

    _below: Reader[Any]

    def end_offset(self, timeout_seconds: float = 10) -> int:
        """Ask the log where it ends now."""
        return self._below.end_offset(timeout_seconds)

    def pause(self) -> None:
        """Fetch nothing more until the next `poll`."""
        self._below.pause()

    def rest(self) -> None:
        """Let go of the connection until the next `poll`."""
        self._below.rest()

    def close(self) -> None:
        """Close the connection."""
        self._below.close()


def end_of(reader: Reader[OffsetRecord]) -> int:
    """Return where a reader's topic ends now, and close the reader."""
    with closing(reader):
        return reader.end_offset()


def read_on(
    reader: Reader[OffsetRecord],
    end: int | None = None,
    *,
    silence_seconds: float = SILENCE_SECONDS,
    records_max: int = 500,
) -> Iterator[OffsetRecord]:
    """Yield a reader's records up to an offset or to the topic's present end, and what comes along.

    Raises Unavailable if Kafka sends nothing for `silence_seconds` before that.
    """
    end = reader.end_offset() if end is None else end
    position, heard = reader.position(), time.monotonic()
    while position < end:
        yield from reader.poll(records_max=records_max, timeout_seconds=_SLICE_SECONDS)
        before, position = position, reader.position()
        if position > before:
            heard = time.monotonic()
        elif time.monotonic() - heard > silence_seconds:
            raise Unavailable(
                f"Kafka sent nothing from offset {position} to {end} for {silence_seconds:g} s."
                f" {or_no_files('Check the cluster, then try again')}"
            )


def read_to(
    reader: Reader[OffsetRecord],
    end: int | None = None,
    *,
    silence_seconds: float = SILENCE_SECONDS,
    records_max: int = 500,
) -> Iterator[OffsetRecord]:
    """Yield the records before an offset, or before the topic's present end; close the reader.

    Raises Unavailable as `read_on` does.
    """
    with closing(reader):
        end = reader.end_offset() if end is None else end
        for record in read_on(
            reader, end, silence_seconds=silence_seconds, records_max=records_max
        ):
            if record.offset >= end:
                return
            yield record


def record_at(
    reader: Reader[OffsetRecord],
    offset: int,
    *,
    seconds: float = SILENCE_SECONDS,
) -> OffsetRecord | None:
    """Return the record at an offset, None if there is none, and close the reader.

    Raises Unavailable if Kafka doesn't send it in time.
    """
    deadline = time.monotonic() + seconds
    with closing(reader):
        while reader.position() <= offset < reader.end_offset():
            for record in reader.poll(records_max=1, timeout_seconds=_SLICE_SECONDS):
                return record if record.offset == offset else None
            if time.monotonic() > deadline:
                raise Unavailable(f"offset {offset} could not be read in {seconds:g} s")
    return None
