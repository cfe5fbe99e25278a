"""How the core is laid out, in numbers: `python -m tests.core_map`. The house test holds them."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import FrameType
from typing import Any

from commitlog.core.conflicts.write_sets import KINDS
from tests.trees import ROOT, tree

CORE = ROOT / "commitlog/core"
OF_PAIRS = ("conflicts/grid.py", "conflicts/overlap")
"""Where the rules of pairs are, which name what was committed."""
_OF_METHODS_TOO = re.compile(r"(?:transaction|message|parsed|final)$")
"""What an attribute such as `.append` is asked of if it means the operation."""


def room_of(module: str) -> str:
    """Return which room of the core a module is in; empty: in none."""
    parts = module.split(".")
    return parts[2] if parts[:2] == ["commitlog", "core"] and len(parts) > 2 else ""


def trees() -> dict[str, ast.Module]:
    """Return the core's modules, parsed, by their paths in it."""
    paths = sorted(CORE.rglob("*.py"))
    return {str(path.relative_to(CORE)): tree(str(path.relative_to(ROOT))) for path in paths}


def arrows() -> dict[str, set[str]]:
    """Return the rooms that each room imports, those for type checkers included."""
    found: dict[str, set[str]] = {}
    for path, module in trees().items():
        here = path.removesuffix(".py").split("/")[0]
        if here == "__init__":
            continue
        of_room = found.setdefault(here, set())
        for node in ast.walk(module):
            if isinstance(node, ast.ImportFrom):
                of_room.add(room_of(f"{node.module}.{node.names[0].name}"))
        of_room -= {here, ""}
    return found


def floors() -> int:
    """Return how many rooms the longest way down passes."""
    graph = arrows()

    @cache
    def height(room: str) -> int:
        return 1 + max((height(below) for below in graph[room]), default=0)

    return max(map(height, graph))


def naming_places() -> list[str]:
    """Return where an operation of Lance's is named, besides its module and rules of pairs."""
    found = []
    for path, module in trees().items():
        # Iceberg's snapshots have operations of their own, by the same names.
        if path.startswith(("operations/", *OF_PAIRS)) or "iceberg" in path:
            continue
        for node in module.body:
            for part in node.body if isinstance(node, ast.ClassDef) else [node]:
                if any(_names_operation(inner) for inner in ast.walk(part)):
                    found.append(f"{path}:{part.lineno}")
    return found


def _names_operation(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        head, dot, tail = node.value.partition(".")
        is_aspect = bool(dot) and " " not in tail
        return head in KINDS.values() and (not dot or is_aspect) or node.value in KINDS
    if not isinstance(node, ast.Attribute):
        return False
    owner = ast.unparse(node.value)
    if node.attr in KINDS.values():
        return owner.endswith("Transaction")
    is_method = node.attr in {*dir(dict), *dir(list), *dir(str), "delete", "merge", "restore"}
    is_method |= node.attr in {"project", "clone", "rewrite", "overwrite"}
    return node.attr in KINDS and (not is_method or bool(_OF_METHODS_TOO.search(owner)))


def rooms_entered(call: Callable[[], Any]) -> set[str]:
    """Return the rooms whose code runs in a call."""
    entered: set[str] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            entered.add(room_of(frame.f_globals.get("__name__", "")))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return entered - {""}


def deciding() -> Iterator[Callable[[], Any]]:
    """Yield decisions: of an Append at the head, and of a Delete that is carried over another."""
    from tests.core_world import World, append, delete

    world = World()
    world.create()
    world.ask("first", append(1, "one.lance"))
    yield lambda: world.ask("next", append(2, "two.lance"))
    state = world.state().fork()
    world.ask("delete", delete(world, 3, {0: [1]}, state=state))
    yield lambda: world.ask("carried", delete(world, 3, {0: [2]}, state=state))


def main() -> None:
    """Print the numbers."""
    graph = arrows()
    print(f"{len(graph)} rooms on {floors()} floors, {sum(map(len, graph.values()))} arrows")
    for room, below in sorted(graph.items()):
        print(f"  {room}: {', '.join(sorted(below)) or '(nothing)'}")
    for decision in deciding():
        entered = rooms_entered(decision)
        print(f"a decision enters {len(entered)} rooms: {', '.join(sorted(entered))}")
    places = naming_places()
    print(f"{len(places)} places name an operation: {', '.join(places)}")


if __name__ == "__main__":
    main()
