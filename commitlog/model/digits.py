"""Numbers that clients write as text.

`int` also takes digits of other scripts (`１`), spaces and underscores, and `str.isdecimal` the
former. No client writes these, and whoever compares two such texts takes them for different ones.
"""

from __future__ import annotations

import re

DIGITS_MAX = 40
"""More than any number of a request needs; thousands would be an error of `int`."""
SEQUENCE_DIGITS_MAX = 18
"""So many always fit 64 bits."""
_WHOLE = re.compile(r"-?[0-9]+")


def whole_number(text: str, digits_max: int = DIGITS_MAX) -> int | None:
    """Return the number that ASCII digits write, perhaps after a minus; None for other texts."""
    if len(text) > digits_max + text.startswith("-") or not _WHOLE.fullmatch(text):
        return None
    return int(text)
