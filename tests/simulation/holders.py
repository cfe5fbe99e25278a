"""Old versions that are needed: tags beside a table, holds and leases in the log.

Policies of maintenance change here, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commitlog.codecs.manifest_file import parse_manifest_name
from commitlog.core.catalogue.version_deletion import HOLD
from commitlog.model.operations import AlterProperties
from commitlog.model.records import Transaction
from commitlog.model.table import format_table_id
from tests.simulation.maintainer import Tags, policy
from tests.simulation.rows import Asked, Intent
from tests.simulation.writers import Writer

if TYPE_CHECKING:
    from commitlog.core.tables.lance_tables import Table
    from tests.simulation.standing import Standing

WRITTEN = 0.25
"""How often, when its turn has come, it asks for something."""
NAMES = ("a", "b")
LEASE_MS = (2_000, 3_600_000)


class Holder(Writer):
    """Keeps versions from being deleted, and lets them go."""

    def _submit_new(self) -> None:
        world, chance = self.world, self.world.scheduler.random
        found = [t for _, t in sorted(world.auditor.machine.tables.items()) if t.version]
        if not found or chance.random() > WRITTEN:
            return
        table = chance.choice(found)
        kind = chance.choice(("tag", "tag", "untag", "hold", "hold", "release", "policy"))
        if kind in {"tag", "hold"}:
            world.count("version tagged or held")
        if kind in {"tag", "untag"}:
            self._tag(table, chance.choice(NAMES), is_on=kind == "tag")
            return
        name = HOLD + chance.choice(NAMES)
        if kind == "policy":
            sets = policy(chance)
        elif kind == "release":
            sets = ((name, ""),)
        else:
            sets = ((name, self._hold(table)),)
        self._alter(table, sets)

    def _hold(self, table: Table) -> str:
        chance = self.world.scheduler.random
        said = str(chance.randrange(1, table.version + 1)) + chance.choice(("", "", "-"))
        lasting = chance.choice((0, *LEASE_MS))
        return f"{said} until {self.world.now_ms() + lasting}" if lasting else said

    def _alter(self, table: Table, sets: tuple[tuple[str, str], ...]) -> None:
        operation = AlterProperties(
            table.table_id,
            upserts=tuple(one for one in sets if one[1]),
            removals=tuple(name for name, value in sets if not value),
        )
        transaction = Transaction(
            self.world.requests.uuid(),
            (operation,),
            submitted_at_ms=self.world.now_ms() + self.clock_skew_ms,
        )
        meant = Intent("alter", format_table_id(table.table_id), sets=sets)
        self.send_as(transaction, Asked((meant,)))

    def _tag(self, table: Table, name: str, *, is_on: bool) -> None:
        """Tag a version that opens by path, or take the tag away."""
        world, standing = self.world, self._standing
        tags = Tags(world.auditor.open_store(table.location))
        if not is_on:
            standing.tags.pop((table.location, name), None)
            tags.delete(name)
            return
        expired = standing.expired.get(table.incarnation, set())
        start = f"{table.location}/_versions/"
        made = [
            parse_manifest_name(p[len(start) :]) for p in world.objects.bytes if p.startswith(start)
        ]
        there = {one.version for one in made if one is not None and not one.staged_by}
        if known := sorted(v for v in there - expired if v <= table.version):
            version = world.scheduler.random.choice(known)
            tags.create(name, version)
            standing.tags[table.location, name] = (version, world.scheduler.now)

    @property
    def _standing(self) -> Standing:
        assert self.world.auditor.standing is not None
        return self.world.auditor.standing
