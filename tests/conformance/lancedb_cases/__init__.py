"""LanceDB's own test cases of tables and queries, restated: how a case is named, run and compared.

Each case asserts on any connection, and is run on two: LanceDB's remote client against the server,
and a database on disk. So a case that says something wrong fails on the disk, and a server that
answers otherwise than a disk fails beside it. A case bears the names that LanceDB's repository has
for it; `left_out.py` has those that no server can pass, and why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

Case = Callable[[Any, str], Any]
"""A connection and a name that no table has: what is returned is equal on both."""


class Cases(dict[str, Case]):
    """Cases of one of LanceDB's files, by their names there, which blanks part."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file

    def named(self, *names: str) -> Callable[[Case], Case]:
        """Add a case under LanceDB's names for it."""

        def add(made: Case) -> Case:
            self[" ".join(names)] = made
            return made

        return add


def all_rows(table: Any, by: str = "") -> pa.Table:
    """Return a table's rows, which a remote table has no call of its own for."""
    found = table.search().limit(100_000).to_arrow()
    return found.sort_by(by) if by else found


def items(db: Any, name: str) -> Any:
    """Make a table of two rows with vectors."""
    made = [
        {"vector": [3.0, 4.0], "item": "one", "price": 10.0},
        {"vector": [6.0, 8.0], "item": "two", "price": 20.0},
    ]
    return db.create_table(name, made)


def pairs(first: int, last: int, text: str = "old") -> pa.Table:
    """Return rows with a number and a text."""
    return pa.table({"a": range(first, last), "b": [f"{text}{i}" for i in range(first, last)]})


def is_refused(ask: Callable[[], Any], words: str = "") -> bool:
    """Say whether something raises, with these words in what it says (in any case)."""
    try:
        ask()
    except Exception as error:  # the client has a kind of its own for most
        return words.lower() in str(error).lower()
    return False
