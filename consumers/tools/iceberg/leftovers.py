"""Unneeded files of a log's Iceberg tables, as leftovers: removed after a record."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence

from commitlog import CommitLog
from commitlog.errors import CommitLogError
from commitlog.messages import IcebergDescription
from commitlog.model.names import REASON
from commitlog.model.operations import AlterProperties
from commitlog.model.table import format_table_id
from commitlog.ports import Log
from consumers.partition.files.iceberg_files import IcebergFiles
from consumers.runtime.progress import SILENT, Tally
from consumers.tools.iceberg.orphans import IcebergOrphans, Orphan
from consumers.tools.orphans.leftover import Leftover, said
from consumers.tools.orphans.orphans import CATCH_UP_SECONDS

logger = logging.getLogger(__name__)


def record_removal(client: CommitLog, why: str) -> None:
    """Say in the log which of Iceberg's files go, and why; raise OutcomeUnknown."""
    nothing = AlterProperties((), is_namespace=True)
    ticket = client.submit(None, nothing, properties={REASON: why})
    # Before protocol 4 the log has no properties of its own. Its refusal is a record, too.
    ticket.result(CATCH_UP_SECONDS)


def standing_tables(client: CommitLog) -> Iterator[IcebergDescription]:
    """Yield the Iceberg tables and views that exist, as their leaders say."""
    runtime = client.runtime()
    for partition in range(runtime.partitions):
        for entry in runtime.request(partition, "iceberg_tables"):
            yield IcebergDescription.from_json(entry)


class IcebergLeftovers:
    """Follows the outcomes of all partitions of a log with a tables root; close it."""

    def __init__(
        self, log: Log, orphans: IcebergOrphans | None = None, tally: Tally = SILENT
    ) -> None:
        """Begin before the first record, or go on with `orphans`, which somebody else closes."""
        self._files = IcebergFiles(log.genesis().tables_root)
        self._orphans = orphans or IcebergOrphans(log, self._files.root, tally)
        self._owns = orphans is None

    def close(self) -> None:
        """Stop reading."""
        if self._owns:
            self._orphans.close()

    def find(self) -> Iterator[tuple[Leftover, Orphan]]:
        """Read to the present end; yield unneeded files, with what is known of them.

        It counts as unneeded since it was written, or since what needed it was superseded.
        """
        orphans = self._orphans.find()
        there = self._files.found({one.location for one in orphans}) if orphans else {}
        for orphan in orphans:
            file = there.get(orphan.location)
            if file is not None and file.modified_ms >= orphan.beyond_ms:
                leftover = Leftover(
                    table=format_table_id(orphan.table) if orphan.table else "",
                    location=orphan.location,
                    why=orphan.why,
                    reason=orphan.reason,
                    size=file.size,
                    since_ms=max(file.modified_ms, orphan.since_ms),
                )
                yield leftover, orphan

    def remove(
        self,
        found: Sequence[Leftover],
        client: CommitLog,
        *,
        on_removed: Callable[[Leftover], None],
        go_on: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Remove leftovers after a record, and after another look; return True if none is left.

        Stops early once `go_on` returns False.
        """
        record_removal(client, said(found))
        still = {one.location: one.beyond_ms for one in self._orphans.find()}
        for one in found:
            if not go_on():
                return False
            if one.since_ms < still.get(one.location, math.inf):
                continue
            try:
                self._files.delete(one.location, self._files.root)
            except (OSError, CommitLogError) as error:
                logger.warning("%s cannot be removed: %s", one.location, error)
            else:
                on_removed(one)
        return True
