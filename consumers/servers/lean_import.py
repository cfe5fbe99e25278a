"""Imports Lance's namespace library in half of the time.

Its HTTP client has 366 functions that pydantic builds checks for as they are imported. A server
calls none of them, so it goes without these checks and starts a third of a second of CPU earlier,
as does each of its processes for work on rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pydantic


def import_lance_namespace() -> None:
    """Import the library; for a process that doesn't call its HTTP client."""
    build = pydantic.validate_call
    pydantic.validate_call = _unchecked  # type: ignore[assignment]
    try:
        import lance_namespace  # noqa: F401
    finally:
        pydantic.validate_call = build


def _unchecked(function: Callable[..., Any]) -> Callable[..., Any]:
    return function
