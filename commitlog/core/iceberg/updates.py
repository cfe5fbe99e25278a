"""All updates by name: read from a request, applied in its order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from commitlog.core.iceberg.actions import Action, MetadataUpdate
from commitlog.core.iceberg.defaults import check_update
from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.iceberg.layout_actions import LAYOUT_ACTIONS
from commitlog.core.iceberg.metadata import table_of
from commitlog.core.iceberg.metadata_draft import MetadataDraft, finish, start
from commitlog.core.iceberg.naming import derived_uuid
from commitlog.core.iceberg.plain_actions import PLAIN_ACTIONS
from commitlog.core.iceberg.reading import Node
from commitlog.core.iceberg.snapshot_actions import SNAPSHOT_ACTIONS
from commitlog.model.limits import ICEBERG_LAYOUTS_SINCE, PROTOCOL_SUPPORTED

ALIASES = {"add-partition-spec": "add-spec"}
"""Names of the transaction document that differ from the official ones."""

REGISTER = "commitlog-register"
"""Take over metadata that is in a file: the log keeps it whole. Clients cannot ask for it so."""

ACTIONS: dict[str, Action] = {
    **PLAIN_ACTIONS,
    **LAYOUT_ACTIONS,
    **SNAPSHOT_ACTIONS,
}


def read_update(
    node: Node,
    *,
    is_logged: bool = False,
    protocol: int = PROTOCOL_SUPPORTED,
    registered: Callable[[], IcebergTable] | None = None,
) -> MetadataUpdate:
    """Read one update; an unknown action is refused, since skipping it would change its meaning.

    Only in the log may it be `REGISTER`; `registered` returns the table where the metadata isn't
    held there.
    """
    sent = node.member("action").string().lower()
    if is_logged and sent == REGISTER:
        if registered is not None and "metadata" not in node.object():
            return MetadataUpdate(REGISTER, registered())
        location = node.member("metadata-location").text()
        table = table_of(node.member("metadata").value, location, path=node.member("metadata").path)
        return MetadataUpdate(REGISTER, table)
    name = ALIASES.get(sent, sent)
    action = ACTIONS.get(name)
    if action is None:
        node.member("action").fail(
            "iceberg_action_unknown", value=node.value["action"], known=sorted({*ACTIONS, *ALIASES})
        )
    arguments = action.read(node)
    if protocol >= ICEBERG_LAYOUTS_SINCE:
        check_update(name, node)
    return MetadataUpdate(name, arguments)


def apply_updates(
    base: IcebergTable | None,
    updates: Sequence[MetadataUpdate],
    *,
    time_ms: int,
    transaction_id: str,
    position: int = 0,
    protocol: int = PROTOCOL_SUPPORTED,
) -> IcebergTable:
    """Return the table with all updates applied in order; `base` itself if they change nothing.

    `base` None makes a table; `position` is the sequence that its metadata says. Raises Invalid or
    Stale; `base` is never changed.
    """
    if [update.action for update in updates] == [REGISTER]:
        registered: IcebergTable = updates[0].arguments
        return registered
    format_version = 2
    if base is None:
        named = [u.arguments for u in updates if u.action == "upgrade-format-version"]
        format_version = named[0] if named else format_version
    uuid = derived_uuid(transaction_id, "table")
    draft: MetadataDraft = start(base, time_ms=time_ms, uuid=uuid, format_version=format_version)
    for update in updates:
        if update.action == REGISTER:
            raise Invalid("iceberg_register_not_alone", action=REGISTER)
        ACTIONS[update.action].apply(draft, update.arguments)
    return finish(draft, base, transaction_id=transaction_id, position=position, protocol=protocol)
