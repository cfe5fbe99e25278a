"""Which outcomes are valid, whoever wrote them."""

from __future__ import annotations

from dataclasses import replace

from commitlog.core.log.chain import Chain, first_hash
from commitlog.model.records import Genesis, LeaderStarted, Outcome, Status, Unreadable

GENESIS = Genesis(log="commitlog", log_id="a-log", cluster_id="a-cluster", partition=0)


def leader(epoch: int) -> LeaderStarted:
    return LeaderStarted(epoch, "127.0.0.1:1", f"leader-{epoch}", 0, b"", b"")


def outcome(sequence: int, epoch: int, previous: bytes) -> Outcome:
    return Outcome(
        sequence=sequence,
        transaction_id=f"t{sequence}",
        transaction_offset=sequence,
        status=Status.COMMITTED,
        epoch=epoch,
        previous_hash=previous,
        hash=b"hash of %d in any epoch" % sequence,
    )


def led(epoch: int = 1) -> Chain:
    chain = Chain()
    assert chain.admit(GENESIS) == ""
    for number in range(1, epoch + 1):
        assert chain.admit(leader(number)) == ""
    return chain


def test_nothing_is_valid_before_genesis_and_leader() -> None:
    chain = Chain()
    assert "no genesis" in chain.admit(leader(1))
    assert "no leader" in chain.admit(outcome(1, 1, b""))
    assert chain.admit(GENESIS) == ""
    assert "stands already" in chain.admit(GENESIS)
    assert "no leader" in chain.admit(outcome(1, 1, first_hash(GENESIS)))


def test_the_chain_starts_at_the_log_itself() -> None:
    chain = led()
    other = replace(GENESIS, log_id="another")
    assert "previous hash" in chain.admit(outcome(1, 1, first_hash(other)))
    assert chain.admit(outcome(1, 1, first_hash(GENESIS))) == ""
    assert (chain.sequence, chain.hash) == (1, b"hash of 1 in any epoch")


def test_of_two_leaders_with_one_epoch_the_first_in_the_log_wins() -> None:
    chain = led(1)
    first, second = leader(2), replace(leader(2), leader_id="late")
    assert chain.admit(first) == ""
    assert "does not follow" in chain.admit(second)
    assert chain.leader is first


def test_a_leader_that_skips_an_epoch_is_void() -> None:
    assert "does not follow" in led(1).admit(leader(3))


def test_a_zombie_writes_and_nobody_listens() -> None:
    chain = led(1)
    head = first_hash(GENESIS)
    assert chain.admit(leader(2)) == ""
    assert "epoch 1" in chain.admit(outcome(1, 1, head))
    assert chain.sequence == 0
    assert chain.admit(outcome(1, 2, head)) == ""


def test_a_hole_and_a_repetition_are_void() -> None:
    chain = led()
    head = first_hash(GENESIS)
    assert "sequence 2" in chain.admit(outcome(2, 1, head))
    assert chain.admit(outcome(1, 1, head)) == ""
    assert "sequence 1" in chain.admit(outcome(1, 1, head))
    assert "previous hash" in chain.admit(outcome(2, 1, head))


def test_what_cannot_be_read_is_void_and_says_why() -> None:
    assert led().admit(Unreadable("broken bytes")) == "broken bytes"
