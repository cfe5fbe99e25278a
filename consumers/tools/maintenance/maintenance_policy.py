"""The policies of tables: their own properties, their namespaces', the log's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from commitlog import CommitLog
from commitlog.client.leader.tables import TableInfo
from commitlog.errors import InvalidSettings
from commitlog.model.maintenance_policy import PREFIX, MaintenancePolicy
from commitlog.model.table import TableId, format_table_id


class Policies:
    """The policies of tables: their own properties, else their namespaces', else the log's."""

    def __init__(self, log: CommitLog, defaults: Mapping[str, str]) -> None:
        """Use the properties `defaults` where neither a table nor its namespaces say otherwise."""
        self._log = log
        self._defaults = dict(defaults)
        self._namespaces: dict[TableId, dict[str, str]] = {}
        """Properties of namespaces that are policies, as of the last refresh."""

    def refresh(self) -> bool:
        """Ask for the properties of namespaces; return True if any has changed."""
        found: dict[TableId, dict[str, str]] = {}
        for one in self._log.namespaces():
            given = {k: v for k, v in one.properties.items() if k.startswith(PREFIX)}
            if given:
                found[one.namespace] = given
        before, self._namespaces = self._namespaces, found
        return before != found

    def of(self, info: TableInfo) -> MaintenancePolicy:
        """Return a table's policy: its own, else its namespaces', the inner ones first.

        The properties of the root of all namespaces are the log's.
        """
        return self.of_properties(info.table_id, info.properties)

    def of_properties(self, table: TableId, properties: Mapping[str, str]) -> MaintenancePolicy:
        """Return the policy of a table with these properties, of either format."""
        inherited = dict(self._defaults)
        for depth in range(len(table)):
            inherited |= self._namespaces.get(table[:depth], {})
        return MaintenancePolicy.of_properties(format_table_id(table), {**inherited, **properties})


def parse_defaults(pairs: Sequence[str]) -> dict[str, str]:
    """Read NAME=VALUE as properties; InvalidSettings names what is no policy."""
    given = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidSettings(f"--policy takes NAME=VALUE, not {pair!r}")
        given[PREFIX + name.removeprefix(PREFIX)] = value
    MaintenancePolicy.of_properties("--policy", given)
    return given
