"""How deep JSON may be that a decision reads.

Python's own limit depends on its release and on the stack of whoever asks, so it must not decide.
"""

from __future__ import annotations

import re

LEVELS_MAX = 500
_TEXT_OR_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}


def is_too_deep(text: str) -> bool:
    """Return True if JSON, or its beginning, is nested deeper than `LEVELS_MAX`."""
    if text.count("[") + text.count("{") <= LEVELS_MAX:
        return False
    level = 0
    for found in _TEXT_OR_BRACKET.finditer(text):
        level += _STEPS.get(found[0], 0)
        if level > LEVELS_MAX:
            return True
    return False
