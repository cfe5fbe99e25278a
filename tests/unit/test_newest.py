"""A map of the newest entries."""

from __future__ import annotations

from consumers.runtime.newest import Newest


def test_what_was_set_longest_ago_goes_first() -> None:
    kept = Newest[str, int](2)
    kept["a"] = 1
    kept["b"] = 2
    kept["a"] = 3  # set again, it is newer than b
    assert kept.get("b") == 2  # a look makes nothing newer
    kept["c"] = 4
    assert kept == {"a": 3, "c": 4}
    assert kept.pop("a") == 3
    kept["d"] = 5
    assert [*kept] == ["c", "d"]
