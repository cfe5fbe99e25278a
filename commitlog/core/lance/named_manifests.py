"""Reads the manifests that a record names, once it is known that they aren't too large together.

Each may have an equal share of the bound, and is read at the first look. Of a larger one, that look
tells the size. Only if all of them fit are the larger ones read, in one more round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commitlog.core.decisions import Found, ManifestWanted, Wants, rejected
from commitlog.core.draft import Draft
from commitlog.model.limits import HEADERS_BOUNDED_SINCE, MANIFESTS_BYTES_MAX, Rules
from commitlog.model.operations import CreateTableVersion, Operation, RegisterTable
from commitlog.model.records import Code
from commitlog.model.table import TableId, format_table_id


def share_of(rules: Rules, operations: Sequence[Operation]) -> int:
    """Return how many bytes of each manifest are read at the first look; 0: all."""
    if rules.protocol < HEADERS_BOUNDED_SINCE or len(operations) == 1:
        return 0
    count = sum(isinstance(one, CreateTableVersion | RegisterTable) for one in operations)
    return MANIFESTS_BYTES_MAX // max(count, 1)


def named_manifest(draft: Draft, table: TableId, location: str, path: str) -> Found:
    """Return what was found of a manifest; refuse the record if it names too much."""
    share = share_of(draft.rules, draft.transaction.operations)
    found = draft.want(ManifestWanted(location, path, share))
    if not share:
        return found
    draft.manifest_bytes += max(found.observation.size, 0)
    if draft.manifest_bytes > MANIFESTS_BYTES_MAX:
        raise rejected(
            Code.INVALID_OPERATION,
            "manifests_too_large",
            table=format_table_id(table),
            bytes=draft.manifest_bytes,
            most=MANIFESTS_BYTES_MAX,
        )
    if not _is_larger(found, share):
        return found
    whole = ManifestWanted(location, path, MANIFESTS_BYTES_MAX)
    if draft.observed.get(whole) is None:
        raise Wants((whole, *_others(draft, share)))
    return draft.want(whole)


def _is_larger(found: Found, share: int) -> bool:
    return found.observation.size > share and not found.observation.sha256


def _others(draft: Draft, share: int) -> Iterator[ManifestWanted]:
    """Yield other manifests that are larger than their share: they will be asked for, too."""
    together = 0
    for one, found in draft.observed.items():
        if isinstance(one, ManifestWanted) and one.bytes_max == share and _is_larger(found, share):
            together += found.observation.size
            if together > MANIFESTS_BYTES_MAX:
                return
            yield ManifestWanted(one.location, one.path, MANIFESTS_BYTES_MAX)
