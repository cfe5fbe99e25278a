"""The command that says why: what a transaction was compared with, and what decided."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from consumers.commands import output
from consumers.commands.ask import id_of, note_unknown
from consumers.commands.exit_codes import ExitCode
from consumers.commands.options import HERE, Where


def explain(
    transaction: str,
    /,
    *,
    where: Where = HERE,
    partition: int = 0,
    as_json: Annotated[bool, Parameter(name="--json", negative="", show_default=False)] = False,
) -> ExitCode:
    """Say why a transaction ended as it did: what was compared with what, and what decided.

    Parameters
    ----------
    transaction
        Its id, or its sequence.
    partition
        Whose sequence it is.
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
