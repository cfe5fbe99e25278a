"""What others build on, as a listing: Python names with their signatures, settings, exit codes.

The texts of commands are in tests/golden/help, records in tests/golden, HTTP in /openapi.json.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Iterator
from typing import Any

import commitlog
import commitlog.spark
from commitlog.client.commits.session import TransactionBuilder
from commitlog.client.history.feed import Subscription
from commitlog.client.history.feed_events import FeedEvent
from commitlog.client.history.snapshot import Snapshot
from commitlog.client.leader.row_tickets import RowsOutcome, RowsTicket

RETURNED = (TransactionBuilder, RowsTicket, RowsOutcome, Subscription, FeedEvent, Snapshot)
"""Classes that callers get without importing them."""


def listing() -> str:
    """Return the public surface, one name a line."""
    lines = ["# commitlog"]
    for name in commitlog.__all__:
        lines += _lines(name, getattr(commitlog, name))
    for kind in RETURNED:
        lines += _lines(kind.__name__, kind)
    lines.append("# commitlog.spark")
    for name in commitlog.spark.__all__:
        lines += _lines(name, getattr(commitlog.spark, name))
    from consumers.commands.exit_codes import ExitCode
    from consumers.runtime.config import SETTINGS

    lines.append("# settings")
    lines += sorted(f"{one.variable} = {one.default!r}" for one in SETTINGS)
    lines.append("# exit codes")
    lines += [f"{int(code)} {code.name}" for code in ExitCode]
    return "\n".join(lines) + "\n"


def _lines(name: str, value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        yield f"{name}{_signature(value)}"
        return
    if issubclass(value, enum.Enum):
        yield f"{name}: {', '.join(one.name for one in value)}"
        return
    bases = [base.__name__ for base in value.__bases__ if base is not object]
    is_error = issubclass(value, BaseException)
    yield f"{name}({', '.join(bases)})" if is_error else f"{name}{_signature(value)}"
    fields = (
        {one.name for one in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else ()
    )
    for member in sorted(dir(value)):
        if member.startswith("_") or member in fields:
            continue
        found = inspect.getattr_static(value, member)
        if hasattr(BaseException, member) or _home(value, member).startswith(
            ("pyspark", "builtins")
        ):
            continue
        called = getattr(value, member)
        shown = _signature(called) if callable(called) else ""
        kind = "property " if isinstance(found, property) else ""
        yield f"  {kind}{name}.{member}{shown}"


def _home(kind: type, member: str) -> str:
    """Return the module of the class that has a member."""
    return next(one.__module__ for one in kind.__mro__ if member in vars(one))


def _signature(value: Any) -> str:
    """Return a signature with its annotations as they are written."""
    found, is_keyword = inspect.signature(value), False
    parts: list[str] = []
    for one in found.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not is_keyword:
            is_keyword = True
            if not any(part.startswith("*") for part in parts):
                parts.append("*")
        stars = "*" * (one.kind is one.VAR_POSITIONAL) + "**" * (one.kind is one.VAR_KEYWORD)
        default = "" if one.default is one.empty else f" = {_default(one.default)}"
        kind = "" if one.annotation is one.empty else f": {_written(one.annotation)}"
        parts.append(f"{stars}{one.name}{kind}{default}")
    returned = found.return_annotation
    end = "" if returned is found.empty else f" -> {_written(returned)}"
    return f"({', '.join(parts)}){end}"


def _written(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation
    return str(getattr(annotation, "__name__", annotation))


def _default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return value.name
    return value.__name__ if inspect.isroutine(value) else repr(value)
