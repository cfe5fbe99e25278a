"""Who asks for a transaction, where hashes cover it.

The field `principal` stands before the content, so that an id asked again is compared by what is
asked and nothing else; no hash covers it. So a client names the principal once more among the
properties, which are content: the payload hash covers it, and the chain the payload hash. Any
reader of the log can compare the two, and `commitlog verify` does.
"""

from __future__ import annotations

from dataclasses import replace

from commitlog.model.records import Transaction

PRINCIPAL_PROPERTY = "commitlog.principal"


def attributed(transaction: Transaction) -> Transaction:
    """Return a transaction whose content names its principal; the same if it has none."""
    if not transaction.principal:
        return transaction
    others = (pair for pair in transaction.properties if pair[0] != PRINCIPAL_PROPERTY)
    named = (PRINCIPAL_PROPERTY, transaction.principal)
    return replace(transaction, properties=(*others, named))


def principal_in_content(transaction: Transaction) -> str | None:
    """Return whom the content names; None if it names none, as records of other programs do."""
    for name, value in transaction.properties:
        if name == PRINCIPAL_PROPERTY:
            return value
    return None
