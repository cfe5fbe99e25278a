"""What the materializer looks at, and when."""

from __future__ import annotations

from math import inf

from consumers.partition.files.agenda import Agenda


def test_what_is_added_or_told_of_is_taken_once() -> None:
    agenda = Agenda()
    assert agenda.due_at == inf
    agenda.now.update(dict.fromkeys(["a", "b", "a"]))
    agenda.tell("c")
    assert agenda.due_at == 0.0
    assert list(agenda.take(0)) == ["a", "b", "c"]
    assert list(agenda.take(0)) == []


def test_what_is_put_off_is_due_at_its_first_time() -> None:
    agenda = Agenda()
    agenda.put_off("a", 5.0)
    agenda.put_off("b", 4.0)
    for until in (9.0, 3.0, 7.0):
        agenda.put_off("a", until)
    assert agenda.due_at == 3.0
    assert list(agenda.take(2.9)) == []
    assert list(agenda.take(3.0)) == ["a"]
    assert list(agenda.take(4.0)) == ["b"]
    assert list(agenda.take(100.0)) == [], "the later times were given up for the first one"
    agenda.put_off("a", 101.0)
    assert list(agenda.take(101.0)) == ["a"]


def test_whoever_stops_in_the_middle_leaves_the_rest() -> None:
    agenda = Agenda()
    agenda.now.update(dict.fromkeys("abc"))
    assert next(agenda.take(0)) == "a"
    agenda.now["d"] = None
    assert list(agenda.take(0)) == ["b", "c", "d"]
