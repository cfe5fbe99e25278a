"""Full-text queries as pylance takes them: words, or a query put together of others."""

from __future__ import annotations

from typing import Any

from lance.query import (
    BooleanQuery,
    BoostQuery,
    FullTextOperator,
    FullTextQuery,
    MatchQuery,
    MultiMatchQuery,
    Occur,
    PhraseQuery,
)
from lance_namespace import InvalidInputError

_MATCH = ("boost", "fuzziness", "max_expansions", "prefix_length")


def full_text(asked: Any, columns: list[str]) -> FullTextQuery | dict[str, Any]:
    """Return a query of the protocol; `columns` are those that have a full-text index."""
    if asked.structured_query is not None:
        query = asked.structured_query.query
        words = query.match
        if words is not None and _is_plain(words):
            return {"query": words.terms}
        return _query(query, columns)
    if asked.string_query is None:
        raise InvalidInputError("full_text_query is empty: give words, or a structured query")
    found: dict[str, Any] = {"query": asked.string_query.query}
    if asked.string_query.columns:
        found["columns"] = asked.string_query.columns
    return found


def _query(asked: Any, columns: list[str]) -> FullTextQuery:
    given = [name for name in type(asked).model_fields if getattr(asked, name) is not None]
    if len(given) != 1:
        raise InvalidInputError(
            f"a full-text query must be one of {', '.join(type(asked).model_fields)}, not {given}"
        )
    inner = getattr(asked, given[0])
    if given[0] == "match":
        return _match(inner, columns)
    if given[0] == "phrase":
        more = {} if inner.slop is None else {"slop": inner.slop}
        return PhraseQuery(inner.terms, _column(inner.column, columns), **more)
    if given[0] == "boost":
        more = {} if inner.negative_boost is None else {"negative_boost": inner.negative_boost}
        positive, negative = _query(inner.positive, columns), _query(inner.negative, columns)
        return BoostQuery(positive, negative, **more)
    if given[0] == "multi_match":
        return _multi_match(inner.match_queries)
    parts = (
        (Occur.MUST, inner.must),
        (Occur.SHOULD, inner.should),
        (Occur.MUST_NOT, inner.must_not),
    )
    return BooleanQuery([(occur, _query(one, columns)) for occur, many in parts for one in many])


def _is_plain(words: Any) -> bool:
    """Return True for words that are looked for in all columns, without anything special."""
    is_usual = (words.fuzziness or 0, words.prefix_length or 0, words.boost or 1.0) == (0, 0, 1.0)
    return words.column is None and is_usual and (words.operator or "or").lower() == "or"


def _match(asked: Any, columns: list[str]) -> FullTextQuery:
    options = {name: getattr(asked, name) for name in _MATCH if getattr(asked, name) is not None}
    return MatchQuery(
        asked.terms, _column(asked.column, columns), operator=_operator(asked.operator), **options
    )


def _multi_match(queries: list[Any]) -> FullTextQuery:
    if not queries or len({one.terms for one in queries}) != 1:
        raise InvalidInputError("multi_match looks for the same terms in several columns")
    if not all(one.column for one in queries):
        raise InvalidInputError("multi_match: each of match_queries must name its column")
    boosts = [1.0 if one.boost is None else float(one.boost) for one in queries]
    names = [one.column for one in queries]
    operator = _operator(queries[0].operator)
    return MultiMatchQuery(queries[0].terms, names, boosts=boosts, operator=operator)


def _column(given: str | None, columns: list[str]) -> str:
    if given:
        return given
    if len(columns) != 1:
        raise InvalidInputError(
            f"the full-text query names no column, and the table has full-text indices on {columns}"
        )
    return columns[0]


def _operator(given: str | None) -> FullTextOperator:
    try:
        return FullTextOperator((given or "or").upper())
    except ValueError:
        raise InvalidInputError(f"operator must be Or or And, not {given!r}") from None


def put_right(text: Any) -> Any:
    """Return a full-text query as the client's models read it, whichever way it was written."""
    if not isinstance(text, dict) or "query" not in text:
        return text
    if isinstance(text["query"], dict):
        return {"structured_query": {"query": _put_right(text["query"])}}
    return {"string_query": {**text, "columns": text.get("columns") or None}}


def _put_right(query: Any) -> Any:
    """Add what the models need and LanceDB leaves out, and put several matches as they have it."""
    if not isinstance(query, dict):
        return query
    found = dict(query)
    boolean, boost, many = found.get("boolean"), found.get("boost"), found.get("multi_match")
    if isinstance(boolean, dict):
        found["boolean"] = {
            name: [_put_right(one) for one in boolean.get(name) or ()]
            for name in ("must", "must_not", "should")
        }
    if isinstance(boost, dict):
        sides = {name: _put_right(boost.get(name)) for name in ("positive", "negative")}
        found["boost"] = {**boost, **sides}
    if isinstance(many, dict) and "query" in many:
        columns = many.get("columns") or ()
        boosts = many.get("boost") or [1.0] * len(columns)
        found["multi_match"] = {
            "match_queries": [
                {"terms": many["query"], "column": column, "boost": one}
                | ({"operator": many["operator"]} if many.get("operator") else {})
                for column, one in zip(columns, boosts, strict=False)
            ]
        }
    return found
