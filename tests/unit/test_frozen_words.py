"""The words of released refusals never change, and every reason has words."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import pytest

from commitlog import words
from commitlog.model.reasons import Aside, Cut, Phrase, bounded

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "refusals-of-protocols-1-to-3.json"
"""What refusals of protocols 1 to 3 say, by name: hashed, and compared when decided again."""
_NAMES_A_REASON = {
    "Phrase": 0,
    "rejected": 1,
    "Invalid": 0,
    "Stale": 0,
    "fail": 0,
    "DeltaRefused": 0,
    "_wrong": 0,
    "_not_its_effect": 2,
    "_failed": 2,
}


def _reasons() -> Iterator[tuple[str, str]]:
    """Yield the reasons that the core names, with where it does."""
    for path in sorted((ROOT / "commitlog" / "core").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = getattr(node.func, "id", getattr(node.func, "attr", ""))
            place = _NAMES_A_REASON.get(called, 99)
            named = node.args[place] if place < len(node.args) else None
            if named is None or isinstance(named, ast.JoinedStr):
                continue
            for one in ast.walk(named):
                if isinstance(one, ast.Constant) and isinstance(one.value, str):
                    yield one.value, f"{path.name}:{node.lineno}"


def test_no_released_refusal_is_reworded() -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert golden["words"] == words.FROZEN, "say these again as they were"
    assert golden["advice"] == words.FROZEN_ADVICE


@pytest.mark.slow
def test_every_reason_has_words() -> None:
    found = dict(_reasons())
    assert len(found) > 150
    missing = {f"{name} ({where})" for name, where in found.items() if name not in words.WORDS}
    assert not missing


def test_words_need_only_what_frozen_ones_have() -> None:
    def needed(template: str) -> set[str]:
        return {field for _, field, _, _ in Formatter().parse(template) if field}

    compared = words.WORDS.keys() & words.FROZEN.keys()
    assert len(compared) > 100
    more = {
        name: needed(words.WORDS[name]) - needed(words.FROZEN[name]) - {"problem"}
        for name in compared
    }
    assert not {name: fields for name, fields in more.items() if fields}


def test_a_long_argument_is_cut_and_what_was_cut_is_said() -> None:
    branch = "\x01" * 6_000_000
    phrase = Phrase("branch_unsupported", {"branch": branch, "table": "t"})
    reason = bounded(phrase)
    said = words.describe(reason)
    assert len(said) < 1_000
    assert "6000000 characters, sha256" in said
    kept = reason.argument("branch")
    assert isinstance(kept, Cut)
    assert len(kept) == 120
    assert bounded(Phrase("branch_unsupported", {"branch": kept, "table": "t"})) == reason


def test_an_argument_may_have_words_of_its_own() -> None:
    phrase = Phrase("schema_invalid", {"problem": Phrase("field_name_twice", {"field": "a"})})
    said = "two fields are called 'a', or one has no name; correct the schema"
    assert words.frozen(phrase) == said
    said = "the field name 'a' is empty or used twice; correct the schema"
    assert words.describe(bounded(phrase)) == said
    again = Phrase("schema_invalid", {"problem": bounded(phrase).argument("problem")})
    assert bounded(again) == bounded(phrase)


def test_words_of_a_library_are_in_no_reason() -> None:
    phrase = Phrase("staged_manifest_unreadable", {"path": "p", "error": Aside("protobuf says")})
    assert "protobuf" in words.frozen(phrase)
    assert "protobuf" not in str(bounded(phrase))
    assert words.describe(bounded(phrase)).startswith("the staged manifest p is not")


def test_a_reason_of_a_newer_program_is_said_by_its_name() -> None:
    reason = bounded(Phrase("not_known_here", {"count": 3}), operation=1)
    assert words.describe(reason) == "operations[1]: not_known_here count=3"
