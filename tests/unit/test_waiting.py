"""Does a wait end with what it waited for, and say what it missed?"""

import pytest

from tests.waiting import wait_until


def test_it_returns_what_came() -> None:
    coming = iter([None, "", "it"])
    assert wait_until(lambda: next(coming), "it", pause_seconds=0) == "it"


def test_it_says_what_never_came_and_what_was_there_at_last() -> None:
    with pytest.raises(AssertionError, match=r"^waited 0 s for a wonder; at last: \[\]$"):
        wait_until(list, "a wonder", seconds=0)
    with pytest.raises(AssertionError, match=r"a wonder; at last: 'rain'$"):
        wait_until(list, "a wonder", state=lambda: "rain", seconds=0)
