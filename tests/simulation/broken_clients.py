"""Broken clients, feeds, snapshots and sockets: simulation has to notice each of them, too."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

from commitlog.client.history.feed import PartitionFeed, Subscription
from commitlog.client.history.folds import Fold
from commitlog.client.leader.awaited import Awaited
from commitlog.client.leader.connection import LeaderConnection
from commitlog.client.leader.sending import Sending, Tries, _Resend
from commitlog.client.leader.valid_outcomes import Valid, ValidOutcomes
from commitlog.core.log.chain import ChainPlace
from commitlog.model.records import Outcome
from consumers.partition.files.events import Event
from consumers.socket.answers import Answers

Break = Callable[[], AbstractContextManager[Any]]

_poll = PartitionFeed.poll
_resend = Sending._resend
_token = Subscription.token


class _AnyOutcomes(ValidOutcomes):
    """Takes whatever says that it comes next."""

    def poll(self, timeout_seconds: float) -> list[Valid]:
        found = []
        for answered in self._reader.poll(timeout_seconds=timeout_seconds):
            record = answered.record
            if isinstance(record, Outcome):
                place = ChainPlace(record.sequence, answered.offset + 1, record.epoch, record.hash)
                found.append(Valid(record, place, answered.raw))
        return found


class _OneTooFar(PartitionFeed):
    """Reads past the end that it is given."""

    def poll(
        self, timeout_seconds: float, selection: Any, events_max: int, until: int | None = None
    ) -> Iterator[Any]:
        end = until + 1 if until is not None else None
        return super().poll(timeout_seconds, selection, events_max, end)


def _offer_any_attempt(
    self: LeaderConnection, outcome: Outcome, *, readable: bool, offset: int
) -> None:
    """Answer whoever waits for the id."""
    group: list[Awaited] = self._awaited.pop(outcome.transaction_id, [])
    for awaited in group:
        awaited.deliver(outcome, readable)


def _told_when_read(self: PartitionFeed, *given: Any, **named: Any) -> Iterator[Any]:
    """Move on with what was read, before it was told."""
    for event in _poll(self, *given, **named):
        if self._waiting:
            self.told = self._waiting[-1][1]
        yield event


def _stale_token(self: Subscription) -> str:
    before = self.__dict__.get("_stale", "")
    now = str(_token.fget(self))  # type: ignore[attr-defined]
    self.__dict__["_stale"] = now
    return str(before or now)


def _surely_not(**given: Any) -> Tries:
    return Tries(**{**given, "may_be_appended": False})


def _under_another_id(self: Sending, resend: _Resend) -> float:
    ticket = resend.ticket
    ticket._transaction = replace(ticket.transaction, transaction_id=str(uuid.uuid4()))
    return _resend(self, resend)


def _readable_at_once(self: Answers, events: list[Event]) -> None:
    with self._turn:
        self._tell(events, True)


def _at(target: str, new: Any) -> Break:
    return lambda: mock.patch(target, new)


def _on(owner: Any, name: str, new: Any) -> Break:
    return lambda: mock.patch.object(owner, name, new)


BROKEN_CLIENTS: dict[str, Break] = {
    "the fallback takes any outcome": _at(
        "commitlog.client.leader.fallback.ValidOutcomes", _AnyOutcomes
    ),
    "an older attempt's answer is taken": _on(LeaderConnection, "offer", _offer_any_attempt),
    "a version is readable without a file": _at(
        "tests.simulation.clients.is_readable", lambda *_: True
    ),
    "the leader says readable with the commit": _on(Answers, "committed", _readable_at_once),
    "what may be appended is told as not appended": _at(
        "commitlog.client.leader.sending.Tries", _surely_not
    ),
    "what is sent again has another id": _on(Sending, "_resend", _under_another_id),
    "a feed moves on before it has told": _on(PartitionFeed, "poll", _told_when_read),
    "a feed's token is the one before": _on(Subscription, "token", property(_stale_token)),
    "a feed takes any outcome": _at("commitlog.client.history.feed.ValidOutcomes", _AnyOutcomes),
    "a snapshot has the next outcome, too": _at(
        "commitlog.client.history.folds.PartitionFeed", _OneTooFar
    ),
    "a snapshot has tables that were dropped": _at("commitlog.client.history.folds._ENDING", ()),
    "a snapshot knows no new names": _on(Fold, "_rename", lambda *_: None),
}
