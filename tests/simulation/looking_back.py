"""Questions about the past, asked of every node at any moment, in the midst of all faults.

Answers by id and by version come from the product's own `OldVersions`, which begins at places that
nodes keep over restarts and reads on among void records. Each answer is held against what the
auditor read, and all of them once more against the log at the end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from commitlog.adapters.recordings import Recordings
from commitlog.core.log.chain import ChainPlace
from commitlog.errors import CommitLogError, NoSuchVersion, Unavailable
from consumers.partition.files.catalogue import Head
from consumers.partition.files.old_versions import OldVersions
from consumers.partition.files.past_outcomes import maker_of
from consumers.partition.session import Session
from tests.simulation.log import SimulatedLog
from tests.simulation.requests import ROOT
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.node import Node

ASKED = 0.2
"""How often a node is asked, per step."""


class _Places:
    """Where to begin, as the loop knows it; here everything is on one thread."""

    def __init__(self, session: Callable[[], Session | None]) -> None:
        self._session = session

    def before(self, sequence: int) -> ChainPlace:
        return _of(self._session).offset_index.before(sequence)

    def before_version(self, head: Head, version: int) -> ChainPlace | None:
        return _of(self._session).place_before_version(head, version)

    def indexed(self) -> list[ChainPlace]:
        return _of(self._session).offset_index.places()

    def made_by(self, head: Head, version: int) -> str:
        return maker_of(_of(self._session).follower.machine, head, version)

    def came_by(self, places: list[ChainPlace]) -> None:
        session = self._session()
        if session is not None:
            session.offset_index.note_all(places)


def _of(session: Callable[[], Session | None]) -> Session:
    found = session()
    if found is None:
        raise Unavailable("simulated: it is starting")
    return found


def old_versions_of(
    node: Node, process: Process, log: SimulatedLog, session: Callable[[], Session | None]
) -> OldVersions:
    """Return what looks up the past for a process, by its session of the moment."""
    open_store = node.opener(process)
    old = OldVersions(
        log,
        0,
        Recordings(ROOT, open_store),
        _Places(session),
        open_store=open_store,
        clock=node.world.scheduler.clock,
    )
    old.rules = lambda: _of(session).follower.machine.rules
    return old


class LookingBack:
    """Asks one stay of a node."""

    def __init__(self, node: Node, process: Process, log: SimulatedLog, session: Session) -> None:
        """Ask a session that has caught up."""
        self._world, self._process, self._session = node.world, process, session
        self._open = node.opener(process)
        self._old = old_versions_of(node, process, log, lambda: session)

    def step(self) -> None:
        """Ask something, sometimes."""
        if not self._world.scheduler.chance(ASKED):
            return
        ask = self._world.scheduler.random.choice((self._by_id, self._by_version))
        try:
            ask()
        except (Unavailable, OSError):
            self._world.count("answer: asked in vain")
        except CommitLogError as error:
            what = f"I16 {self._process.name} can't look back: {error!r}"
            self._world.auditor.expect(self._world.expects_refusal, what)

    def _by_id(self) -> None:
        world, session = self._world, self._session
        if not world.auditor.entries:
            return
        chosen = world.scheduler.random.choice(world.auditor.entries).transaction_id
        known = session.follower.machine.outcome_of(chosen)
        if known is None or known.sequence > session.published:
            return  # forgotten, or decided just now
        found = self._old.outcome(known, chosen)
        world.auditor.expect(found is not None, f"I16 {chosen} isn't found at {known.sequence}")
        assert found is not None
        outcome, offset, _ = found
        world.auditor.follow()
        world.auditor.expect(
            world.auditor.outcomes.get(outcome.sequence) == (offset, outcome.hash),
            f"I16 the answer by id {chosen} at offset {offset} isn't the log's",
        )
        submitted = self._old.transaction(outcome)
        is_it = getattr(submitted.record, "transaction_id", "") == chosen
        world.auditor.expect(is_it, f"I16 {chosen} was answered with another record")
        world.count("answer: by id")
        world.auditor.answered.by_id.append((chosen, outcome.sequence, offset, outcome.hash))

    def _by_version(self) -> None:
        world, session = self._world, self._session
        heads = [h for h in session.catalogue.heads() if session.readable.newest(h.incarnation)]
        if not heads:
            return
        head = world.scheduler.random.choice(heads)
        newest = session.readable.newest(head.incarnation)
        version = world.scheduler.random.randrange(1, newest + 1)
        try:
            path = self._old.materialize(head, version)
        except NoSuchVersion:
            world.auditor.follow()
            is_so = world.auditor.is_expired(head.incarnation, version)
            world.auditor.expect(is_so, f"I16 version {version} of {head.location} isn't found")
            world.count("answer: version expired")
            return
        data = self._open(head.location).read(path)
        digest = hashlib.sha256(data).digest()
        world.auditor.follow()
        world.auditor.expect(
            digest == world.auditor.tables[head.incarnation].hashes.get(version),
            f"I16 version {version} of {head.location} was answered with other bytes",
        )
        world.count("answer: by version")
        world.auditor.answered.by_version.append((head.incarnation, version, digest))
