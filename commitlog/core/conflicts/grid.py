"""Which pairs of concurrent operations may both commit, as Lance 14.0.2 has it.

Row: the operation that asks to commit. Column: one committed since its read version. The first
conflicting version in version order decides. The pre-checks on nullability and schema metadata
(P1 to P3 in the rules) come before a pair's own rule.

The table below is the code: it is parsed when this module is imported. Rules that are stricter than
Lance say so.
"""

from __future__ import annotations

from bisect import bisect_right

from commitlog.core.conflicts import overlap, overlap_indices, overlap_metadata
from commitlog.core.conflicts.candidate import Candidate, Finding, Verdict
from commitlog.core.conflicts.history import History
from commitlog.core.conflicts.rule import Rule

GRID = """
                   App Del Ovw CIx Rwr Mrg Prj Rst Rsv Cln Upd Cfg DRp DOv Wal Bas Unk
 Append             k   .   X   .   .   n   n   X   .   .   k   .   .   .   X   .   X
 Delete             .   d   X   .   w   R   .   X   .   .   d   .   r   .   X   .   X
 Overwrite          .   .   oo  .   .   .   .   .   .   .   .   oc  .   .   X   .   X
 CreateIndex        .   .   X   ii  iw  if  if  X   .   .   iu  .   ir  .   im  .   X
 Rewrite            .   wc  X   wi  w   R   .   X   .   .   wc  .   r   wo  .   .   X
 Merge              ma  ma  X   mi  ma  R   X   X   .   .   ma  ms  ma  ma  X   .   X
 Project            pn  .   X   .   .   R   R   X   .   .   pn  .   pn  pn  X   .   X
 Restore            .   .   .   .   .   .   .   .   .   .   .   rs  .   .   X   .   X
 ReserveFragments   .   .   X   .   .   .   .   X   .   .   .   .   .   .   .   .   X
 Clone              .   .   .   .   .   .   .   .   .   .   .   .   .   .   .   .   .
 Update             k   d   X   .   w   R   uf  X   .   .   uu  .   r   uo  g   .   X
 UpdateConfig       .   .   co  .   .   cm  .   cr  .   .   .   cc  .   .   .   .   X
 DataReplacement    .   rd  X   ri  w   R   rf  X   .   .   ru  .   rr  ro  X   .   X
 DataOverlay        .   od  X   .   w   R   n   X   .   .   ou  .   .   .   X   .   X
 UpdateMemWalState  X   X   X   g   .   X   X   X   .   X   g   .   X   X   g   .   X
 UpdateBases        .   .   .   .   .   .   .   .   .   .   .   .   .   .   .   b   .
 Unknown            E   E   E   E   E   E   E   E   E   E   E   E   E   E   E   E   E

 .  compatible     R  retryable     X  incompatible     E  Lance refuses to try
 lower case: a rule decides
    k   keys_inserted
    n   nullability_committed
    d   rows_deleted
    w   fragment_rewritten
    r   column_replaced
    oo  overwrite_over_overwrite
    oc  overwrite_over_config
    ii  index_over_index
    iw  index_over_rewrite
    if  indexed_field_dropped
    iu  indexed_fragment_patched
    ir  indexed_field_replaced
    im  mem_wal_index
    wc  rewritten_changed
    wi  rewritten_indexed
    wo  rewritten_overlaid
    ma  columns_incomplete
    mi  merge_over_index
    ms  schema_metadata_committed
    pn  nullability_asked
    rs  schema_metadata_undone
    uf  field_dropped
    uu  update_over_update
    uo  updated_overlaid
    g   shard_generation
    co  config_over_overwrite
    cm  schema_metadata_asked
    cr  schema_metadata_restored
    cc  config_over_config
    rd  replaced_removed
    ri  replaced_field_indexed
    rf  replaced_field_dropped
    ru  replaced_updated
    rr  cell_replaced
    ro  replaced_overlaid
    od  overlaid_removed
    ou  overlaid_updated
    b   same_base
"""

_FIXED = {
    "R": Verdict.RETRYABLE,
    "X": Verdict.INCOMPATIBLE,
    "E": Verdict.NOT_SUPPORTED,
}
Cell = Verdict | Rule


def _parse(text: str) -> tuple[dict[tuple[str, str], str], dict[str, str]]:
    """Return the letters of all pairs, and the rules' names by their letters."""
    table, _, legend = text.partition("\n\n")
    header, *lines = [line.split() for line in table.splitlines() if line.strip()]
    operations = [line[0] for line in lines]
    if len(header) != len(operations):
        raise AssertionError("the grid has as many columns as rows")
    letters = {
        (candidate, committed): letter
        for candidate, *row in lines
        for committed, letter in zip(operations, row, strict=True)
    }
    rules = dict(line.split() for line in legend.split("decides\n")[1].splitlines())
    return letters, rules


LETTERS, RULE_NAMES = _parse(GRID)
OPERATION_NAMES = tuple(dict.fromkeys(candidate for candidate, _ in LETTERS))


def _rule(name: str) -> Rule:
    modules = (overlap, overlap_indices, overlap_metadata)
    found: Rule = next(getattr(module, name) for module in modules if hasattr(module, name))
    return found


RULES: dict[str, Rule] = {letter: _rule(name) for letter, name in RULE_NAMES.items()}
# Compatible pairs are left out: most checks find nothing here and are done.
RULED: dict[str, dict[str, Cell]] = {
    candidate: {
        committed: _FIXED.get(letter) or RULES[letter]
        for (row, committed), letter in LETTERS.items()
        if row == candidate and letter != "."
    }
    for candidate in OPERATION_NAMES
}


def first_conflict(candidate: Candidate, history: History, after: int) -> Finding | None:
    """Return the first version above `after` that `candidate` conflicts with, None if none does.

    Its cost is what the candidate touches, times the kinds of operations since `after`.
    """
    cells = RULED[candidate.kind]
    nearest: Finding | None = None
    for kind, versions in history.kinds.items():
        history.steps += 1
        if versions[-1] <= after:
            continue
        cell = cells.get(kind)
        if cell is None:
            continue
        if isinstance(cell, Verdict):
            found: Finding | None = Finding(versions[bisect_right(versions, after)], cell, "always")
        else:
            found = cell(candidate, history, after, kind)
        if found is not None and (nearest is None or found.version < nearest.version):
            nearest = found
    return nearest
