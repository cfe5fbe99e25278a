"""Frames survive any cut of the stream, and rubbish is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog import wire
from commitlog.errors import CorruptLog
from commitlog.wire import FrameBuffer, FrameKind, Watch


@given(
    bodies=st.lists(
        st.tuples(st.sampled_from(list(FrameKind)), st.binary(max_size=300)), max_size=8
    ),
    cuts=st.lists(st.integers(1, 64), min_size=1),
)
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(
    bodies: list[tuple[FrameKind, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(wire.frame(kind, body) for kind, body in bodies)
    buffer = FrameBuffer()
    received = []
    position = turn = 0
    while position < len(stream):
        size = cuts[turn % len(cuts)]
        received += buffer.feed(stream[position : position + size])
        position += size
        turn += 1
    assert received == bodies


@given(
    readable=st.booleans(),
    attempt=st.integers(0, 2**32 - 1),
    content=st.one_of(st.just(b""), st.binary(min_size=32, max_size=32).filter(any)),
)
def test_a_watch_survives_the_wire(readable: bool, attempt: int, content: bytes) -> None:
    watch = Watch("0190d6c0-aaaa-7bbb-8ccc-0123456789ab", attempt, readable, content)
    [(kind, body)] = FrameBuffer().feed(wire.watch_frame(watch))
    assert kind is FrameKind.WATCH
    assert wire.parse_watch(body) == watch


def test_an_outcome_survives_the_wire() -> None:
    answer = (True, 2**40, b"a record")
    [(kind, body)] = FrameBuffer().feed(wire.outcome_frame(*answer))
    assert (kind, wire.parse_outcome(body)) == (FrameKind.OUTCOME, answer)


@pytest.mark.parametrize(
    "rubbish",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x00", b"\x00\x00\x00\x01\xfe", b"\xff" * 8],
)
def test_what_is_not_our_protocol_is_refused(rubbish: bytes) -> None:
    with pytest.raises(CorruptLog):
        FrameBuffer().feed(rubbish)


@pytest.mark.parametrize("body", [b"", b"\x01\x00"])
def test_a_broken_watch_is_refused(body: bytes) -> None:
    with pytest.raises(CorruptLog, match="WATCH"):
        wire.parse_watch(body)


@pytest.mark.parametrize("body", [b"[1]", b"{", b"\xff"])
def test_a_broken_json_body_is_refused(body: bytes) -> None:
    with pytest.raises(CorruptLog):
        wire.parse_json(body)
