"""The fragments of a manifest that was read, taken apart only where somebody looks into them.

A manifest that a client staged repeats nearly all fragments of the head. Comparing their joined
bytes with the head's finds what it changes at the cost of that, where taking 2,000 fragments apart
takes 5 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from commitlog.core.manifest.fragments import Fragments
from commitlog.core.manifest.wire import find, split
from commitlog.errors import UnsupportedFormat
from commitlog.lancepb.table_pb2 import DataFragment, Manifest

_FRAGMENTS = Manifest.FRAGMENTS_FIELD_NUMBER

Removed = tuple[int, ...]
Put = tuple[tuple[int, bytes], ...]


def changes(before: Fragments, after: Fragments) -> tuple[Removed, Put]:
    """Return which fragments went, and which came or are others now, ascending by id."""
    if isinstance(after, EncodedFragments) and after.is_encoded:
        return after.changes_since(before)
    if not before:
        return (), tuple(after.items())
    return (
        tuple(i for i in before if i not in after),
        tuple((i, encoded) for i, encoded in after.items() if before.get(i) != encoded),
    )


def living_rows(encoded: bytes) -> int:
    """Return how many rows of a fragment aren't deleted."""
    fragment = DataFragment.FromString(encoded)
    return int(fragment.physical_rows - fragment.deletion_file.num_deleted_rows)


class EncodedFragments(Fragments):
    """Fragments within the bytes of a `lance.table.Manifest`."""

    __slots__ = ("_ids", "_message")

    def __init__(self, message: bytes, ids: Sequence[int]) -> None:
        """Take the manifest and the ids of its fragments, in its order; no id may be there twice.

        Raises UnsupportedFormat.
        """
        if len(set(ids)) != len(ids):
            raise UnsupportedFormat("two fragments of a manifest have one id")
        self._message = message
        self._ids = ids

    def __getattr__(self, name: str) -> Any:
        """Take the manifest apart: what a `Fragments` has isn't there yet."""
        if name not in Fragments.__slots__:
            raise AttributeError(name)
        message, self._message, self._ids = self._message, b"", ()
        Fragments.__init__(self, split(message, _FRAGMENTS)[1])
        return getattr(self, name)

    @property
    def is_encoded(self) -> bool:
        """Return True if they have not been decoded yet."""
        return bool(self._message)

    def changes_since(self, before: Fragments) -> tuple[Removed, Put]:
        """Return what turns `before` into these, while they are encoded."""
        count, position = before.repeated_in(self._message, find(self._message, _FRAGMENTS))
        later = dict(
            zip(self._ids[count:], split(self._message[position:], _FRAGMENTS)[1], strict=True)
        )
        return (
            tuple(i for i in islice(before, count, None) if i not in later),
            tuple((i, later[i]) for i in sorted(later) if before.get(i) != later[i]),
        )
