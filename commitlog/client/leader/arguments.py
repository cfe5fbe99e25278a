"""What callers hand over, checked by the types that public methods name.

Most programs aren't checked by a type checker. A wrong argument would surface somewhere inside, as
an error of Python's that names neither the argument nor what to give instead.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from datetime import timedelta
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

from commitlog.client.leader.row_tickets import check_rows_wait
from commitlog.client.leader.tickets import check_wait, deadline_after, until
from commitlog.codecs.record_ids import id_problem
from commitlog.errors import (
    InvalidRequest,
    InvalidTransaction,
    shown_text,
    without_build_paths,
)
from commitlog.model.operations import KeyHashes
from commitlog.model.records import Application, Expect
from commitlog.model.table import parse_table_id

if TYPE_CHECKING:
    import lance

F = TypeVar("F", bound=Callable[..., Any])
K = TypeVar("K", bound=type)
Check = Callable[[str, Any], None]
"""(an argument's name, its value): raises InvalidRequest for one that can't be."""

_SHOWN_MAX = 80
_CHECKED: set[Callable[..., Any]] = set()
_OF_A_SIGNAL = re.compile(
    r"External error: (?:KeyboardInterrupt|(?P<exit>SystemExit): (?P<code>.*))"
)
OF_ARGUMENTS = (
    *("Append with different schema", "Field '", "Invalid user input", "Not supported", "Only "),
    "LanceError(Index): Index name '",
    "LanceError(Schema): Duplicate field name",
    "Task was aborted",  # it panicked over them
)
"""How an OSError or RuntimeError of Lance's begins if an argument is wrong, not the store. Only the
beginning counts: the rest may quote the caller's names."""
_REFUSALS = (
    AttributeError,
    LookupError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    TypeError,
    ValueError,
)
_INTEGER_MAX = 2**63 - 1
_COLLECTIONS = (tuple, list, Collection)
"""Concrete types first: a check against an abstract class runs Python code."""


def refusal(
    name: str, value: object, wanted: str, kind: type[InvalidRequest] = InvalidRequest
) -> InvalidRequest:
    """Return the error of an argument that has a wrong type."""
    shown = repr(value)
    if len(shown) > _SHOWN_MAX:
        shown = f"{shown[:_SHOWN_MAX]}…"
    return kind(f"{name} cannot be {shown}", field=name, value=value, advice=wanted)


def check_options(options: Iterable[str], known: Collection[str]) -> None:
    """Raise InvalidRequest for an option that doesn't exist."""
    for name in options:
        if name not in known:
            raise InvalidRequest(
                f"there is no option {name!r}",
                field=name,
                advice=f"The options are {', '.join(known)}",
            )


def _is(
    holds: Callable[[Any], bool], wanted: str, kind: type[InvalidRequest] = InvalidRequest
) -> Check:
    def check(name: str, value: Any) -> None:
        if not holds(value):
            raise refusal(name, value, wanted, kind)

    return check


def _or_none(check: Check) -> Check:
    return lambda name, value: None if value is None else check(name, value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
    is_listed = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
    return is_listed and all(map(_is_text, value))


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, Integral)) and not isinstance(value, bool)


def _mapping_of(holds: Callable[[Any], bool], wanted: str) -> Check:
    """Check a mapping; its values are never shown, since some are secrets."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, Mapping):
            kind = type(value).__name__
            raise InvalidRequest(
                f"{name} cannot be of type {kind}", field=name, value=kind, advice=wanted
            )
        for key, one in value.items():
            if not (isinstance(key, str) and holds(one)):
                raise InvalidRequest(
                    f"{name} has a value of type {type(one).__name__} for {key!r}",
                    field=name,
                    value=key,
                    advice=wanted,
                )

    return check


def _transaction_id(name: str, value: Any) -> None:
    if value is None:
        return
    _TEXT(name, value)
    if value and (problem := id_problem(value)):
        raise InvalidTransaction(
            problem, field=name, value=value, advice="Give a UUID, for example"
        )


def _known_transaction_id(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise refusal(name, value, "Give the id that a ticket or an outcome names")
    _transaction_id(name, value)


def _table(name: str, value: Any) -> None:
    parse_table_id(value)


def _seconds(name: str, value: Any) -> None:
    deadline_after(value, name)


def _pairs(name: str, value: Any) -> None:
    if not isinstance(value, tuple | list) and isinstance(value, Mapping):
        _PROPERTIES(name, value)
    elif not (isinstance(value, _COLLECTIONS) and all(_is_pair(one) for one in value)):
        raise refusal(name, value, "Give a mapping of texts to texts")


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(map(_is_text, value))


def _application(name: str, value: Any) -> None:
    if not isinstance(value, Application):
        raise refusal(name, value, "Give an Application")
    _fields(name, value)


def _expectation(name: str, value: Any) -> None:
    if not isinstance(value, get_args(Expect)):
        kinds = ", ".join(kind.__name__ for kind in get_args(Expect))
        raise refusal(name, value, f"Give one of {kinds}")
    _fields(name, value)


def _fields(name: str, value: Any) -> None:
    for one in fields(value):
        _CHECKS[str(one.type)](f"{name}.{one.name}", getattr(value, one.name))


def _expectations(name: str, value: Any) -> None:
    if isinstance(value, str | bytes) or not isinstance(value, _COLLECTIONS):
        raise refusal(name, value, "Give a list of expectations")
    for one in value:
        _expectation(name, one)


_TEXT = _is(_is_text, "Give text")
_TEXTS = _is(_are_texts, "Give a list of names")
_NAMES = _is(
    lambda value: _is_text(value) or _are_texts(value),
    "Give a name, or a list of names",
    InvalidTransaction,
)
_PATH = _is(lambda value: isinstance(value, str | os.PathLike), "Give a path as text")
_WHOLE = _is(_is_whole, "Give a whole number")
_COUNT = _is(
    lambda value: _is_whole(value) and 0 <= value <= _INTEGER_MAX, "Give a whole number from 0 on"
)
_VERSION = _is(
    lambda value: isinstance(value, int) and not isinstance(value, bool),
    "Give a version's number; for a time or a tag of the log, call log.snapshot(when).open(table);"
    " for a tag of the table, open the head and call checkout_version",
)
_PROPERTIES = _mapping_of(_is_text, "Give a mapping of texts to texts")
_DURATION = _is(lambda value: isinstance(value, timedelta), "Give a datetime.timedelta")

_CHECKS: dict[str, Check] = {
    "Application | None": _or_none(_application),
    "Expect": _expectation,
    "KeyHashes | None": _is(lambda value: isinstance(value, KeyHashes | None), "Give KeyHashes"),
    "Mapping[str, Any]": _mapping_of(lambda value: True, "Give a mapping with texts as keys"),
    "Mapping[str, str | None]": _mapping_of(
        lambda value: isinstance(value, str | None), "Give a mapping of texts to texts or None"
    ),
    "Mapping[str, str] | None": _or_none(_PROPERTIES),
    "Pairs": _or_none(_pairs),
    "RowsWait": lambda name, value: check_rows_wait(value),
    "Sequence[Expect]": _expectations,
    "Sequence[object]": _is(
        lambda value: isinstance(value, Collection) and not isinstance(value, str | bytes),
        "Give a list",
    ),
    "Sequence[str] | None": _or_none(_TEXTS),
    "SchemaMetadata | None": _or_none(
        _is(
            lambda value: isinstance(value, tuple) and all(map(_is_pair, value)),
            "Give pairs of text and bytes",
        )
    ),
    "TableId": _table,
    "TableName | Sequence[TableName]": _is(
        lambda value: isinstance(value, Collection) and not isinstance(value, bytes),
        "Give a table's name, or a list of names",
    ),
    "Wait": lambda name, value: check_wait(value),
    "bool": _is(lambda value: isinstance(value, bool), "Give True or False"),
    "bytes": _is(lambda value: isinstance(value, bytes), "Give bytes"),
    "float": _seconds,
    "float | None": _or_none(_seconds),
    "int": _COUNT,
    "int | None": _or_none(_WHOLE),
    "list[str]": _TEXTS,
    "str": _TEXT,
    "str | None": _or_none(_TEXT),
    "str | Sequence[str]": _NAMES,
    "str | Sequence[str] | None": _or_none(_NAMES),
    "str | list[str]": _NAMES,
    "str | os.PathLike[str]": _PATH,
    "str | os.PathLike[str] | None": _or_none(_PATH),
    "timedelta | None": _or_none(_DURATION),
    "transaction_id": _transaction_id,
    "transaction_id: str": _known_transaction_id,
    "version": _or_none(_VERSION),
}
"""By a parameter's annotation, or by its name where that says more. An argument that has no check
here is checked where it is used."""


@contextlib.contextmanager
def refused(message: str, field: str, value: object, advice: str) -> Iterator[None]:
    """Turn a library's error about wrong arguments into InvalidTransaction.

    An error that the caller's own function raised passes through.
    """
    try:
        yield
    except _REFUSALS as error:
        heed_interrupt(error)
        said = lances_words(error)
        is_lances = isinstance(error, OSError) or type(error) is RuntimeError
        is_of_arguments = said.startswith(OF_ARGUMENTS)
        if is_lances and (not is_of_arguments or "contains NULL values" in said):
            raise
        if callable(value) and not is_lances:
            raise
        raise InvalidTransaction(
            f"{message}: {said}",
            field=field,
            value=value,
            advice=advice,
        ) from error


def lances_words(error: BaseException) -> str:
    """Return what Lance said, without its sources' places, for a sentence that goes on.

    It may repeat all of a statement, in several forms.
    """
    said: object = error
    while isinstance(said, KeyError | NotImplementedError | tuple):
        # The text of a KeyError has quotes; pylance gives some errors a tuple with their text.
        parts = said.args if isinstance(said, Exception) else said
        said = parts[0] if parts else ""
    return shown_text(without_build_paths(str(said)).rstrip(". "))


def heed_interrupt(error: Exception) -> None:
    """Raise what a signal's handler raised, which Lance put into an error that blames its caller.

    That is KeyboardInterrupt, or SystemExit, as of a program that ends by SIGTERM.
    """
    found = _OF_A_SIGNAL.search(str(error))
    if found is None:
        return
    if not found["exit"]:
        raise KeyboardInterrupt from error
    code = found["code"].strip()
    is_number = code.removeprefix("-").isdigit()
    raise SystemExit(int(code) if is_number else None if code == "None" else code) from error


def has_columns(dataset: lance.LanceDataset) -> str:
    """Return advice that lists a table's columns, for a caller who named others."""
    return f"The columns are {', '.join(dataset.schema.names)}"


@functools.cache
def _checks(function: Callable[..., Any]) -> dict[str, Check | None]:
    return {
        name: _CHECKS.get(f"{name}: {one.annotation}")
        or _CHECKS.get(name)
        or _CHECKS.get(str(one.annotation))
        for name, one in inspect.signature(function).parameters.items()
    }


def check_arguments(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Check arguments of a function by the types that it names."""
    checks = _checks(function)
    for name, value in given.items():
        if (check := checks.get(name)) is not None:
            check(name, value)


def checked(function: F) -> F:
    """Check a function's arguments, before it does anything, by the types that it names.

    A `timeout` among them holds for all that the function waits for. A constructor waits for
    nothing.
    """
    checks, by_position = _checks(function), []
    parameters = inspect.signature(function).parameters
    waits = "timeout" in parameters and function.__name__ != "__init__"
    timeout = parameters["timeout"].default if waits else None
    place = _INTEGER_MAX
    for at, (name, one) in enumerate(parameters.items()):
        if one.kind is not one.POSITIONAL_OR_KEYWORD:
            break
        if name == "timeout":
            place = at
        if (check := checks[name]) is not None:
            by_position.append((at, name, check))
    if not any(checks.values()):
        return function

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        for at, name, check in by_position:
            if at < len(arguments):
                check(name, arguments[at])
        check_arguments(function, options)
        if timeout is None:
            return function(*arguments, **options)
        given = arguments[place] if place < len(arguments) else options.get("timeout", timeout)
        with until(deadline_after(given)):
            return function(*arguments, **options)

    return cast(F, call)


def checks_arguments(kind: K) -> K:
    """Check the arguments of a class's public methods, inherited ones too.

    Those that each commit goes through are marked with `checks_itself`.
    """
    for name in dir(kind):
        method = inspect.getattr_static(kind, name)
        if inspect.isfunction(method) and not name.startswith("_") and method not in _CHECKED:
            # Python's own TypeError names what was called, not the base that it is from.
            method.__qualname__ = f"{kind.__name__}.{name}"
            setattr(kind, name, checked(method))
    return kind


def checks_itself(function: F) -> F:
    """Mark a method that checks its own arguments where that costs nothing."""
    _CHECKED.add(function)
    return function
