"""The command that says why: what a transaction was compared with, and what decided."""

from __future__ import annotations

from typing import Annotated

from consumers.commands import output
from consumers.commands.ask import id_of, note_unknown
from consumers.commands.exit_codes import ExitCode
from consumers.commands.options import HERE, JSON_FLAG, Where


def explain(
    transaction: str,
    /,
    *,
    where: Where = HERE,
    partition: int = 0,
    as_json: Annotated[bool, JSON_FLAG] = False,
) -> ExitCode:
    """Explain the outcome of a transaction: what was compared, and which rule decided.

    Parameters
    ----------
    transaction
        The transaction's id or sequence.
    partition
        The partition of the sequence.
    as_json
        Print a JSON array, one object per decided attempt.
    """
    from consumers.views.explanation import explain as attempts_of

    root = where.index_root()
    transaction = id_of(root, transaction, partition)
    attempts = attempts_of(root, transaction)
    if as_json:
        output.print_json(attempts)
    if not attempts:
        note_unknown(transaction)
        return ExitCode.REFUSED
    if not as_json:
        for position, attempt in enumerate(attempts):
            if position:
                print()
            print(
                f"transaction {attempt['transaction_id']}, attempt {attempt['attempt']},"
                f" position {attempt['sequence']}: {attempt['status']}"
            )
            words = attempt["words"]
            assert isinstance(words, list)
            print("\n".join(f"  {line}" for line in words))
    return ExitCode.OK
