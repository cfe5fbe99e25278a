"""Hands histories to Porcupine (`infra/porcupine`, a small Go program) and returns its verdicts.

A client sees a transaction from its first append to its answer; where no answer came, the
operation never ends. Only commits and refusals for a conflict are given: they are what the order of
all others decides.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.child import ended
from tests.simulation.mutants import History
from tests.simulation.rows import Entry, Intent

SOURCE = Path(__file__).resolve().parents[2] / "infra" / "porcupine"
BUILD_SECONDS = 300
CHECK_SECONDS = 500

Operations = list[dict[str, Any]]


def build(go: str, folder: Path) -> Path:
    """Build the program; modules come from Go's own proxy, checked by go.sum."""
    target = folder / "porcupine"
    subprocess.run([go, "build", "-o", target, "."], cwd=SOURCE, check=True, timeout=BUILD_SECONDS)
    return target


def verdicts(program: Path, histories: Iterable[Operations]) -> list[str]:
    """Return "ok", "illegal" or "unknown" for each history."""
    text = "\n\n".join("\n".join(map(json.dumps, history)) for history in histories)
    done = ended([program, "-timeout", "60s"], input=text + "\n", check=True, timeout=CHECK_SECONDS)
    return done.stdout.split()


def operations(history: History) -> Operations:
    """Return a history as its clients saw it."""
    made: Operations = []
    incarnations: dict[str, str] = {}
    for entry in history.entries:
        if entry.asked is None or entry.answers is not None:
            continue
        is_commit = entry.status == "committed"
        is_refusal = entry.status in {"retryable", "incompatible"} and entry.code == "CONFLICT"
        if not is_commit and not is_refusal:
            continue
        effects = [
            _effect(intent, position, entry, incarnations)
            for position, intent in enumerate(entry.asked.intents)
            if intent.kind not in {"alter", "expire"}
        ]
        invoked, answered, sequence = history.told.get(
            (entry.transaction_id, entry.attempt), (-1, -1, -1)
        )
        made.append(
            {
                "client": len(made),
                "call": max(invoked, 0) * 2,
                "return": answered * 2 + 1 if answered >= 0 and sequence == entry.sequence else 0,
                "committed": is_commit,
                "effects": effects,
            }
        )
        if is_commit:
            _note(entry, incarnations)
    return made


def _note(entry: Entry, incarnations: dict[str, str]) -> None:
    assert entry.asked is not None
    for intent, result in zip(entry.asked.intents, entry.results, strict=False):
        if intent.kind == "drop":
            incarnations.pop(intent.table, None)
        elif intent.kind == "rename":
            incarnations[intent.new_table] = incarnations.pop(intent.table, result[1])
        else:
            incarnations[intent.table] = result[1]


def _effect(
    intent: Intent, position: int, entry: Entry, incarnations: dict[str, str]
) -> dict[str, Any]:
    incarnation = intent.incarnation or incarnations.get(intent.table, "")
    version = 0
    if position < len(entry.results):
        _, incarnation, version, _ = entry.results[position]
    rows = [f"r{f}/{o}" for f, offsets in (*intent.removes, *intent.drops) for o in offsets]
    fragments = [f"f{f}" for f, _ in (*intent.removes, *intent.drops)]
    fragments += [f"f{f}" for olds, _ in intent.groups for f in olds]
    moved = [f"r{f}/{o}" for _, news in intent.groups for _, rows in news for f, o in rows]
    config = [f"c{intent.config}"] if intent.config else []
    added = ["added"] if intent.adds else []
    keys = [f"k{row[0]}" for rows in intent.adds for row in rows]
    return {
        "table": incarnation,
        "kind": intent.kind,
        "version": version,
        "read": intent.read_version,
        "needs": rows + config + (keys if intent.is_keyed else []),
        "touches": rows + moved + fragments + config + added + keys,
        "excuses": fragments + config + added,
    }
