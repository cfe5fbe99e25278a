"""Does a process that gets another one's error get all of it?"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

from commitlog import errors
from commitlog.model.records import Outcome, Status

REFUSED = Outcome(7, "id", 3, Status.RETRYABLE, message="another commit came first")
ARGUMENTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "CommitConflict": (("lost", REFUSED), {}),
    "InvalidRequest": (("no",), {"field": "on", "value": ["id"], "advice": "Give one"}),
    "LogClosed": ((), {}),
    "LogMoved": (("moved", "new:9092", "id"), {}),
    "NoSuchTable": (("no table",), {"hint": "Did you mean a$t?"}),
    "OutcomeUnknown": (("no answer", "id"), {}),
    "Overloaded": (("busy", 1.5), {}),
}
"""Of those whose constructors, or whose bases', take more than a message."""
KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.CommitLogError)
]


def _made(kind: type[errors.CommitLogError]) -> errors.CommitLogError:
    named = next((base.__name__ for base in kind.__mro__ if base.__name__ in ARGUMENTS), None)
    arguments, options = ARGUMENTS.get(str(named), (("it failed",), {}))
    return kind(*arguments, **options)


@pytest.mark.parametrize("send", [lambda one: pickle.loads(pickle.dumps(one)), copy.copy])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_arrives_as_it_was(
    kind: type[errors.CommitLogError], send: Callable[[Any], Any]
) -> None:
    error = _made(kind)
    sent = send(error)
    assert (type(sent), str(sent), vars(sent)) == (kind, str(error), vars(error))


def _raise() -> None:
    raise _made(errors.OutcomeUnknown)


@pytest.mark.slow
def test_a_pool_hands_on_what_its_worker_raised() -> None:
    with (
        ProcessPoolExecutor(1, get_context("spawn")) as pool,
        pytest.raises(errors.OutcomeUnknown, match="no answer") as raised,
    ):
        pool.submit(_raise).result(60)
    assert raised.value.transaction_id == "id"
