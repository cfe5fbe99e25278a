"""Values that are made fast are the frozen values that they are without it."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, astuple, dataclass, field, replace
from typing import Any

import pytest

from commitlog.model.records import Observation, Outcome, Status, Transaction
from commitlog.model.values import made_fast


def value(decorate: Callable[[type[Any]], type[Any]]) -> type[Any]:
    @dataclass(frozen=True, slots=True)
    class Value:
        name: str
        kind: int = 3
        hidden: bytes = field(default=b"", compare=False, repr=False)

    return decorate(Value)


USUAL, FAST = value(lambda kind: kind), value(made_fast)


def test_a_fast_value_is_made_compared_and_shown_as_usual() -> None:
    assert inspect.signature(FAST) == inspect.signature(USUAL)
    for arguments, named in ((("a",), {}), (("a", 4), {"hidden": b"x"}), ((), {"name": "b"})):
        fast, usual = FAST(*arguments, **named), USUAL(*arguments, **named)
        assert type(fast) is FAST
        assert repr(fast) == repr(usual)
        assert hash(fast) == hash(usual)
        assert astuple(fast) == astuple(usual)
    assert FAST("a", hidden=b"x") == FAST("a")
    with pytest.raises(TypeError, match="name"):
        FAST()


def test_nothing_of_it_can_be_changed_and_it_is_copied_as_usual() -> None:
    outcome = Outcome(1, "id", 2, Status.COMMITTED, observed=(Observation("a", 1),))
    with pytest.raises(FrozenInstanceError):
        outcome.sequence = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del outcome.sequence
    assert replace(outcome, sequence=2).sequence == 2
    assert pickle.loads(pickle.dumps(outcome)) == copy.deepcopy(outcome) == outcome
    assert repr(Transaction("id", ())).startswith("Transaction(transaction_id='id'")


@dataclass(frozen=True, slots=True)
class Listing:
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Checked:
    name: str

    def __post_init__(self) -> None:
        raise AssertionError


@dataclass(frozen=True, slots=True)
class Private:
    _kind: str


@pytest.mark.parametrize("kind", [Listing, Checked, Private])
def test_what_is_more_than_its_fields_is_refused(kind: type[Any]) -> None:
    with pytest.raises(TypeError, match=f"{kind.__name__} isn't made of its fields alone"):
        made_fast(kind)
