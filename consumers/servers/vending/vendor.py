"""Decides who gets which access to a table's files, and hands it out.

A grant on a table is one on its own objects, those below its location, and on nothing else. The
operator says for which places, and how: `[vending."s3://lake"]` in the storage file names a role,
whose rights a session's policy narrows to one table, or lets requests be signed here.

A table whose name is granted may have been put, by who may write it, where files of others are:
at the place of a table that was dropped, say. So a place counts as the table's own if the log gave
it, its uuid in the path, or if the operator allowed it; for another one it takes the grant on `$`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from commitlog.adapters.places import bound
from commitlog.adapters.s3_requests import S3Address, s3_address
from commitlog.adapters.storage_options import Scoped
from commitlog.client.leader.tables import TableInfo
from commitlog.model.digits import whole_number
from commitlog.model.table import TableId
from commitlog.newest import Newest
from consumers.runtime.config import ConfigurationError
from consumers.servers.security.grants import Access, Principal
from consumers.servers.security.places import TablePlaces
from consumers.servers.vending.scope import SCHEMES, Scope, scope_of
from consumers.servers.vending.sessions import AssumedRole, GrantSession, assume

SETTINGS = frozenset(
    {"role_arn", "external_id", "sts_endpoint", "duration_seconds", "sign", "endpoint"}
)
SECONDS, SECONDS_MIN, SECONDS_MAX = 3600, 900, 43_200
_SESSIONS_KEPT = 1000
_REACH_SECONDS = 5.0
"""How long it is remembered that no other table has files at a table's place."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A table, as far as its files are concerned."""

    table: TableId
    uuid: str
    location: str

    @classmethod
    def of(cls, info: TableInfo) -> Subject:
        """Return what is known of a table that the leader described."""
        return cls(info.table_id, info.incarnation, info.location)


class Vendor:
    """Hands out access to the tables of one log. Thread-safe."""

    def __init__(
        self,
        places: TablePlaces,
        settings: Scoped,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Serve tables at these places by these settings, to whom the grants let."""
        self.security = places.security
        self.now = clock
        self._settings = settings
        self._places = places
        self._lock = threading.Lock()
        self._sessions: Newest[tuple[Scope, Access, str], GrantSession] = Newest(_SESSIONS_KEPT)
        self._reached: Newest[tuple[Principal, Subject], tuple[float, Access | None]]
        self._reached = Newest(_SESSIONS_KEPT)

    def scope(self, subject: Subject) -> Scope | None:
        """Return a table's objects, None if nothing is handed out for its place."""
        return scope_of(bound(subject.location)) if self._of(subject) else None

    def address(self, subject: Subject) -> S3Address:
        """Return where clients find a table's store, and the server's keys for it."""
        own, told = s3_address(bound(subject.location)), self._of(subject).get("endpoint")
        return replace(own, endpoint=told.rstrip("/")) if told else own

    def signs(self, subject: Subject) -> bool:
        """Return True if requests for a table's objects are signed here."""
        return self._of(subject).get("sign") == "true" and self.scope(subject) is not None

    def access(self, principal: Principal, subject: Subject) -> Access | None:
        """Return what a principal may do with a table's files, None if nothing by way of here."""
        if self.scope(subject) is None:
            return None
        if not self.security.is_on:
            return Access.WRITE
        now = time.monotonic()
        with self._lock:
            at, most = self._reached.get((principal, subject), (-_REACH_SECONDS, None))
        if now - at >= _REACH_SECONDS:
            most = self._most(principal, subject)
            with self._lock:
                self._reached[principal, subject] = now, most
        # Grants are looked at each time: they may have been taken back.
        for access in (Access.WRITE, Access.READ):
            if most and access <= most and self._is_granted(principal, access, subject):
                return access
        return None

    def session(
        self, principal: Principal, subject: Subject, access: Access
    ) -> GrantSession | None:
        """Return keys for a table's objects alone; None if the operator named no role for them.

        Keys are handed out again while half of their time is left. Raises Unavailable.
        """
        scope, role = self.scope(subject), self._role(subject)
        if scope is None or role is None or not scope.has_policy:
            return None
        address = s3_address(bound(subject.location))
        if address.keys is None:
            return None
        key, now = (scope, access, principal.name), self.now()
        with self._lock:
            known = self._sessions.get(key)
        if known is not None and known.ends_at - now > timedelta(seconds=role.seconds / 2):
            return known
        session = assume(role, scope.policy(access), principal.name, address, now)
        with self._lock:
            self._sessions[key] = session
        return session

    def _of(self, subject: Subject) -> Mapping[str, str]:
        return self._settings.at(bound(subject.location))

    def _role(self, subject: Subject) -> AssumedRole | None:
        given = self._of(subject)
        arn = given.get("role_arn", "")
        if not arn:
            return None
        address = s3_address(bound(subject.location))
        endpoint = given.get("sts_endpoint") or address.endpoint
        return AssumedRole(
            arn,
            (endpoint or f"https://sts.{address.region}.amazonaws.com").rstrip("/"),
            int(given.get("duration_seconds", SECONDS)),
            given.get("external_id", ""),
        )

    def _is_granted(self, principal: Principal, access: Access, subject: Subject) -> bool:
        may = self.security.may
        is_own = self._is_own(subject)
        return may(principal, access, subject.table) and (is_own or may(principal, access, ()))

    def _is_own(self, subject: Subject) -> bool:
        last = subject.location.rstrip("/").rpartition("/")[2]
        named = bool(subject.uuid) and last.removesuffix(".lance").endswith(f"-{subject.uuid}")
        return named or self._places.is_allowed(subject.location)

    def _most(self, principal: Principal, subject: Subject) -> Access | None:
        """Return what is possible beside the tables that have files at the same place."""
        others = [name for name, _ in self._places.others(subject.location, subject.table)]
        if not all(self.security.may(principal, Access.READ, other) for other in others):
            return None
        return Access.READ if others else Access.WRITE


def checked(settings: Scoped) -> Scoped:
    """Return what the storage file says of vending; ConfigurationError names what is wrong."""
    for place, given in settings.by_prefix.items():
        where = f"storage_file: [vending{f'.{place!r}' if place else ''}]"
        scheme, separator, _ = place.partition("://")
        if separator and scheme.lower() not in SCHEMES:
            raise ConfigurationError(
                f"{where}: credentials can only be vended for S3, not for {scheme}://; "
                "remove the section, and give the clients of this store their own keys"
            )
        _check(where, given)
    return settings


def _check(where: str, given: Mapping[str, Any]) -> None:
    unknown = sorted(set(given) - SETTINGS)
    if unknown:
        raise ConfigurationError(
            f"{where} has no setting {unknown[0]!r}; it has {', '.join(sorted(SETTINGS))}"
        )
    if given.get("sign", "false") not in ("true", "false"):
        raise ConfigurationError(f'{where}: sign must be "true" or "false", not {given["sign"]!r}')
    seconds = given.get("duration_seconds", str(SECONDS))
    if not SECONDS_MIN <= (whole_number(seconds) or 0) <= SECONDS_MAX:
        raise ConfigurationError(
            f"{where}: duration_seconds must be {SECONDS_MIN} to {SECONDS_MAX}, not {seconds!r}"
        )
