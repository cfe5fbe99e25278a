"""A search for old versions that takes too long is gone on with, not begun again."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from commitlog.adapters.lance_refs import versions_with_files
from commitlog.client.leader.valid_outcomes import Valid, ValidOutcomes
from commitlog.errors import Unavailable
from consumers.partition.files import past_outcomes
from consumers.partition.files.past_outcomes import SEARCH_SECONDS, PastOutcomes
from tests.service import SCHEMA, ids_of, rows, service


class OneByOne(ValidOutcomes):
    """Reads one outcome at a time."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._left: deque[Valid] = deque()

    def poll(self, timeout_seconds: float) -> list[Valid]:
        if not self._left:
            self._left.extend(super().poll(timeout_seconds))
        return [self._left.popleft()] if self._left else []

    def is_at(self, end: int) -> bool:
        return not self._left and super().is_at(end)


def test_asked_again_a_search_for_versions_continues_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past_outcomes, "ValidOutcomes", OneByOne)
    with service(tmp_path) as running:
        for name in ("t", "other"):
            running.client.create_table(name, SCHEMA)
        for number in range(20):
            running.client.append("other", rows(number))
        for number in range(3):
            running.client.append("t", rows(number))
        head: Any = Mock(incarnation=running.client.table("t").incarnation)
        places = Mock(**{"before_version.return_value": None})
        ticks = count(0, int(SEARCH_SECONDS) // 5)
        past = PastOutcomes(running.log, 0, places, clock=lambda: float(next(ticks)))
        found: list[int] = []
        told: list[str] = []
        while not found:
            assert len(told) < 10, "it begins again"
            try:
                found = [v.outcome.results[0].version for v, _ in past.decided(head, 1, 4, None)]
            except Unavailable as error:
                told.append(str(error))
        assert found == [2, 3, 4]
        assert len(told) > 1
        assert all("continues where it stopped" in one for one in told)


@pytest.mark.parametrize("others", [False, True], ids=["", "others ask for earlier ones"])
def test_asked_again_making_a_version_continues_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: bool
) -> None:
    """Under `latest` a million versions may be missing, which takes longer than a search may."""
    monkeypatch.setattr(past_outcomes, "ValidOutcomes", OneByOne)
    with service(tmp_path) as running:
        running.client.create_table("t", SCHEMA, policy="latest")
        for number in range(20):
            running.client.append("t", rows(number))
        for path in versions_with_files(str(running.location("t"))).values():
            (running.location("t") / path).unlink()
        committer = running.running[-1].committer
        assert committer._session is not None
        head = committer._session.catalogue.head(("t",))
        old, ticks = committer._old_versions, count(0, int(SEARCH_SECONDS) // 5)
        monkeypatch.setattr(old._past, "_clock", lambda: float(next(ticks)))
        asked, made = 0, ""
        while not made:
            assert (asked := asked + 1) < 20, "it begins again"
            with suppress(Unavailable):
                made = old.materialize(head, 19)
            if others and not made:
                earlier = old.materialize(head, 2)
                (running.location("t") / earlier).unlink()
        assert asked > 2
        assert list(versions_with_files(str(running.location("t")))) == [19], "and no other"
        assert ids_of(running.client.open("t", 19)) == list(range(18))
        assert not old._reached
