"""What refusals say to people: the only place that turns reasons into words.

`frozen` gives the words that logs of protocols 1 to 3 have in their outcomes, byte for byte, for
ever. `say` and `worded` are for readers: nothing that they return is written to a log, hashed or
compared, so it may be worded better at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from string import Formatter
from typing import Any

from commitlog.model.reasons import Cut, Listed, Phrase, Reason
from commitlog.model.records import Outcome
from commitlog.words import current, frozen_iceberg, frozen_lance, frozen_log, reworded

FROZEN = {**frozen_log.TEMPLATES, **frozen_lance.TEMPLATES, **frozen_iceberg.TEMPLATES}
"""Templates by the name of the reason: `!r` is a value's repr, `!j` a list with commas."""
FROZEN_ADVICE = {**frozen_log.ADVICE, **frozen_lance.ADVICE}
"""What the losing writer does next, by the name of the reason."""
WORDS = {**FROZEN, **reworded.WORDS, **current.WORDS}
_FROZEN_OR_NEW = {**WORDS, **FROZEN}
"""What was no refusal when those logs began, but ended their leaders, has today's words."""
ADVICE = {**FROZEN_ADVICE, **current.ADVICE}
"""The same as readers see them."""


def frozen(phrase: Phrase) -> str:
    """Return the words that logs of protocols 1 to 3 have for a refusal."""
    return _fill(_FROZEN_OR_NEW, _FROZEN_OR_NEW[phrase.name], phrase.arguments)


def frozen_advice(phrase: Phrase) -> str:
    """Return what logs of protocols 1 to 3 advise the losing writer; empty if nothing."""
    return _fill(FROZEN, FROZEN_ADVICE.get(phrase.name, ""), phrase.arguments)


def say(phrase: Phrase) -> str:
    """Return a reason in words for a reader."""
    for name in (phrase.name, f"{phrase.name}_in_short"):
        said = _filled(WORDS.get(name, ""), phrase)
        if said:
            return said
    found = phrase.arguments.items()
    shown = (f"{n}={v.name if isinstance(v, Phrase) else v}" for n, v in found)
    return " ".join([phrase.name, *shown])


def describe(reason: Reason) -> str:
    """Return the reason of an outcome in words, with the operation that it is about."""
    said = say(reason.phrase())
    return f"operations[{reason.operation}]: {said}" if reason.operation >= 0 else said


def worded(outcome: Outcome) -> Outcome:
    """Return an outcome whose message and advice say what its reason says."""
    reason = outcome.reason
    if reason is None:
        return outcome
    conflict = outcome.conflict
    if conflict is not None:
        advice = _filled(ADVICE.get(reason.name, ""), reason.phrase())
        conflict = replace(conflict, advice=advice)
    return replace(outcome, message=describe(reason), conflict=conflict)


def _filled(template: str, phrase: Phrase) -> str:
    """Return a template's words, empty if it needs arguments that the phrase doesn't have."""
    try:
        return _fill(WORDS, template, phrase.arguments)
    except (KeyError, ValueError):  # a newer program's reason, for example
        return ""


def _fill(words: Mapping[str, str], template: str, arguments: Mapping[str, Any]) -> str:
    return _Filler(words).vformat(template, (), arguments)


class _Filler(Formatter):
    """Fills a template; an argument that has words of its own is said with the same arguments."""

    def __init__(self, words: Mapping[str, str]) -> None:
        self._words = words

    def get_value(self, key: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        value = kwargs[key]
        if isinstance(value, Phrase):
            # Without itself, so that no record makes words that contain themselves.
            outer = {name: one for name, one in kwargs.items() if name != key}
            inner = {**outer, **value.arguments}
            return _fill(self._words, self._words[value.name], inner)
        return value

    def convert_field(self, value: Any, conversion: Any) -> Any:
        if isinstance(value, Cut):
            start = repr(str(value)) if conversion == "r" else str(value)
            return f"{start}… ({value.length} characters, sha256 {value.sha256.hex()[:16]}…)"
        if isinstance(value, Listed) and value.whole > len(value):
            shown = ", ".join(map(str, value)) if conversion == "j" else str(list(value))
            return f"{shown} and {value.whole - len(value)} more"
        if conversion == "j":
            return ", ".join(map(str, value))
        return super().convert_field(value, conversion)
