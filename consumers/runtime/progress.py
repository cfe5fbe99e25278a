"""How a long job tells how far it has come."""

from __future__ import annotations

from collections.abc import Callable

OnProgress = Callable[[int, int], None]
"""Told how many are done, of how many in all."""
OnCount = Callable[[str, int], None]
"""Told of what kind how many are done, where nobody knows how many there are."""


def untold(*_: object) -> None:
    """Tell nobody."""
