"""What a log says of its places: which prefixes are relative to named roots.

Leaders tell their clients where everything is. A process that opens files without asking one (a
leader that starts, `verify`, `backup`, an audit) reads it here, in the log itself.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing

from commitlog.adapters.places import TABLES, bound, is_bound, own_tables, plain, use_named
from commitlog.client.commits.catalogue import dry_run, log_properties
from commitlog.client.leader.runtime import Runtime
from commitlog.client.leader.transactions_by_offset import TransactionsByOffset
from commitlog.client.leader.valid_outcomes import ValidOutcomes
from commitlog.client.rows.host import Host
from commitlog.core.log.chain import BEGINNING, ChainPlace
from commitlog.errors import InvalidRequest, InvalidSettings, Unavailable
from commitlog.model.limits import NAMED_ROOTS_SINCE
from commitlog.model.operations import AlterProperties, Properties
from commitlog.model.records import Outcome, is_commit
from commitlog.ports import PATIENT_SECONDS, Log

PARTITION = 0
"""The one that decides about the log itself."""
READ_SECONDS = 600.0
SLICE_SECONDS = 0.2
TIMEOUT_SECONDS = 60.0


def roots_of(log: Log, known: Properties = (), place: ChainPlace = BEGINNING) -> dict[str, str]:
    """Return the names of roots by their prefixes, as the log has them now.

    `known` are the log's properties at a place of its outcomes.
    """
    from commitlog.core.catalogue.named_roots import named_roots
    from commitlog.core.catalogue.namespaces import altered

    with (
        closing(ValidOutcomes(log, PARTITION, place, patient=PATIENT_SECONDS)) as outcomes,
        closing(TransactionsByOffset(log, PARTITION)) as transactions,
    ):
        deadline, end = time.monotonic() + READ_SECONDS, outcomes.end_offset()
        while not outcomes.is_at(end):
            for valid in outcomes.poll(SLICE_SECONDS):
                if _is_about_log(valid.outcome):
                    for operation in transactions.of(valid.outcome).operations:
                        if isinstance(operation, AlterProperties) and not operation.target:
                            known = altered(known, operation)
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"the outcomes were not read to their end within {READ_SECONDS:.0f} s; try"
                    " again, or name a --root that has a checkpoint"
                )
    return named_roots(known)


def _is_about_log(outcome: Outcome) -> bool:
    return is_commit(outcome) and any(
        one.operation == "AlterProperties" and not one.table for one in outcome.results
    )


def use_roots(named: Mapping[str, str], *, has_tables: bool | None = None) -> None:
    """Bind what a log says is relative to named roots.

    `has_tables` says whether the deployment's own tables root holds the log's tables.

    Raises:
        InvalidSettings: nothing says where one of these roots is.
    """
    missing = use_named(named, has_tables=has_tables)
    if missing:
        place = missing[0]
        name = named[place]
        own = own_tables() if name == TABLES else ""
        known = f"{own} isn't that" if own else "no setting says where that is"
        raise InvalidSettings(
            f"the log's places below {place} are in its root {name!r}, and {known}: the files were"
            f" moved or deleted, or a disk isn't mounted. Name the place by --places {name}=WHERE"
        )


def hear_roots(runtime: Runtime) -> None:
    """Bind the same, where this process knows the roots, or else as the leader says.

    Raises as `use_roots` does, and Unavailable if there is no leader to ask.
    """
    named = roots_of(runtime.log)
    if use_named(named):
        use_named({})
        runtime.request(PARTITION, "status")
        if not all(is_bound(place) for place in named):
            use_roots(named)


class BindsPlaces(Host):
    """Adds to `CommitLog` the methods that make recorded places relative to named roots."""

    def places(self) -> dict[str, tuple[str, str]]:
        """Return each place that a record has bound: its root's name, and where that is now."""
        from commitlog.core.catalogue.named_roots import named_roots

        named = named_roots(tuple(log_properties(self.runtime()).items()))
        return {place: (named[place], bound(place)) for place in sorted(named)}

    def bind_place(
        self, place: str, root: str = "tables", *, timeout: float = TIMEOUT_SECONDS
    ) -> Outcome:
        """Make all locations that the log recorded below a place relative to a root with this name.

        From then on, each deployment says where its root of that name is, and you may move the
        files without naming the old place again. Binding moves nothing: the leader refuses it
        unless its own root of that name has the files. Binding the same place again
        renames its root. Needs protocol 5.

        Raises:
            InvalidRequest: the log decides by an older protocol.
            TransactionRejected: the place or the name can't be bound, or files would be elsewhere;
                nothing was appended.
        """
        said = f"{plain(place)} is in the root {root}"
        return self._act(AlterProperties((), True, upserts=((_key(place), root),)), said, timeout)

    def unbind_place(self, place: str, *, timeout: float = TIMEOUT_SECONDS) -> Outcome:
        """Undo `bind_place`: what the log recorded below the place is there again.

        Raises as `bind_place` does.
        """
        said = f"{plain(place)} is in no root"
        return self._act(AlterProperties((), True, removals=(_key(place),)), said, timeout)

    def _act(self, operation: AlterProperties, said: str, timeout: float) -> Outcome:
        """Commit an act on places, with words for those who look at the record."""
        _check_protocol(self.runtime())
        transaction = self.transaction((operation,), properties=(("places", said),))
        # What the leader would refuse anyway leaves no record.
        dry_run(self.runtime(), transaction).result(timeout).raise_for_conflict()
        ticket = self.runtime().submit(transaction, id_is_new=True)
        return ticket.result(timeout, "committed").raise_for_conflict()


def _key(place: str) -> str:
    from commitlog.core.catalogue.named_roots import PLACE

    return PLACE + plain(place)


def _check_protocol(runtime: Runtime) -> None:
    """Refuse an act on places that the log would take for a property without meaning."""
    status = runtime.request(PARTITION, "status", newest_rules=True)
    protocol = status.get("rules", {}).get("protocol", 0)
    if protocol < NAMED_ROOTS_SINCE:
        raise InvalidRequest(
            f"the log decides by protocol {protocol}, and binding places needs protocol "
            f"{NAMED_ROOTS_SINCE}",
            field="place",
            advice="Upgrade all programs, then run `commitlog rules --upgrade`",
        )
