"""Which metadata files the outcomes of a log name, and whose they are."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from commitlog.adapters.reading import read_on
from commitlog.core.log.chain import Chain
from commitlog.core.tables.lance_tables import normalize_location
from commitlog.model.records import Outcome, Status
from commitlog.ports import Log
from consumers.tools.iceberg_heads import End, Heads

OURS = re.compile(
    r"(?P<folder>.*)/\d{5,}-[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"(\.gz)?\.metadata\.json"
)
"""The names that the log gives (uuid version 5); metadata files of others are ignored."""


class NamedFiles:
    """Follows the outcomes of all partitions; close it."""

    def __init__(self, log: Log) -> None:
        """Begin before the first record."""
        partitions = range(log.partitions())
        self._outcomes = [(log.read_outcomes(one, 0), Chain()) for one in partitions]
        self.homes_of: dict[str, str] = {}
        """The locations of tables, by the metadata files that were named, in the log's order."""
        self.ended: dict[str, str] = {}
        """Those of tables that were dropped without their files, by their last ones."""
        self.purged: dict[str, str] = {}
        """Those of tables that were dropped with their files, by their last ones."""
        self.heads = Heads()
        """The tables that exist, second names included."""
        self.missing: set[str] = set()
        """Files that were missing when they were looked for; if they come back, they are listed."""
        self._of_lance: dict[str, str] = {}
        """Locations of Lance tables, by incarnation, unless they were dropped."""

    def close(self) -> None:
        """Stop reading."""
        for reader, _ in self._outcomes:
            reader.close()

    def rest(self) -> None:
        """Release all connections until the next look."""
        for reader, _ in self._outcomes:
            reader.rest()

    def homes(self) -> Iterator[str]:
        """Yield the places of tables that nobody dropped with their files."""
        yield from (head.home for head in self.heads.by_name.values())
        yield from self.ended.values()
        yield from self._of_lance.values()

    def look(self, there: Collection[str]) -> set[str]:
        """Read to the present ends; return the log's files `there` that no outcome names."""
        for reader, chain in self._outcomes:
            for answered in read_on(reader):
                record = answered.record
                is_valid = not chain.admit(record)
                if is_valid and isinstance(record, Outcome):
                    self._take(record)
        return {one for one in there if one not in self.homes_of and OURS.fullmatch(one)}

    def _take(self, outcome: Outcome) -> None:
        if outcome.status is not Status.COMMITTED or outcome.answers is not None:
            return
        for result in outcome.results:
            if result.location and not result.metadata_location:
                self._of_lance.pop(result.incarnation, None)
                if result.operation != "DropTable":
                    self._of_lance[result.incarnation] = normalize_location(result.location)
        for named in self.heads.take(outcome):
            place = named.place
            self.homes_of[place] = named.home
            self.missing.discard(place)
            self.ended.pop(place, None)
            if named.end is End.KEPT:
                self.ended[place] = named.home
            elif named.end is End.PURGED:
                self.purged[place] = named.home
            else:
                self.purged.pop(place, None)
