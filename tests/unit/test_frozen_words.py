"""The words of refusals are part of what logs of protocols 1 to 3 decided: nobody rewords them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "refusals-of-protocols-1-to-3.txt"
_REFUSING = {
    *("rejected", "Refused", "DeltaRefused", "IcebergRefused", "Invalid", "Stale", "fail"),
    *("_failed", "_not_its_effect", "_wrong", "winner_of", "_refused"),
}
_WORDED = {
    *("message", "reason", "problem", "what", "how", "was", "advice", "where", "name", "plural"),
}

_NO_REFUSALS = {"chain.py", "replica.py", "indices.py"}
"""Their words end a program or choose a builder; no outcome has them."""


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def template(node: ast.expr) -> str:
    """Return a text as a template: `{}` for a value, `{!r}` for its repr."""
    if isinstance(node, ast.Constant):
        return str(node.value).replace("{", "{{").replace("}", "}}")
    assert isinstance(node, ast.JoinedStr)
    parts = []
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            parts.append("{!r}" if part.conversion == ord("r") else "{}")
        else:
            parts.append(template(part))
    return "".join(parts)


def _texts(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the outermost texts of an expression."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr) and _is_text(child):
            yield child
        else:
            yield from _texts(child)


def _templates(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        found: list[ast.AST] = []
        if isinstance(node, ast.Call):
            called = getattr(node.func, "id", getattr(node.func, "attr", ""))
            found = [*node.args] if called in _REFUSING else []
        elif isinstance(node, ast.Assign):
            names = {getattr(target, "id", "") for target in node.targets}
            found = [node.value] if names & _WORDED else []
        elif isinstance(node, ast.Return) and node.value is not None:
            found = [node.value]
        for one in found:
            texts = [one] if isinstance(one, ast.expr) and _is_text(one) else list(_texts(one))
            yield from map(template, texts)


def words_in_the_core() -> set[str]:
    """Return the templates of what the core says of refusals, by its source."""
    found: set[str] = set()
    for path in sorted((ROOT / "commitlog" / "core").rglob("*.py")):
        if path.name in _NO_REFUSALS:
            continue
        found.update(_templates(ast.parse(path.read_text(encoding="utf-8"))))
    return {text for text in found if re.search("[a-z]", text) and " " in text.strip()}


def frozen() -> set[str]:
    """Return the templates as they were released."""
    lines = GOLDEN.read_text(encoding="utf-8").splitlines()
    return {line for line in lines if not line.startswith("#")}


def test_no_released_refusal_is_reworded() -> None:
    gone = sorted(frozen() - words_in_the_core())
    assert not gone, "say these again as they were: " + "\n".join(gone)
