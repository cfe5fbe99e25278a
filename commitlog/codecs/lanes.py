"""Which lane runs: machine code for records where the set-up or the wheel brought it, else Python.

Python is the reference. Machine code does the same or leaves a value to it, so no byte and no
decision tells which lane ran. COMMITLOG_LANE=python chooses Python for a process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from commitlog.errors import InvalidRequest

if TYPE_CHECKING:
    from commitlog.codecs._native import AppendColumns, AppendHead, Appends, Chain, Codec

AppendedFiles = list[tuple[str, int, list[int]]]
"""Each file's path, size in bytes (0: unknown), and ids of fields."""
EncodedAppend = tuple[bytes, int, int, AppendedFiles]
"""A message, the rows and bytes that it adds, and its files."""
Around = tuple[bytes, bytes, bytes, bytes]
"""What the record of an append has before its id, its time and its read version, and behind the
message."""
PlainFragment = tuple[int, tuple[Any, ...], bytes, tuple[tuple[str, int], ...]]
"""Rows, the layout of the files, the fragment's bytes without an id, each file's path and size."""
PlainAppend = tuple[int, str, tuple[PlainFragment, ...]]
"""The version that was read, the transaction's uuid, the fragments."""

VARIABLE = "COMMITLOG_LANE"
INTERFACE = 9
"""Of the module that this program can use: one that a former set-up left may be another."""
PYTHON, NATIVE = "python", "native"


def chosen() -> str:
    """Return what the environment says; InvalidRequest if that is no lane."""
    lane = os.environ.get(VARIABLE, "")
    if lane not in ("", PYTHON, NATIVE):
        raise InvalidRequest(
            f"{VARIABLE} is {lane!r}",
            field=VARIABLE,
            value=lane,
            advice=f"Set it to {PYTHON!r} or {NATIVE!r}, or leave it unset",
        )
    return lane


def _found() -> Any:
    if chosen() == PYTHON:
        return None
    try:
        import commitlog.codecs._native as _native

        if _native.INTERFACE == INTERFACE:
            return _native
    except ImportError:  # built without a compiler, or for another Python
        pass
    if chosen() == NATIVE:
        raise InvalidRequest(
            f"{VARIABLE} is {NATIVE!r}, and there is no machine code for this program here",
            field=VARIABLE,
            value=NATIVE,
            advice="Install a C compiler and set the project up again, or leave the variable unset",
        )
    return None


_module = _found()
CODEC: type[Codec] | None = _module and _module.Codec
"""What reads and writes records in machine code; None where Python does it."""
CHAIN: type[Chain] | None = _module and _module.Chain
"""What follows the chain of hashes in machine code; None where Python does it."""

APPENDS: type[Appends] | None = _module and _module.Appends
"""What decides plain appends again in machine code; None where Python does it."""
APPEND_HEAD: type[AppendHead] | None = _module and _module.AppendHead
"""A table as `APPENDS` finds and leaves it."""

APPEND_COLUMNS: type[AppendColumns] | None = _module and _module.AppendColumns
"""What makes the version index's columns in machine code; None where Python makes its rows."""

ENCODE_APPEND: Callable[[Any, int, str], EncodedAppend | None] | None = (
    _module and _module.encode_append
)
"""What makes the message of an append in machine code; None where Python does it."""

ENCODE_APPEND_RECORD: (
    Callable[[Any, int, str, int, Around], tuple[bytes, AppendedFiles] | None] | None
) = _module and _module.encode_append_record
"""What makes the record of an append in machine code; None where Python makes the values first."""

READ_PLAIN_APPEND: Callable[[bytes], PlainAppend | None] | None = (
    _module and _module.read_plain_append
)
"""What reads a plain append in machine code; None where Python does it."""

IS_PLAIN_FRAGMENT: Callable[[bytes], bool] | None = _module and _module.is_plain_fragment
"""What sees that a fragment asks for no feature, in machine code; of False Python makes sure."""


TO_JSON: Callable[[Any], bytes | None] | None = _module and _module.to_json
"""What writes canonical JSON in machine code; None where Python does it."""

READ_FRAGMENTS: Callable[[bytes], list[tuple[int, bytes]] | None] | None = (
    _module and _module.read_fragments
)
"""What reads a checkpoint's fragments by id in machine code; None where Python does it."""

READ_PAIRS: Callable[[bytes, int], list[tuple[str, str]] | None] | None = (
    _module and _module.read_pairs
)
"""What reads pairs of texts from JSON in machine code; None where Python does it."""


def lane() -> str:
    """Return the lane that reads and writes records here: `native` or `python`."""
    return PYTHON if CODEC is None else NATIVE
