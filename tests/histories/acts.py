"""The steps of a history that keep its table: maintenance, removal of files, undo."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

from commitlog import CommitLog
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import MemoryCluster
from commitlog.core.tables.lance_tables import is_in
from commitlog.model.maintenance_policy import PREFIX
from consumers.tools.maintenance import table_acts
from consumers.tools.maintenance.cleaning import clean
from consumers.tools.maintenance.maintenance import Maintenance

if TYPE_CHECKING:
    from tests.histories.world import History, Step

POLICY = {
    PREFIX + "small-fragments": "4",
    PREFIX + "keep-manifests": "4",
    PREFIX + "history-share": "0.5",
    PREFIX + "history-hours": "0",
    PREFIX + "history-versions": "6",
    PREFIX + "remove-after-days": "1e-9",
}
"""Of a table whose maintenance finds something to do after a few steps."""
KINDS = ("maintain", "maintain", "remove", "undrop", "go back")


def maintained(log: CommitLog, cluster: MemoryCluster) -> list[table_acts.Act]:
    """Do all that is due. Nobody reads a manifest meanwhile, so none is too young to be thinned."""
    with mock.patch.object(table_acts, "YOUNG_MS", -3_600_000):
        return Maintenance(log, open_log=lambda: MemoryLog(cluster)).look()


def act(history: History, step: Step) -> None:
    """Do one of these steps, and compare."""
    client, table, held = history.client, history.table, history.model[history.head]
    if step.kind == "maintain":
        for one in maintained(client, history.service.cluster):
            history.tally.ended[f"maintenance: {one.kind}"] += 1
    elif step.kind == "remove":
        gone = clean(MemoryLog(history.service.cluster), table, 0, client)
        history.tally.ended["files removed"] += len(gone)
    elif step.kind == "undrop":
        client.drop_table(table)
        client.undrop(table).raise_for_conflict()
        history.remembered = history.head
        history.tally.ended["undropped"] += 1
    else:
        known = sorted(history.sequences.keys() & history.model.keys())
        version = known[step.pick % len(known)]
        outcome = client.restore([table], history.sequences[version])
        held = history.model[version]
        history.tally.ended["went back"] += outcome is not None
    info = client.table(table)
    for version in range(history.head + 1, info.version + 1):
        history.model[version] = held
    history.model = {v: h for v, h in history.model.items() if not is_in(v, info.deleted)}
    history.check_head()
