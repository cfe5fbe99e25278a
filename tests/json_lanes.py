"""Canonical JSON in machine code beside Python: the same bytes, or left to it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from commitlog.core.log import canonical

TEXTS = ("", "a", '"\\\b\t\n\f\r\0\x1f\x7f', "\u00e9\u2028\U0001f600", "\ud800", "x" * 2_000)
NUMBERS = (0, -1, 9, 10, 2**31, 2**63 - 1, -(2**63), 2**63, -(2**70))


def a_value(chance: random.Random, depth: int = 4) -> Any:
    """Return a value that JSON may have, or nearly."""
    kind = chance.randrange(8 if depth else 4)
    if kind == 0:
        return chance.choice(TEXTS) if chance.random() < 0.3 else "t" * chance.randrange(40)
    if kind == 1:
        return chance.choice(NUMBERS) if chance.random() < 0.3 else chance.getrandbits(40)
    if kind == 2:
        return chance.choice((None, True, False))
    if kind == 3:
        return 1.5 if chance.random() < 0.05 else 7
    count = chance.choice((0, 1, 2, 12))
    if kind == 4:
        return {chance.choice("abcdef\u00e9"): a_value(chance, depth - 1) for _ in range(count)}
    items = [a_value(chance, depth - 1) for _ in range(count)]
    return tuple(items) if kind == 5 else items


def search_json(
    to_json: Callable[[Any], bytes | None], seconds: float, seed: int
) -> tuple[int, int]:
    """Write values for so long; return how many, and how many machine code wrote."""
    chance, tried, made = random.Random(seed), 0, 0
    until = time.process_time() + seconds
    while time.process_time() < until:
        value = a_value(chance)
        found = to_json(value)
        tried += 1
        if found is not None:
            made += 1
            assert found == canonical.in_python(value), value
    return tried, made
