"""Why something was refused: a name and typed arguments, of a size that is bounded by construction.

The core refuses with a `Phrase`, whose arguments are any values. What a record keeps of it is a
`Reason`: numbers, texts and lists, the long ones cut, with a digest of the whole. Neither holds a
word for people; `commitlog.words` has those.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from commitlog.model.limits import ARGUMENT_CHARACTERS_MAX, ARGUMENT_ITEMS_MAX, CUT_CHARACTERS

_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class Phrase:
    """Something to be said, by the name of its words."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


class Aside(str):
    """Words of a library or of a program, which no `Reason` keeps: others may say it otherwise.

    What our own program knows of it, a reason keeps as a phrase.
    """

    phrase: Phrase | None = None

    @classmethod
    def of(cls, words: object, phrase: Phrase | None = None) -> Aside:
        """Return words with what is known of them; of an `Aside` that is known already."""
        aside = cls(words)
        aside.phrase = phrase or getattr(words, "phrase", None)
        return aside


class Cut(str):
    """The beginning of a text that is too long for a record."""

    length: int
    """Of the whole text, in characters."""
    sha256: bytes
    """Of the whole text, in UTF-8."""

    @classmethod
    def of(cls, start: str, length: int, sha256: bytes) -> Cut:
        """Return a text whose start alone is known."""
        cut = cls(start)
        cut.length, cut.sha256 = length, sha256
        return cut


@dataclass(frozen=True, slots=True)
class Number:
    """An argument that is a number."""

    name: str
    value: int


@dataclass(frozen=True, slots=True)
class Text:
    """An argument that is a text, or the beginning of one."""

    name: str
    value: str
    length: int = 0
    """Of the whole text, in characters, if it is cut; else 0."""
    sha256: bytes = b""
    """Of the whole text in UTF-8, if it is cut."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """An argument that is a list of numbers: the first ones, and how many there are."""

    name: str
    values: tuple[int, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Texts:
    """An argument that is a list of texts: the first ones, and how many there are."""

    name: str
    values: tuple[str, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Words:
    """An argument that has words of its own; what those need is among the reason's arguments."""

    name: str
    reason: str


Argument = Number | Text | Numbers | Texts | Words


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a transaction was refused, as its outcome says it."""

    name: str
    operation: int = -1
    """Which of the record's operations it is about; -1: the only one, or the whole record."""
    arguments: tuple[Argument, ...] = ()
    """Sorted by name."""

    def argument(self, name: str) -> Any:
        """Return an argument as it was given, as far as it is kept; empty if there is none."""
        found = self.phrase().arguments
        value = found.get(name, "")
        if isinstance(value, Phrase):
            return Phrase(value.name, {n: v for n, v in found.items() if n != name})
        return value

    def phrase(self) -> Phrase:
        """Return what is to be said."""
        return Phrase(self.name, {one.name: _value_of(one) for one in self.arguments})


def bounded(phrase: Phrase, operation: int = -1) -> Reason:
    """Return what a record keeps of a phrase."""
    found: dict[str, Argument] = {}
    _collect(phrase, found)
    return Reason(phrase.name, operation, tuple(found[name] for name in sorted(found)))


def cut(text: str) -> str:
    """Return a text that fits a record, a long one cut, with its length and a digest."""
    if isinstance(text, Cut):
        return text
    data = text.encode("utf-8", "backslashreplace")
    whole = data.decode()
    if len(whole) <= ARGUMENT_CHARACTERS_MAX:
        return whole
    return Cut.of(whole[:CUT_CHARACTERS], len(whole), hashlib.sha256(data).digest())


def _collect(phrase: Phrase, found: dict[str, Argument]) -> None:
    for name, value in phrase.arguments.items():
        if isinstance(value, Aside):
            if value.phrase is None:
                continue
            value = value.phrase
        argument = Words(name, value.name) if isinstance(value, Phrase) else _typed(name, value)
        if found.setdefault(name, argument) != argument:
            raise ValueError(f"{phrase.name} has two arguments {name}")
        if isinstance(value, Phrase):
            _collect(value, found)


def _typed(name: str, value: object) -> Argument:
    if isinstance(value, list | tuple | set | frozenset):
        return _list(name, list(value))
    if isinstance(value, int) and not isinstance(value, bool) and _LONG_MIN <= value <= _LONG_MAX:
        return Number(name, value)
    if isinstance(value, bytes):
        value = value.hex()
    text = cut(value if isinstance(value, str) else str(value))
    if isinstance(text, Cut):
        return Text(name, str(text), text.length, text.sha256)
    return Text(name, text)


def _list(name: str, values: list[Any]) -> Argument:
    shown = values[:ARGUMENT_ITEMS_MAX]
    if values and all(isinstance(v, int) and _LONG_MIN <= v <= _LONG_MAX for v in shown):
        return Numbers(name, tuple(shown), len(values))
    return Texts(name, tuple(shortened(value) for value in shown), len(values))


def shortened(value: Any) -> str:
    """Return an item of a list as a text that is short."""
    text = "-".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text.encode("utf-8", "backslashreplace").decode()[:CUT_CHARACTERS]


def _text_of(text: Text) -> str:
    return Cut.of(text.value, text.length, text.sha256) if text.length else text.value


def _value_of(argument: Argument) -> Any:
    if isinstance(argument, Number):
        return argument.value
    if isinstance(argument, Text):
        return _text_of(argument)
    if isinstance(argument, Words):
        return Phrase(argument.reason)
    return Listed(argument.values, argument.count)


class Listed(list[Any]):
    """A list that a record keeps the first items of."""

    def __init__(self, values: Iterable[Any], count: int) -> None:
        super().__init__(values)
        self.whole = count
        """How many items the whole list has."""
