"""Looks for rows that only older versions of a table still have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commitlog import CommitLog
from commitlog.client.tables import TableInfo
from commitlog.core.catalogue.version_deletion import without
from commitlog.errors import InvalidTransaction, NoSuchVersion

if TYPE_CHECKING:
    import lance
    import pyarrow as pa

    from consumers.tools.erasure.writes import OnProgress


def version_with(client: CommitLog, info: TableInfo, where: str, on_progress: OnProgress) -> int:
    """Return the newest older version with such rows; 0 if there is none.

    A fragment is read once in each state that it had. The newest version is known to have no such
    row that lives, but may have one that was deleted, in a file that older versions read whole.

    Raises:
        InvalidTransaction: a version lacks a column of the predicate.
    """
    seen = {_state(one) for one in client.opened.newest(info).get_fragments()}
    versions = [
        v for a, b in without([(1, info.version - 1)], info.deleted) for v in range(a, b + 1)
    ]
    for done, version in enumerate(reversed(versions)):
        on_progress(done, len(versions))
        try:
            dataset = client.open(info.name, version)
        except NoSuchVersion:  # it expired meanwhile
            continue
        unread = [one for one in dataset.get_fragments() if _state(one) not in seen]
        seen |= {_state(one) for one in unread}
        if unread and _has(dataset, unread, where, info, version):
            return version
    return 0


def _state(fragment: lance.LanceFragment) -> str:
    """Return a fragment's files and deletions, which say what rows it has."""
    found = fragment.metadata
    return repr(([(file.path, file.fields) for file in found.files], found.deletion_file))


def _has(
    dataset: lance.LanceDataset,
    fragments: list[lance.LanceFragment],
    where: str,
    info: TableInfo,
    version: int,
) -> bool:
    try:
        asked = dataset.scanner(
            filter=where, fragments=fragments, columns=[], with_row_id=True, limit=1
        )
        found: pa.Table = asked.to_table()
        return len(found) > 0
    except (ValueError, OSError, RuntimeError) as error:
        raise InvalidTransaction(
            f"version {version} of {info.name} may have such rows, but Lance can't evaluate"
            f" {where!r} over it: {str(error).rstrip('. ')}",
            field="where",
            value=where,
            advice="Use columns that each version has, or delete the older versions first"
            " (log.expire_versions)",
        ) from error
