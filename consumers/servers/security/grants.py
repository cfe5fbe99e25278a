"""Grants: who may read, write or administer which namespaces and tables.

A grant on a namespace holds for all that is in it, one on `$` for everything. Admin includes
write, and write includes read. Nothing is allowed that no grant allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum

from lance_namespace.errors import PermissionDeniedError

from commitlog.model.table import TableId, format_table_id

EVERYBODY = "*"
"""The subject of a grant to every principal with valid credentials."""
GROUP = "group:"


class Access(IntEnum):
    """What may be done; each includes what comes before it."""

    READ = 1
    WRITE = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks, as their credentials prove it."""

    name: str
    method: str = ""
    """How it was proved: `api-key`, `bearer`, or "" if no proof was required."""
    groups: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Grant:
    """One line of the access file."""

    to: str
    on: TableId
    """A namespace or a table; empty for everything."""
    access: Access

    def is_for(self, principal: Principal) -> bool:
        """Return True if it names this principal, one of its groups, or everybody."""
        if self.to.startswith(GROUP):
            return self.to.removeprefix(GROUP) in principal.groups
        return self.to in (EVERYBODY, principal.name)


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who asks for a list, and whether they may know of a namespace or table."""

    principal: Principal
    sees: Callable[[TableId], bool]

    def need(self, namespace: TableId) -> None:
        """Refuse to list a namespace of which they may not know, whether it exists or not."""
        if namespace and not self.sees(namespace):
            raise denied(self.principal, Access.READ, namespace)


class Grants:
    """All grants."""

    def __init__(self, grants: Iterable[Grant]) -> None:
        """Take the grants in any order."""
        self._grants = tuple(grants)

    def may(self, principal: Principal, access: Access, what: TableId) -> bool:
        """Return True if a principal has this access to a namespace or table."""
        return any(
            grant.access >= access and what[: len(grant.on)] == grant.on and grant.is_for(principal)
            for grant in self._grants
        )

    def sees(self, principal: Principal, what: TableId) -> bool:
        """Return True if a principal may read it or anything in it: it is in listings then."""
        return any(
            _is_on_path(grant.on, what) and grant.is_for(principal) for grant in self._grants
        )


def _is_on_path(one: TableId, other: TableId) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def denied(principal: Principal, access: Access, what: TableId) -> PermissionDeniedError:
    """Return the refusal of what no grant allows."""
    name = format_table_id(what) or "the root namespace"
    do = "administer" if access is Access.ADMIN else access.name.lower()
    return PermissionDeniedError(
        f"{principal.name} may not {do} {name}; ask its administrator for a grant"
    )
