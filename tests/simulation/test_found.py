"""What simulation found, in the fewest words; what still stands is marked so."""

from __future__ import annotations

from commitlog.adapters.memory import MemoryLog


def test_a_tombstone_is_no_record() -> None:
    """It got an outcome once; the cleaner took it, and nobody could read that log any more."""
    log = MemoryLog()
    log.create()
    log.cluster.append("commitlog.transactions", 0, b"00000000-0000-4000-8000-000000000001/x", None)
    reader = log.read_transactions(0)
    assert [r.offset for r in reader.poll(timeout_seconds=0)] == [0]
    assert reader.position() == reader.end_offset() == 2
