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


@contextmanager
def kept_for_now() -> Iterator[None]:
    """Keep trees within this block, and the collector from looking through all of them."""
    gc.disable()
    try:
        yield
    finally:
        tree.cache_clear()
        nodes.cache_clear()
        gc.enable()
