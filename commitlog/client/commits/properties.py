"""What tables are called, and the properties of tables and namespaces, such as policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from commitlog.client.commits.catalogue import check_policy, commit
from commitlog.client.rows.host import Host, Pairs, TableName
from commitlog.errors import InvalidRequest
from commitlog.messages import NamespaceDescription
from commitlog.model.maintenance_policy import PREFIX
from commitlog.model.names import RESERVED
from commitlog.model.operations import AlterProperties, RenameTable
from commitlog.model.table import TableId, format_table_id, parse_table_id

if TYPE_CHECKING:
    from commitlog.model.records import Outcome

TIMEOUT_SECONDS = 120.0


class ChangesNames(Host):
    """Adds to `CommitLog` the methods that rename tables and set properties."""

    def namespaces(self) -> list[NamespaceDescription]:
        """Return all namespaces that were created, each with its properties."""
        runtime = self.runtime()
        return [
            NamespaceDescription.from_json(one)
            for partition in range(runtime.partitions)
            for one in runtime.request(partition, "namespaces")
        ]

    def rename_table(
        self,
        table_id: TableName,
        new_name: TableName,
        *,
        timeout: float = TIMEOUT_SECONDS,
        properties: Pairs = (),
        transaction_id: str | None = None,
    ) -> Outcome:
        """Give a Lance or Iceberg table another name, in its namespace or another one.

        Its files stay where they are, and its versions, properties and history stay with it.

        Raises:
            NoSuchTable: no table has the name.
            TableAlreadyExists: a table has the new name.
            InvalidTransaction: the new name belongs to another partition of the log.
        """
        operation = RenameTable(parse_table_id(table_id), parse_table_id(new_name))
        return commit(
            self, (operation,), timeout, properties=properties, transaction_id=transaction_id
        )

    def set_properties(
        self,
        name: TableName,
        values: Mapping[str, str | None],
        *,
        is_namespace: bool = False,
        timeout: float = TIMEOUT_SECONDS,
        properties: Pairs = (),
        transaction_id: str | None = None,
    ) -> Outcome:
        """Set properties of a Lance table, or of a namespace; None removes one.

        The empty list names the root of all namespaces, whose properties apply to the whole log.
        `commitlog.maintain.NAME` controls maintenance of a table, or of a namespace's tables.

        Raises:
            InvalidRequest: `commitlog.maintain.NAME` is unknown, or the value is invalid; `rows` is
                neither log nor files; or the property is reserved for the log.
        """
        target = () if is_namespace and not name else parse_table_id(name)
        check_properties(target, values)
        if not is_namespace:
            from commitlog.client.accepted.row_writes import check_by_log

            check_by_log(values)
        operation = AlterProperties(
            target,
            is_namespace,
            upserts=tuple(sorted((k, v) for k, v in values.items() if v is not None)),
            removals=tuple(sorted(k for k, v in values.items() if v is None)),
        )
        return commit(
            self, (operation,), timeout, properties=properties, transaction_id=transaction_id
        )


def check_properties(target: TableId, values: Mapping[str, str | None]) -> None:
    """Raise InvalidRequest for a policy that can't be, and for what isn't set so."""
    said = format_table_id(target)
    if not values:
        raise InvalidRequest("no property is given", field="values")
    for key in values:
        if not key or (key.startswith(RESERVED) and not key.startswith(PREFIX)):
            raise InvalidRequest(
                f"{said}: {key!r} can't be set", field="values", value=key,
                advice=f"Of {RESERVED}*, only {PREFIX}* are yours; holds are set by log.hold",
            )  # fmt: skip
    check_policy(said, {key: value for key, value in values.items() if value is not None})
