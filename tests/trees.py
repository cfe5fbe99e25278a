"""Modules of this repository as syntax trees, each parsed and walked once for all tests of them."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@cache
def tree(name: str) -> ast.Module:
    """Return a module, parsed, by its path in the repository."""
    return ast.parse((ROOT / name).read_text(encoding="utf-8"), name)


@cache
def statements_of(name: str) -> tuple[ast.stmt, ...]:
    """Return all statements of a module."""
    return tuple(statements(tree(name)))


@cache
def nodes(name: str) -> tuple[ast.AST, ...]:
    """Return all nodes of a module."""
    return tuple(ast.walk(tree(name)))


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements within a node, however deep: a tenth of all its nodes."""
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        for child in getattr(node, field, ()):
            if isinstance(child, ast.stmt):
                yield child
            yield from statements(child)


def is_for_types(condition: ast.expr) -> bool:
    """Return whether a condition holds for type checkers alone."""
    named = (getattr(n, "id", getattr(n, "attr", "")) for n in ast.walk(condition))
    return "TYPE_CHECKING" in named


def said_of(node: ast.expr) -> str:
    """Return a name with what it is of, as `ast.unparse` does; if that are names, at once."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute | ast.Name):
        return f"{said_of(node.value)}.{node.attr}"
    return ast.unparse(node)


@contextmanager
def kept_for_now() -> Iterator[None]:
    """Keep trees within this block, and the collector from looking through all of them."""
    gc.disable()
    try:
        yield
    finally:
        tree.cache_clear()
        statements_of.cache_clear()
        nodes.cache_clear()
        gc.enable()
