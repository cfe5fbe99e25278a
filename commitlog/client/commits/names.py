"""Names that a transaction brings, checked before it is appended."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from commitlog.client.rows.host import Pairs
from commitlog.codecs.record_ids import id_problem
from commitlog.errors import InvalidTransaction, did_you_mean
from commitlog.model.names import (
    NameProblem,
    first_problem,
    key_problem,
    principal_problem,
    properties_problem,
)
from commitlog.model.operations import LanceCommit, Operation, Properties
from commitlog.model.records import Application

NAMES_SHOWN = 5


def like_known(name: str, known: Collection[str], what: str = "tables") -> str:
    """Return a sentence that helps who misnamed a table: names like it, or some that there are."""
    if near := did_you_mean(name, known):
        return near
    if not known:
        return f"There are no {what}."
    some = ", ".join(sorted(known)[:NAMES_SHOWN])
    return f"The {what} are {some}{', …' if len(known) > NAMES_SHOWN else ''}."


def check_names(
    operations: Iterable[Operation],
    properties: Properties,
    application: Application | None,
    transaction_id: str,
) -> None:
    """Refuse names that Lance, the log or a store can't carry."""
    problem = properties_problem(properties) if properties else None
    if transaction_id and id_problem(transaction_id):  # the narrower rule, and cheaper to look at
        problem = problem or first_problem("transaction_id", (transaction_id,), key_problem)
    if application is not None:
        problem = problem or first_problem(
            "application", (application.application_id, application.run), key_problem
        )
    for operation in operations:
        if isinstance(operation, LanceCommit) and operation.operation == "Append":
            continue  # it gives nothing a name
        problem = problem or _operation_problem(operation)
    if problem is not None:
        raise problem.error()


def _operation_problem(operation: Operation) -> NameProblem | None:
    # Imported by who needs it: most writers append.
    from commitlog.client.rows.lance_request import parse_message
    from commitlog.core.lance.operation_check import operation_problem

    message = parse_message(operation.message) if isinstance(operation, LanceCommit) else None
    return operation_problem(operation, message)


def checked_principal(name: str) -> str:
    """Return what a writer calls itself; raises InvalidTransaction for what isn't a name."""
    if not isinstance(name, str):
        raise InvalidTransaction(
            f"principal cannot be {name!r}",
            field="principal",
            value=name,
            advice="Give text, or leave it out",
        )
    if problem := first_problem("principal", (name,), principal_problem):
        raise problem.error()
    return name


def pairs(properties: Pairs) -> Properties:
    """Return properties as a record has them."""
    if not properties:
        return ()
    items = properties.items() if isinstance(properties, Mapping) else properties
    return tuple((str(key), str(value)) for key, value in items)
