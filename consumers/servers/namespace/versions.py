"""A table's versions: committed, listed and described.

A 409 is answered only when the version that won can be described, for a client compares it with
its own, and rebases or finds itself. Nothing names a staged path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from lance_namespace import (
    ConcurrentModificationError,
    CreateTableVersionRequest,
    DescribeTableVersionRequest,
    InvalidInputError,
    LanceNamespaceError,
    TableVersionNotFoundError,
)

from commitlog.adapters.lance_namespace import relative_path
from commitlog.client.leader.tables import TableInfo
from commitlog.codecs.manifest_file import manifest_path
from commitlog.core.decisions import noted
from commitlog.core.lance.commits import FILE_BY_VERSION
from commitlog.core.tables.lance_tables import is_in
from commitlog.errors import CommitConflict, CommitLogError, OutcomeUnknown
from commitlog.model.operations import CreateTableVersion, Operation
from commitlog.model.records import Code, Outcome, Status, Transaction
from commitlog.model.table import Policy
from consumers.servers.namespace.branches import (
    create_branch_version,
    describe_branch_version,
    is_branch,
)
from consumers.servers.namespace.call import Call
from consumers.servers.namespace.landings import Landed, Landing, client_of
from consumers.servers.namespace.service import ATTEMPTS_MAX, Service
from consumers.servers.namespace.staged import (
    VERSION_FIELDS,
    Staged,
    StagedManifestMissing,
    as_commit,
    check_fields,
    is_built_over_any_head,
    read_staged,
)
from consumers.servers.namespace.turns import VersionTaken
from consumers.servers.namespace.version_facts import VersionFacts
from consumers.servers.namespace.version_list import readable_versions
from consumers.servers.vending.vendor import Subject

TOKEN = "token"
_READABLE_BEFORE_MAX = 256
"""How many versions before the winner are made readable for a client that rebases by path."""


def describe_version(service: Service, call: Call) -> dict[str, Any]:
    """Describe one version, the newest by default, once it can be read."""
    request = call.read(DescribeTableVersionRequest, {"branch", "version"})
    if not is_branch(request.branch) and (entry := _landed_entry(service, call, request.version)):
        return {"version": entry}
    info = service.info(call.table)
    if is_branch(request.branch):
        return {"version": describe_branch_version(info, request.branch, request.version)}
    if request.version is None and not info.version:
        raise TableVersionNotFoundError(f"{info.name} is declared and has no version yet")
    version = info.version if request.version is None else request.version
    landed = service.landings.find(call.connection, info.incarnation, version, info.version)
    if landed is not None:
        version = landed
        info = _at_least(info, version)
    return {"version": service.version_entry(info, version)}


def _landed_entry(service: Service, call: Call, asked: int | None) -> dict[str, Any] | None:
    """Answer from memory whose append became another version; None if it isn't all known."""
    landing = service.landings.awaited(call.connection, asked)
    if landing is None or landing.version < landing.asked:
        return None
    info = service.lately(call.table)
    if landing.incarnation != info.incarnation:
        return None
    landed = service.landings.find(
        call.connection, info.incarnation, landing.asked, landing.version
    )
    return service.versions.entry(info, landing.asked if landed is None else landed)


def create_version(service: Service, call: Call) -> dict[str, Any]:
    """Commit a staged manifest."""
    request = call.read(CreateTableVersionRequest, VERSION_FIELDS)
    check_fields(request)
    if is_branch(request.branch):
        return create_branch_version(service, service.info(call.table), request)
    if (first := service.first_answer(call)) is not None:
        outcome, transaction = first
        made = transaction.operations[0]
        assert isinstance(made, CreateTableVersion)
        info = service.find(made.table)
        return version_of_record(service, info, made, outcome, request.manifest_path)
    known = service.lately(call.table)
    try:
        return _create_version(service, call, request, known)
    except OutcomeUnknown:
        raise
    except (LanceNamespaceError, CommitLogError) as error:
        if service.is_as_known(known, error):
            raise
    return _create_version(service, call, request, service.info(call.table))


def _create_version(
    service: Service, call: Call, request: CreateTableVersionRequest, info: TableInfo
) -> dict[str, Any]:
    target = Subject.of(info)
    try:
        staged = read_staged(target, request, info)
    except StagedManifestMissing:
        now = service.info(info.table_id)
        found = _committed_before(service, now, request)
        if found is None:
            refuse_taken(service, now, request.version)
            raise
        return _created(service, info, *found)
    client = client_of(call.connection) or staged.transaction_id
    has_landed = service.landings.version_of(staged.transaction_id, info.incarnation) is not None
    is_told = service.older_clients.asks_what_landed(call) and is_built_over_any_head(staged)
    if is_told and (has_landed or service.settings.is_alone()):
        service.turns.wait(info.incarnation, client)
        return _create_over_head(service, call, info, staged)
    try:
        made = _create_as_staged(service, call, info, staged)
    except ConcurrentModificationError:
        service.turns.lost(info.incarnation, client)
        raise
    except CommitConflict as error:
        if error.outcome.status is not Status.REJECTED:
            service.turns.lost(info.incarnation, client)
        raise
    service.turns.won(info.incarnation, client)
    return made


def _create_as_staged(
    service: Service, call: Call, info: TableInfo, staged: Staged
) -> dict[str, Any]:
    """Commit a staged manifest as the version that it is."""
    key = (info.incarnation, staged.operation.version)
    with service.turns.of(key, service.settings.commit_seconds):
        _refuse_taken(service, call, info, staged)
        outcome, transaction = commit_staged(
            service, call, [staged.operation], staged.transaction_id
        )
        raise_refusal(service, outcome, transaction.operations)
        return _created(service, info, outcome, transaction)


def _create_over_head(
    service: Service, call: Call, info: TableInfo, staged: Staged
) -> dict[str, Any]:
    """Commit a staged version as the one that it is, else as the next one that there is."""
    made = staged.operation
    version = service.landings.version_of(staged.transaction_id, info.incarnation)
    if version is not None:
        raise _landed(service, call, info, staged, version)
    with service.turns.beside(info.incarnation) as is_alone:
        if is_alone and made.version > info.version and not service.maker(info, made.version):
            outcome, transaction = commit_staged(service, call, [made], staged.transaction_id)
            if outcome.code is not Code.NOT_LATEST:
                raise_refusal(service, outcome, [made])
                return _created(service, info, outcome, transaction)
        if is_led := service.settings.is_alone_now():
            outcome, _ = commit_staged(
                service, call, [as_commit(staged, info)], staged.transaction_id, (FILE_BY_VERSION,)
            )
    if not is_led:  # another server began a moment ago, where the client may ask next
        return _create_as_staged(service, call, info, staged)
    if outcome.code is Code.ID_REUSED or outcome.status is Status.SUPERSEDED:
        # It was decided before, though not by this process as far as that remembers.
        found = service.transaction(staged.transaction_id)
        outcome = found[0] if found is not None else outcome
    raise_refusal(service, outcome, [made])
    version = outcome.results[0].version
    service.versions.note_built(info, version, outcome)
    raise _landed(service, call, info, staged, version)


def _landed(service: Service, call: Call, info: TableInfo, staged: Staged, version: int) -> Landed:
    """Return what a client is told whose append is another version than it staged."""
    assert call.connection is not None
    landing = Landing(
        transaction_id=staged.transaction_id,
        location=info.location,
        incarnation=info.incarnation,
        asked=staged.operation.version,
        version=version,
        staged_path=staged.operation.manifest_path,
        comes_back=staged.operation.operation == "Append",
    )
    service.landings.add(call.connection, landing)
    return _told_to_show(call, landing)


def show_connection(service: Service, call: Call) -> dict[str, Any]:
    """Note that a connection is a client's that is about to ask what landed; no success either."""
    token = call.parameter(TOKEN) or ""
    shown = service.landings.show(call.connection, token) if call.connection is not None else None
    if shown is None:
        raise InvalidInputError(f"{TOKEN} is unknown; commit a version first")
    raise _told_to_show(call, shown)


def _told_to_show(call: Call, landing: Landing) -> Landed:
    """Return an answer that leads to its client's next token."""
    query = [(name, value) for name, value in call.query if name != TOKEN]
    # Relative, so it leads there by whatever path the request came.
    to = f"landed?{urlencode([*query, (TOKEN, landing.token)])}" if landing.token else ""
    return Landed(landing.version, to)


def _created(
    service: Service, info: TableInfo, outcome: Outcome, transaction: Transaction
) -> dict[str, Any]:
    made = transaction.operations[0]
    assert isinstance(made, CreateTableVersion)
    return version_created(service, info, made, outcome)


def _refuse_taken(service: Service, call: Call, info: TableInfo, staged: Staged) -> None:
    """Refuse a version that another transaction got here: nothing needs to be appended for that."""
    version = staged.operation.version
    if call.key is not None or service.maker(info, version) in ("", staged.transaction_id):
        return
    now = service.info(info.table_id)
    if now.incarnation == info.incarnation and version <= now.version:
        make_readable(service, now, version)
        raise VersionTaken(
            f"version {version} of {info.name} already exists, and {now.version} is the "
            "newest: read that version, and stage yours again"
        )


def version_created(
    service: Service, info: TableInfo, made: CreateTableVersion, outcome: Outcome
) -> dict[str, Any]:
    """Describe a version that was committed, as it was offered."""
    entry = service.made_entry(info.location, made, outcome)
    if entry is None and is_in(made.version, info.deleted):
        entry = as_offered(info.location, made, outcome)
    if entry is None:
        entry = service.version_entry(_at_least(info, made.version), made.version)
    return {"transaction_id": outcome.transaction_id, "version": entry}


def version_of_record(
    service: Service,
    info: TableInfo | None,
    made: CreateTableVersion,
    outcome: Outcome,
    offered: str,
) -> dict[str, Any]:
    """Describe a version that was committed before, of a table that may be gone by now."""
    if info is not None and info.incarnation == made.incarnation:
        return version_created(service, info, made, outcome)
    entry = as_offered("/", made, outcome)  # the table was deregistered since
    del entry["manifest_size"]  # the leader's file may have another one than what was staged
    entry["manifest_path"] = offered.partition(".manifest-")[0] + ".manifest"
    return {"transaction_id": outcome.transaction_id, "version": entry}


def as_offered(location: str, made: CreateTableVersion, outcome: Outcome) -> dict[str, Any]:
    """Describe a version by its record: it or its table is gone, perhaps by its own batch."""
    said = noted(made.e_tag, made.metadata)
    facts = VersionFacts(
        size=made.manifest_size,
        e_tag=made.e_tag,
        timestamp_millis=outcome.time_ms,
        metadata=dict(said.metadata) if said else {},
    )
    path = manifest_path(made.version, made.naming_scheme)
    return facts.entry(location, made.version, path)


def _at_least(info: TableInfo, version: int) -> TableInfo:
    return info if info.version >= version else replace(info, version=version)


def _committed_before(
    service: Service, info: TableInfo, request: CreateTableVersionRequest
) -> tuple[Outcome, Transaction] | None:
    """Find the commit of a manifest that is staged no more, because it stands."""
    if not 1 <= request.version <= info.version:
        return None
    found = service.transaction(service.transaction_id_of(info, request.version))
    if found is None or found[0].status is not Status.COMMITTED:
        return None
    wanted = relative_path(info.location, request.manifest_path)
    made = found[1].operations[0]
    if isinstance(made, CreateTableVersion) and made.manifest_path == wanted:
        return found
    return None


def commit_staged(
    service: Service,
    call: Call,
    operations: Sequence[Operation],
    content_id: str,
    properties: Sequence[tuple[str, str]] = (),
) -> tuple[Outcome, Transaction]:
    """Commit operations with staged versions among them, under an id that their content gives.

    A client's tries of one Lance transaction are attempts of one id; so is a refused request that
    is sent again.
    """
    transaction_id = call.key or content_id
    attempt = service.attempts.get(transaction_id, -1) + 1 if call.key is None else 0
    for _ in range(ATTEMPTS_MAX):
        outcome, transaction = service.submit(
            call,
            operations,
            transaction_id,
            is_new=False,
            attempt=attempt,
            properties=properties,
        )
        is_behind = outcome.status is Status.SUPERSEDED or outcome.code is Code.ID_REUSED
        is_old_refusal = outcome.answers is not None and outcome.status is not Status.COMMITTED
        if call.key is not None or not (is_behind or is_old_refusal):
            break
        found = service.transaction(transaction_id)
        if found is not None and found[0].status is Status.COMMITTED:
            break
        attempt = max(attempt, found[0].attempt if found else 0) + 1
    service.note_attempt(transaction_id, attempt)
    return outcome, transaction


def raise_refusal(service: Service, outcome: Outcome, operations: Sequence[Operation]) -> None:
    """Raise what a refusal means, once the winners can be described."""
    if outcome.status is Status.COMMITTED:
        return
    is_definite = outcome.status is Status.REJECTED and outcome.code not in (
        Code.ID_REUSED,
        Code.NOT_LATEST,
        Code.TABLE_REPLACED,
    )
    if is_definite:
        outcome.raise_for_conflict()
    ahead = []
    for index, operation in enumerate(operations):
        if not isinstance(operation, CreateTableVersion):
            continue
        info = service.info(operation.table)
        if operation.version <= info.version:
            make_readable(service, info, operation.version)
        elif operation.version > info.version + 1 and len(operations) == 1:
            ahead.append((index, info, operation.version))
    if ahead and outcome.code is Code.NOT_LATEST:
        _, info, version = ahead[0]
        moved = service.request(info.table_id, "quarantine", table=list(info.table_id))
        foreign = ""
        if moved["quarantined"]:
            foreign = (
                ". Versions written around the log were moved to "
                f"{', '.join(moved['quarantined'])}: try again"
            )
        # A client that built upon foreign versions must not rebase and stage them once more.
        refused = InvalidInputError if foreign else ConcurrentModificationError
        raise refused(
            f"version {version} of {info.name} cannot be created: the next version is "
            f"{info.version + 1}{foreign}"
        )
    outcome.raise_for_conflict()


def refuse_taken(service: Service, info: TableInfo, version: int) -> None:
    """Refuse a version that exists, whatever is staged for it, once it can be described."""
    if 1 <= version <= info.version:
        make_readable(service, info, version)
        raise ConcurrentModificationError(
            f"version {version} of {info.name} exists already; its newest is {info.version}. Read "
            "that one and stage yours again"
        )


def make_readable(service: Service, info: TableInfo, version: int) -> None:
    """Wait until a version, and those before it that a client may rebase over, have files."""
    if info.policy is Policy.EVERY:
        # Files are written in the order of their versions.
        service.readable(info, max(version, info.readable_version))
        return
    service.readable(info, info.version)
    known = readable_versions(info)
    for number in range(max(1, version - _READABLE_BEFORE_MAX), version + 1):
        if number not in known and not is_in(number, info.deleted):
            service.readable(info, number)
