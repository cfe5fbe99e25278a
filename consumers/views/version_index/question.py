"""One thing that can be asked of the index: a view or a table macro, with its documentation."""

from __future__ import annotations

from dataclasses import dataclass

from commitlog.client.history.index_file import KNOWN_UNTIL, quoted


@dataclass(frozen=True, slots=True)
class Question:
    """A view or a table macro: an example and what it answers, and the statement that makes it."""

    name: str
    kind: str
    example: str
    comment: str
    ddl: str

    def comment_ddl(self) -> str:
        """Return the statement that documents it."""
        kind = "VIEW" if self.kind == "view" else "MACRO TABLE"
        return f"COMMENT ON {kind} {self.name} IS {quoted(self.comment)}"


def view(name: str, example: str, comment: str, query: str) -> Question:
    """Return what is asked without parameters."""
    ddl = f"CREATE OR REPLACE VIEW {name} AS {query}"
    return Question(name=name, kind="view", example=example, comment=comment, ddl=ddl)


def macro(name: str, parameters: str, example: str, comment: str, query: str) -> Question:
    """Return what is asked with parameters, as DuckDB lists those of a macro."""
    ddl = f"CREATE OR REPLACE MACRO {name}({parameters}) AS TABLE {query}"
    return Question(name=name, kind="macro", example=example, comment=comment, ddl=ddl)


LIFE_OF_T = """
(SELECT incarnation FROM tables WHERE table_name = t OR list_contains(former_names, t)
 ORDER BY (table_name = t AND ended_by IS NULL) DESC, sequence DESC LIMIT 1)
"""
"""The life that has the name `t`; if none has it now, the one that had it and changed last."""

NAMES_OF_LIFE = f"""
SELECT unnest(list_append(former_names, table_name)) FROM tables WHERE incarnation = {LIFE_OF_T}
"""

IS_T = f"""
table_name IN (SELECT t UNION ALL {NAMES_OF_LIFE})
AND (table_name = t OR incarnation = {LIFE_OF_T})
"""
"""Whether an operation's row is about table `t`: under that name, or under another of its life.

The names come first: rows are in their order, so that most of them needn't be read.
"""

OF_LIFE = f"table_name IN ({NAMES_OF_LIFE}) AND incarnation = {LIFE_OF_T}"
"""Whether a row is about that life alone, not about others that had the name."""

_IN_UTC = """
(coalesce(try_cast(moment::VARCHAR || '+00' AS TIMESTAMPTZ),
          try_cast(moment::VARCHAR || ' 00:00+00' AS TIMESTAMPTZ), moment::TIMESTAMPTZ)
 AT TIME ZONE 'UTC')
"""
BY_MOMENT = f"""
(time <= {_IN_UTC}
 AND CASE WHEN {_IN_UTC} > {KNOWN_UNTIL}
          THEN error(moment || ' is in the future: commits up to then aren''t known yet')
          ELSE true END)
"""
"""Whether a row is of before a parameter `moment`, which is in UTC if it names no zone.

DuckDB compares a time that has a zone in the reader's own zone, and drops the offset of a text. It
searches for rows by the first condition, which is a constant.
"""
