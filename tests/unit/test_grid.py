"""The grid is total, and says what Lance 14.0.2 says where no rule decides."""

from __future__ import annotations

from itertools import product

from commitlog.core.conflicts import grid
from commitlog.core.conflicts.candidate import Verdict
from commitlog.core.conflicts.grid import (
    GRID,
    LETTERS,
    OPERATION_NAMES,
    RULE_NAMES,
    RULES,
    first_conflict,
)
from commitlog.core.conflicts.history import History, WriteSet
from commitlog.core.conflicts.write_sets import KINDS, UNKNOWN
from commitlog.core.operations.registry import candidate_of
from commitlog.lancepb.transaction_pb2 import Transaction

# Verdicts that Lance 14.0.2's own pairs may end in: Compatible, reBasable, Retryable, X, Error.
# The order of columns is the grid's.
LANCE = """
Append             C   C   X   C   C   RC  RC  X   C   C   C   C   C   C   X   C   X
Delete             C   RBC X   C   RC  R   C   X   C   C   RBC C   RC  C   X   C   X
Overwrite          C   C   XR  C   C   C   C   C   C   C   C   XC  C   C   X   C   X
CreateIndex        C   C   X   RC  XRC RC  C   X   C   C   BC  C   RC  C   XB  C   X
Rewrite            C   RC  X   XRC RC  R   C   X   C   C   RC  C   RC  RC  C   C   X
Merge              R   R   X   RC  R   R   X   X   C   C   R   RC  R   R   X   C   X
Project            RC  C   X   C   C   R   R   X   C   C   RC  C   RC  RC  X   C   X
Restore            C   C   C   C   C   C   C   C   C   C   C   XC  C   C   X   C   X
ReserveFragments   C   C   X   C   C   C   C   X   C   C   C   C   C   C   C   C   X
Clone              C   C   C   C   C   C   C   C   C   C   C   C   C   C   C   C   C
Update             RC  RBC X   C   RC  R   RC  X   C   C   RBC C   RC  RC  XRC C   X
UpdateConfig       C   C   XC  C   C   RC  C   XC  C   C   C   XC  C   C   C   C   X
DataReplacement    C   XC  X   RC  RC  R   XRC X   C   C   XRC C   RC  C   X   C   X
DataOverlay        C   RC  X   C   RC  R   RC  X   C   C   RBC C   C   C   X   C   X
UpdateMemWalState  X   X   X   XRC C   X   X   X   C   X   XRC C   X   X   XRC C   X
UpdateBases        C   C   C   C   C   C   C   C   C   C   C   C   C   C   C   XC  C
Unknown            E   E   E   E   E   E   E   E   E   E   E   E   E   E   E   E   E
"""
STRICTER = {
    # A table that declares its key lets no unknown rows pass an upsert.
    ("Append", "Append"),
    ("Append", "Update"),
    # An index may not land on a dropped field.
    ("CreateIndex", "Project"),
    # In older logs a replacement, built as of the head, would end an overlay that it never saw.
    ("DataReplacement", "DataOverlay"),
}


def lance_verdicts() -> dict[tuple[str, str], str]:
    """Return what Lance may answer for each pair."""
    lines = [line.split() for line in LANCE.splitlines() if line]
    return {
        (candidate, committed): verdicts
        for candidate, *row in lines
        for committed, verdicts in zip(OPERATION_NAMES, row, strict=True)
    }


def test_the_grid_is_total() -> None:
    every = {*KINDS.values(), UNKNOWN}
    assert set(OPERATION_NAMES) == every
    assert set(LETTERS) == set(product(every, repeat=2))


def test_every_lower_case_cell_cites_a_rule_and_every_rule_is_cited() -> None:
    cited = set(LETTERS.values()) - set(".RXE")
    assert cited == set(RULES)
    assert len(set(RULE_NAMES.values())) == len(RULE_NAMES)
    assert all(rule.__doc__ for rule in RULES.values())


def test_columns_are_named_in_the_order_of_rows() -> None:
    header = GRID.split("\n")[1].split()
    short = {
        "ReserveFragments": "Rsv",
        "UpdateConfig": "Cfg",
        "UpdateMemWalState": "Wal",
        "UpdateBases": "Bas",
        "DataReplacement": "DRp",
        "DataOverlay": "DOv",
        "CreateIndex": "CIx",
        "Overwrite": "Ovw",
        "Rewrite": "Rwr",
        "Merge": "Mrg",
        "Project": "Prj",
        "Restore": "Rst",
        "Clone": "Cln",
    }
    assert header == [short.get(name, name[:3]) for name in OPERATION_NAMES]


def test_cells_agree_with_lance() -> None:
    for pair, verdicts in lance_verdicts().items():
        letter = LETTERS[pair]
        if letter == ".":
            assert verdicts == "C", pair
        elif letter in "RXE":
            assert verdicts == letter, pair
        elif letter == "ma":  # as Lance, but for what its writer completes
            assert verdicts == "R", pair
        elif pair not in STRICTER:
            assert len(verdicts) > 1, pair
        else:
            assert verdicts == "C", pair


def committed(kind: str, *later: str) -> History:
    """Return a history of version 2 on, one version per kind."""
    history = History(1)
    for name in (kind, *later):
        history.record(f"by-{name}", WriteSet(name))
    return history


def test_the_first_conflict_in_version_order_decides() -> None:
    candidate = candidate_of(Transaction(delete=Transaction.Delete()))
    found = first_conflict(candidate, committed("Append", "Merge", "Restore"), 1)
    assert found is not None
    assert (found.version, found.verdict) == (3, Verdict.RETRYABLE)
    found = first_conflict(candidate, committed("Append", "Restore", "Merge"), 1)
    assert found is not None
    assert (found.version, found.verdict) == (3, Verdict.INCOMPATIBLE)
    assert first_conflict(candidate, committed("Restore", "Append"), 2) is None


def test_an_unknown_operation_is_refused_by_everything_but_clone_and_bases() -> None:
    message = Transaction(append=Transaction.Append())
    found = first_conflict(candidate_of(message), committed(UNKNOWN), 1)
    assert found is not None
    assert found.verdict is Verdict.INCOMPATIBLE
    bases = Transaction(update_bases=Transaction.UpdateBases())
    assert first_conflict(candidate_of(bases), committed(UNKNOWN), 1) is None


def test_the_table_is_parsed_from_its_text() -> None:
    assert grid._parse(GRID) == (LETTERS, RULE_NAMES)
