"""Sees to it that a new table's location can be reached: from here, and from its leader.

A leader that can't reach a location would commit the table and never write its files, so it is
asked first. Its storage options are its own: a record holds none.
"""

from __future__ import annotations

from collections.abc import Mapping

from commitlog.adapters.storage import local_path, store_for
from commitlog.adapters.storage_options import FILE_NAMED_BY, use_storage_options
from commitlog.client.leader.runtime import Runtime
from commitlog.errors import InvalidRequest, InvalidSettings, InvalidTransaction, Unavailable
from commitlog.messages import NO_SUCH_REQUEST
from commitlog.model.table import TableId, format_table_id


def reach(location: str, options: Mapping[str, str] | None) -> None:
    """Reach a location with these options from now on; InvalidTransaction if they are invalid."""
    if options:
        use_storage_options(location, options)
    try:
        store_for(location)
    except InvalidSettings as error:
        use_storage_options(location, {})
        raise InvalidTransaction(
            str(error),
            field="storage_options",
            advice=(
                "Nothing was changed; pass the storage options that pylance accepts for this store"
            ),
        ) from error


def check_leader_reaches(runtime: Runtime, table: TableId, location: str) -> None:
    """Raise Unavailable if the leader of a table can't reach its location; local ones pass."""
    if local_path(location) is not None:
        return
    partition = runtime.domains.partition(table)
    try:
        problem = runtime.request(partition, "reach", location=location)["problem"]
    except InvalidRequest as error:
        if NO_SUCH_REQUEST not in str(error):
            raise
        return  # a leader of before there was the question
    if problem:
        raise Unavailable(
            f"the leader can't reach {location}, so {format_table_id(table)} was not made: "
            f"{problem} Configure the location under [stores] in the storage file of every "
            f"process of the log ({FILE_NAMED_BY}); options passed to this call apply to this "
            "process only"
        )
