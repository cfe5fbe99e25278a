"""One thing that can be asked of the index: a view or a table macro, with its documentation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Question:
    """A view or a table macro: its query, an example and what it answers."""

    name: str
    kind: str
    parameters: str
    example: str
    comment: str
    query: str

    def ddl(self) -> str:
        """Return the statement that makes it."""
        if self.kind == "view":
            return f"CREATE OR REPLACE VIEW {self.name} AS {self.query}"
        return f"CREATE OR REPLACE MACRO {self.name}({self.parameters}) AS TABLE {self.query}"

    def comment_ddl(self) -> str:
        """Return the statement that documents it."""
        kind = "VIEW" if self.kind == "view" else "MACRO TABLE"
        return f"COMMENT ON {kind} {self.name} IS {quoted(self.comment)}"


def quoted(text: str) -> str:
    """Return `text` as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


LIFE_OF_T = """
(SELECT incarnation FROM tables WHERE table_name = t
 ORDER BY ended_by IS NULL DESC, sequence DESC LIMIT 1)
"""
"""The life that has the name `t`; if none has it now, the last one that ended with it."""

NAMES_OF_T = f"""
SELECT t UNION ALL
SELECT unnest(former_names) FROM tables WHERE incarnation = {LIFE_OF_T}
"""
"""The names under which rows of table `t` may stand: its own and, after a rename, older ones."""

IS_T = f"""
table_name IN ({NAMES_OF_T}) AND (table_name = t OR incarnation = {LIFE_OF_T})
"""
"""Whether an operation's row is about table `t`, under whatever name it was."""
