"""Reads and builds manifest lists for commits that are rebased.

A list never changes, so those that were read or built last are kept: the next commit to a table
stands on the list that the last one built, and only its client's own list is read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from commitlog.codecs.avro_manifests import encode_list, encode_record, filtered, read_list
from commitlog.core.decisions import FilteredWanted, Found, ListDeltaWanted, ListsWanted
from commitlog.core.iceberg.iceberg_table import FORMAT_VERSIONS
from commitlog.core.iceberg.manifests import (
    ListDelta,
    ListHeader,
    Record,
    added_by,
    merges,
    removed_by,
    stamped,
    why_unfit,
)
from commitlog.errors import CommitLogError, UnsupportedFormat
from commitlog.model.limits import ICEBERG_LIST_BYTES_MAX
from commitlog.model.records import Observation

_COUNTS = frozenset(
    f"{which}_{of}_count" for which in ("added", "existing", "deleted") for of in ("files", "rows")
)
"""What the first format may leave out."""
KEPT_MANIFESTS_MAX = 200_000
"""Manifests in all lists that are kept: about 200 MB."""

Read = Callable[[str], bytes]
"""Returns a file's bytes by its path; raises FileNotFoundError."""
Wanted = ListDeltaWanted | ListsWanted | FilteredWanted


class KeptList:
    """A manifest list: its manifests by their paths, with their bytes in a format once known."""

    __slots__ = ("_encoded", "records")

    def __init__(self, records: Mapping[str, Record]) -> None:
        """Hold manifests in their order."""
        self.records = records
        self._encoded: dict[int, dict[str, bytes]] = {}

    def encoded(self, format_version: int) -> dict[str, bytes]:
        """Return each manifest's bytes."""
        known = self._encoded.get(format_version)
        if known is None:
            known = {p: encode_record(r, format_version) for p, r in self.records.items()}
            self._encoded[format_version] = known
        return known

    def after(self, delta: ListDelta, new: Sequence[Record], format_version: int) -> KeptList:
        """Return the list that follows: what is new comes first."""
        gone = frozenset(delta.removed)
        fresh = {record["manifest_path"]: record for record in new}
        bytes_of = {p: encode_record(r, format_version) for p, r in fresh.items()}
        follows = KeptList(fresh | {p: r for p, r in self.records.items() if p not in gone})
        before = self.encoded(format_version).items()
        follows._encoded[format_version] = bytes_of | {p: b for p, b in before if p not in gone}
        return follows


class ManifestLists:
    """The lists that were read and built last, by location and path. Thread-safe."""

    def __init__(self) -> None:
        """Keep none yet."""
        self._kept: OrderedDict[tuple[str, str], KeptList] = OrderedDict()
        self._count = 0
        self._lock = threading.Lock()

    def knows(self, wanted: ListsWanted) -> bool:
        """Return True if nothing must be read for a list to be built."""
        return not wanted.is_strict and self._get(wanted.location, wanted.head) is not None

    def look(self, wanted: Wanted, read: Read) -> Found:
        """Read or build what is wanted; raise OSError if the store fails.

        Clients write the lists, so nothing else that is in one may end the leader.
        """
        path = wanted.source if isinstance(wanted, FilteredWanted) else wanted.path
        try:
            if isinstance(wanted, FilteredWanted):
                made = filtered(_bounded(read(path)))
                return Found(Observation.of(wanted.path, made), files=(made,))
            if isinstance(wanted, ListDeltaWanted):
                return self._delta(wanted, read)
            return self._build(wanted, read)
        except FileNotFoundError:
            return Found(Observation(wanted.path, -1))
        except OSError:
            raise
        except CommitLogError as error:
            return Found(Observation(wanted.path, 1), error=str(error))
        except Exception as error:  # values of other types than the specification's
            return Found(Observation(wanted.path, 1), error=f"{type(error).__name__}: {error}")

    def _delta(self, wanted: ListDeltaWanted, read: Read) -> Found:
        data = _bounded(read(wanted.path))
        client = read_list(data)
        added = added_by(client, wanted.snapshot_id)
        for record in added:
            _check_types(record)
        removed: tuple[str, ...] = ()
        if wanted.base and not (wanted.is_append and not any(map(merges, added))):
            removed = removed_by(client, self._list(wanted.base, wanted, read).records)
        delta = ListDelta(added, removed).to_bytes()
        return Found(Observation.of(wanted.path, data), data=delta)

    def _build(self, wanted: ListsWanted, read: Read) -> Found:
        head = self._list(wanted.head, wanted, read) if wanted.head else KeptList({})
        base = None
        if wanted.is_strict:
            base = self._list(wanted.base, wanted, read).records if wanted.base else {}
        files: list[bytes] = []
        for number, (path, layer) in enumerate(zip(wanted.paths, wanted.layers, strict=True)):
            delta, header = ListDelta.from_bytes(layer.delta), layer.header
            problem = why_unfit(head.records, None if number else base, delta)
            if problem is not None:
                is_rewritten = any(gone not in head.records for gone in delta.removed)
                return Found(Observation(wanted.path, 0 if is_rewritten else 1), error=problem)
            new = [stamped(record, header, layer.believed) for record in delta.added]
            head = head.after(delta, new, header.format_version)
            files.append(_encoded(head, header))
            self._keep(wanted.location, path, head)
        return Found(Observation.of(wanted.path, files[-1]), files=tuple(files))

    def _list(self, path: str, wanted: Wanted, read: Read) -> KeptList:
        known = self._get(wanted.location, path)
        if known is None:
            records = read_list(_bounded(read(path)))
            known = KeptList({record["manifest_path"]: record for record in records})
            self._keep(wanted.location, path, known)
        return known

    def _get(self, location: str, path: str) -> KeptList | None:
        with self._lock:
            known = self._kept.get((location, path))
            if known is not None:
                self._kept.move_to_end((location, path))
            return known

    def _keep(self, location: str, path: str, kept: KeptList) -> None:
        with self._lock:
            before = self._kept.pop((location, path), None)
            self._kept[location, path] = kept
            self._count += len(kept.records) - (len(before.records) if before else 0)
            while self._count > KEPT_MANIFESTS_MAX and len(self._kept) > 1:
                self._count -= len(self._kept.popitem(last=False)[1].records)


def _encoded(kept: KeptList, header: ListHeader) -> bytes:
    return encode_list(header, list(kept.encoded(header.format_version).values()))


def _check_types(record: Record) -> None:
    """Refuse a manifest that no list can name: what is decided of it takes its types as given."""
    known = {
        name: 0 if value is None and name in _COUNTS else value for name, value in record.items()
    }
    encode_record(known, FORMAT_VERSIONS[-1])


def _bounded(data: bytes) -> bytes:
    if len(data) > ICEBERG_LIST_BYTES_MAX:
        raise UnsupportedFormat(f"it has {len(data)} bytes, over {ICEBERG_LIST_BYTES_MAX}")
    return data
