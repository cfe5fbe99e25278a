"""Storage options with keys: what a client needs to reach one table's files."""

from __future__ import annotations

from commitlog.adapters.places import bound
from consumers.servers.namespace.call import Call
from consumers.servers.namespace.service import Service
from consumers.servers.security.grants import Access
from consumers.servers.vending.sessions import session_options
from consumers.servers.vending.vendor import Subject


def vended_options(
    service: Service, call: Call, subject: Subject, *, vends: bool | None
) -> dict[str, str]:
    """Return a table's storage options: with keys of a session unless the client wants none.

    Keys that the operator wrote down open what the store lets them open, so they are for who asks
    for them (`vends`) and may write everything.
    """
    found = service.storage_options(subject.location)
    if vends is False:
        return found
    vendor, principal = service.vendor, call.principal
    access = vendor.access(principal, subject)
    session = access and vendor.session(principal, subject, min(access, service.most))
    if session:
        return session_options(session, vendor.address(subject), found)
    if vends and service.security.may(principal, Access.WRITE, ()):
        return found | service.settings.credentials.at(bound(subject.location))
    return found
