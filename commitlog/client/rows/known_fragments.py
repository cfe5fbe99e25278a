"""Which fragments a version has that the one before it lacked.

Two versions have most of their fragments in common. So calls that walk through them in machine
code compare all of them, and Python looks only at what came and went.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import filterfalse

from commitlog.lancepb.table_pb2 import DataFragment

FragmentChanges = tuple[Mapping[bytes, DataFragment], Mapping[bytes, DataFragment], int, int]
"""What came and what went since the version before; then how many bytes the fragments take when
encoded, and how many rows they have, deleted ones included."""


class KnownFragments:
    """The fragments of the version that was looked at last."""

    def __init__(self) -> None:
        """Know none."""
        self._encoded: set[bytes] = set()
        self.by_id: dict[int, bytes] = {}
        """Encoded; changed by `take` alone."""
        self._size = self._rows = 0

    def compared(self, fragments: Sequence[bytes]) -> FragmentChanges:
        """Compare with another version's fragments."""
        size, rows = self._size, self._rows
        new: dict[bytes, DataFragment] = {}
        replaced: list[bytes] = []
        for one in filterfalse(self._encoded.__contains__, fragments):
            new[one] = fragment = DataFragment.FromString(one)
            size += len(one)
            rows += fragment.physical_rows
            if fragment.id in self.by_id:
                replaced.append(self.by_id[fragment.id])
        gone: Iterable[bytes] = replaced
        if len(self._encoded) - len(replaced) + len(new) != len(fragments):
            # Some went, and none of their ids came: that takes longer to find out.
            gone = self._encoded.difference(fragments)
        old: dict[bytes, DataFragment] = {}
        for one in gone:
            old[one] = fragment = DataFragment.FromString(one)
            size -= len(one)
            rows -= fragment.physical_rows
        return new, old, size, rows

    def take(self, changes: FragmentChanges) -> None:
        """Know the version that was compared."""
        new, gone, self._size, self._rows = changes
        for one, fragment in gone.items():
            self._encoded.discard(one)
            self.by_id.pop(fragment.id, None)
        for one, fragment in new.items():
            self._encoded.add(one)
            self.by_id[fragment.id] = one
