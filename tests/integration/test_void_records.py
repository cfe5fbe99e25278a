"""Void records in the log: what a deposed leader wrote late is listened to by nobody, ever."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import lance
import pytest

from commitlog import CommitLog
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import AppendCall, Fate
from commitlog.client.history.feed import Subscription
from commitlog.codecs.avro import seal_outcome
from commitlog.codecs.manifest_file import manifest_name
from commitlog.model.records import Code, OperationResult, Outcome, Status
from commitlog.protocol import outcomes_topic
from tests.service import SCHEMA, Service, ids_of, rows

COUNT = 4
EPOCH = 1


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Service]:
    """A service with nobody who leads."""
    service = Service(tmp_path)
    yield service
    service.close()


def void_outcomes(made: Service, ids: Sequence[str], incarnation: str) -> list[bytes]:
    """Return what the leader of epoch 1 decided of the ids before it was deposed.

    It saw the first one's data file too late, so that the others got other versions.
    """
    last = made.log.last_outcome_records(0, 3)
    head = [one.record for one in last if isinstance(one.record, Outcome)][-1]
    sealed, previous = [], head.hash
    for number, chosen in enumerate(ids):
        outcome = Outcome(
            head.sequence + 1 + number,
            chosen,
            head.transaction_offset + 1 + number,
            Status.COMMITTED if number else Status.REJECTED,
            time_ms=head.time_ms,
            code=Code.NONE if number else Code.MISSING_FILE,
            message="" if number else "the data file is not there",
            results=(OperationResult(("t",), incarnation, "Append", 1 + number),) * bool(number),
        )
        done, record = seal_outcome(outcome, previous_hash=previous, epoch=EPOCH, node="gone:1")
        previous = done.hash
        sealed.append(record)
    return sealed


@pytest.mark.parametrize("order", ["in order", "backwards"])
def test_what_a_deposed_leader_wrote_late_is_never_listened_to(made: Service, order: str) -> None:
    client = made.client
    first = made.start().await_leading()
    client.create_table("t", SCHEMA, policy="latest")
    info = client.table("t")
    operations = []
    for number in range(COUNT):
        [fragment] = lance.fragment.write_fragments(rows(number), info.location)
        operations.append(lance.LanceOperation.Append([fragment]))
    first.stop()
    ids = [str(uuid.uuid4()) for _ in operations]
    for chosen, operation in zip(ids, operations, strict=True):
        client.submit("t", operation, read_version=1, transaction_id=chosen)
    late = void_outcomes(made, ids, info.incarnation)
    if order == "backwards":
        late.reverse()
    topic = outcomes_topic(made.log.name)

    def land(append: AppendCall) -> Fate:
        if append.topic == topic and append.key.startswith(b"leader/2/") and late:
            # The second copy of the term's beginning is void as well.
            made.cluster.append(topic, 0, append.key, append.value)
            while late:
                made.cluster.append(topic, 0, b"late/%d" % len(late), late.pop(0))
        return Fate.DELIVER

    made.cluster.on_append = land
    second = made.start().await_leading()
    found = [client.outcome(chosen) for chosen in ids]
    assert [outcome.version for outcome in found] == [2, 3, 4, 5]
    assert not late, "they landed"
    second.stop()
    for version in range(2, 1 + COUNT):
        (Path(info.location) / "_versions" / manifest_name(version)).unlink(missing_ok=True)
    made.start().await_leading()
    other = CommitLog(lambda: MemoryLog(made.cluster))
    for number, chosen in enumerate(ids):
        outcome = other.outcome(chosen)
        assert (outcome.status, outcome.version) == (Status.COMMITTED, 2 + number)
        assert ids_of(other.open("t", 2 + number)) == list(range(number + 1))
    with other.subscribe(from_position="beginning", idle_seconds=1.0) as feed:
        assert isinstance(feed, Subscription)
        told = [event.outcome.transaction_id for event in feed]
    assert [one for one in told if one in ids] == ids
    other.close()
