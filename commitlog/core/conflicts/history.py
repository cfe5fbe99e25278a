"""Which version of a table changed what, so that a check costs what its own operation touches.

For each kind of operation, and for each thing that one may touch (`Delete.updated` fragment 7, the
inserted key hash `h`), the versions that did are kept in ascending order. The first one after a
read version is found by bisection, whether one version was missed or a hundred thousand.

Decisions look back exactly `Rules.history_versions` versions. Older entries are dropped in batches;
no decision depends on when.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain, groupby, repeat
from operator import itemgetter
from typing import Any, NamedTuple

Aspect = tuple[str, Hashable]
"""What was touched: `(how, which)`."""

PRUNE_SLACK = 1.25
"""Old entries are dropped when the history is this much longer than it has to be."""


CHUNK_VERSIONS = 1024
"""So many neighbouring versions are a chunk."""


class WriteSet(NamedTuple):
    """What one committed version touched."""

    kind: str
    aspects: tuple[Aspect, ...] = ()
    notes: tuple[tuple[Aspect, Any], ...] = ()
    """Values that a rule compares: a MemWAL shard's generation, an index's fragments."""
    deletion_files: tuple[tuple[int, str], ...] = ()
    """Per updated fragment, the path of its deletion file before; empty if it had none."""


class VersionAuthor(NamedTuple):
    """Who made a version."""

    transaction_id: str
    kind: str


class History:
    """What the versions of one table touched, from `floor` on."""

    __slots__ = (
        "_deletion_files",
        "_entries",
        "_notes",
        "_touched",
        "_versions",
        "digests",
        "floor",
        "keyed",
        "kinds",
        "signatures",
        "steps",
        "texts",
    )

    def __init__(self, floor: int) -> None:
        """Start after version `floor`, of which nothing is known."""
        self.floor = floor
        self.kinds: dict[str, list[int]] = {}
        """The versions of each kind of operation, ascending."""
        self.signatures: dict[str, None] = {}
        """The signatures of inserted keys: which columns, hashed how."""
        self.keyed: dict[str, None] = {}
        """The aspects under which known keys were inserted, such as `Append.keys`."""
        self.steps = 0
        """How many look-ups were made; the cost of checks, for tests."""
        self.texts: dict[int, bytes] = {}
        """By version, a large entry as snapshots encode it: a cache, not a part of the state."""
        self._versions: list[tuple[str, str]] = []
        """Each version's transaction and kind: a plain tuple is cheaper than a `VersionAuthor`."""
        self._touched: dict[Aspect, list[int]] = {}
        self._notes: dict[tuple[Aspect, int], Any] = {}
        self._deletion_files: dict[int, tuple[list[int], list[str]]] = {}
        self._entries: dict[int, list[tuple[int, WriteSet]]] = {}
        """By chunk, ascending: the versions that touched anything."""
        self.digests: dict[int, bytes] = {}
        """The hashes of full chunks, by number."""

    @property
    def head(self) -> int:
        """The newest version that is known."""
        return self.floor + len(self._versions)

    def record(self, transaction_id: str, write_set: WriteSet) -> None:
        """Add the next version."""
        kind, aspects, _, deletion_files = write_set
        self._versions.append((transaction_id, kind))
        version = self.floor + len(self._versions)
        versions = self.kinds.get(kind)
        if versions is None:
            self.kinds[kind] = [version]
        else:
            versions.append(version)
        if aspects or deletion_files:
            self._touch(version, write_set)

    def record_all(self, transaction_ids: Sequence[str], kind: str) -> None:
        """Add versions of one kind that touched nothing, fewer than there is `room` for."""
        before = self.head
        self._versions.extend(zip(transaction_ids, repeat(kind), strict=False))
        self.kinds.setdefault(kind, []).extend(range(before + 1, self.head + 1))

    def room(self, versions_max: int) -> int:
        """Return how many versions can be added before `prune` forgets any."""
        return int(versions_max * PRUNE_SLACK + 16) - len(self._versions)

    def _touch(self, version: int, write_set: WriteSet) -> None:
        _, aspects, notes, deletion_files = write_set
        for aspect in aspects:
            of_aspect = self._touched.get(aspect)
            if of_aspect is None:
                self._touched[aspect] = [version]
                if aspect[0].endswith(".keys"):
                    self.keyed[aspect[0]] = None
                    self.signatures[str(aspect[1])] = None
            elif of_aspect[-1] != version:
                of_aspect.append(version)
        for aspect, value in notes:
            self._notes[aspect, version] = value
        for fragment_id, path in deletion_files:
            versions, paths = self._deletion_files.setdefault(fragment_id, ([], []))
            versions.append(version)
            paths.append(path)
        self._entries.setdefault(version // CHUNK_VERSIONS, []).append((version, write_set))

    def first(self, how: str, which: Hashable, after: int) -> int:
        """Return the first version above `after` that touched this, 0 if none did."""
        self.steps += 1
        return _first(self._touched.get((how, which)), after)

    def every_after(self, kind: str, how: str, after: int) -> set[Any]:
        """Return all that versions of a kind above `after` touched in a way of theirs."""
        versions, found = self.kinds.get(kind, []), set[Any]()
        for version in versions[bisect_right(versions, after) :]:
            entries = self._entries.get(version // CHUNK_VERSIONS, [])
            at = bisect_left(entries, version, key=itemgetter(0))
            for _, write_set in entries[at : at + 1]:
                self.steps += len(write_set.aspects)
                found.update(which for named, which in write_set.aspects if named == how)
        return found

    def first_of_kind(self, kind: str, after: int) -> int:
        """Return the first version of this kind above `after`, 0 if there is none."""
        self.steps += 1
        return _first(self.kinds.get(kind), after)

    def last(self, how: str, which: Hashable) -> int:
        """Return the last version that touched this, 0 if none is known."""
        self.steps += 1
        versions = self._touched.get((how, which))
        return versions[-1] if versions else 0

    def all_after(self, how: str, which: Hashable, after: int) -> list[int]:
        """Return all versions above `after` that touched this."""
        versions = self._touched.get((how, which), [])
        found = versions[bisect_right(versions, after) :]
        self.steps += 1 + len(found)
        return found

    def note(self, how: str, which: Hashable, version: int) -> Any:
        """Return the value that `version` noted with this aspect."""
        return self._notes[(how, which), version]

    def deletion_file_at(self, fragment_id: int, version: int) -> str | None:
        """Return a fragment's deletion file as of `version`; None: the same as now."""
        self.steps += 1
        known = self._deletion_files.get(fragment_id)
        if known is None or known[0][-1] <= version:
            return None
        return known[1][bisect_right(known[0], version)]

    def committed(self, version: int) -> VersionAuthor:
        """Return who made `version`; empty names if nobody is known.

        A record may name a fragment that never existed. Then no version explains the conflict.
        """
        at, known = version - self.floor - 1, len(self._versions)
        return VersionAuthor(*self._versions[at]) if -known <= at < known else VersionAuthor("", "")

    def prune(self, versions_max: int) -> None:
        """Forget versions before the last `versions_max`, once there are enough of them."""
        if self.room(versions_max) >= 0:
            return
        floor = self.head - versions_max
        del self._versions[: floor - self.floor]
        self.floor = floor
        for kind in [k for k, versions in self.kinds.items() if versions[-1] <= floor]:
            del self.kinds[kind]
        for versions in self.kinds.values():
            del versions[: bisect_right(versions, floor)]
        stale: dict[Aspect, None] = {}
        fragments: dict[int, None] = {}
        for version, write_set in self._taken_through(floor):
            self.texts.pop(version, None)
            stale.update(dict.fromkeys(write_set.aspects))
            fragments.update(dict.fromkeys(f for f, _ in write_set.deletion_files))
            for aspect, _ in write_set.notes:
                self._notes.pop((aspect, version), None)
        self._forget(stale, fragments, floor)
        self._forget_keys()

    def _taken_through(self, floor: int) -> Iterator[tuple[int, WriteSet]]:
        """Remove the entries up to a version, and yield them."""
        last = floor // CHUNK_VERSIONS
        for chunk in [one for one in self.digests if one <= last]:
            del self.digests[chunk]
        for chunk in [one for one in self._entries if one <= last]:
            entries = self._entries.pop(chunk)
            yield from (entry for entry in entries if entry[0] <= floor)
            left = [entry for entry in entries if entry[0] > floor]
            if left:
                self._entries = {chunk: left, **self._entries}

    def _forget(self, stale: Iterable[Aspect], fragments: Iterable[int], floor: int) -> None:
        for aspect in stale:
            versions = self._touched[aspect]
            if versions[-1] <= floor:
                del self._touched[aspect]
            else:
                del versions[: bisect_right(versions, floor)]
        for fragment_id in fragments:
            versions, paths = self._deletion_files[fragment_id]
            if versions[-1] <= floor:
                del self._deletion_files[fragment_id]
            else:
                count = bisect_right(versions, floor)
                del versions[:count], paths[:count]

    def _forget_keys(self) -> None:
        """Forget signatures and aspects of keys that no entry has any more."""
        left = {
            how: [s for s in self.signatures if (how, s) in self._touched] for how in self.keyed
        }
        self.keyed = {how: None for how, signatures in left.items() if signatures}
        self.signatures = {s: None for signatures in left.values() for s in signatures}

    def entries(self) -> tuple[list[tuple[str, str]], list[tuple[int, WriteSet]]]:
        """Return what a snapshot has to keep; `of_entries` takes it back."""
        return self._versions, list(chain.from_iterable(self._entries.values()))

    def chunks(self) -> range:
        """Return the numbers of the chunks that have versions and are full."""
        return range((self.floor + 1) // CHUNK_VERSIONS, (self.head + 1) // CHUNK_VERSIONS)

    def in_chunk(self, chunk: int) -> tuple[list[tuple[str, str]], list[tuple[int, WriteSet]]]:
        """Return a chunk's part of `entries`."""
        start = max(chunk * CHUNK_VERSIONS - self.floor - 1, 0)
        end = (chunk + 1) * CHUNK_VERSIONS - self.floor - 1
        return self._versions[start:end], self._entries.get(chunk, [])

    @classmethod
    def of_entries(
        cls, floor: int, versions: Iterable[Iterable[str]], entries: Iterable[tuple[int, WriteSet]]
    ) -> History:
        """Make a history of what `entries` returned."""
        history = cls(floor)
        history._versions = list(map(tuple, versions))  # type: ignore[arg-type]
        version = floor + 1
        for kind, alike in groupby(map(itemgetter(1), history._versions)):
            after = version + len(list(alike))
            history.kinds.setdefault(kind, []).extend(range(version, after))
            version = after
        for version, write_set in entries:
            history._touch(version, write_set)
        return history


def _first(versions: list[int] | None, after: int) -> int:
    if not versions or versions[-1] <= after:
        return 0
    return versions[bisect_right(versions, after)]
