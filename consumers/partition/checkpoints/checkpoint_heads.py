"""The heads of checkpoints: the last one that owes no files, and a newer one that does, if any.

An older program knows `head.json` alone. It continues from there, reading more of the log, and
removes the other one when it saves a checkpoint itself. The parts of both are there until then.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

from commitlog.adapters.storage import sha256_of
from commitlog.errors import CorruptLog
from consumers.partition.files.folders import DiskFolder, Folder, break_seal

HEAD, FORMAT = "head.json", 3
OWING, OWING_FORMAT = "owing.json", 4
"""Of a checkpoint with tables that lacked files."""
FORMATS = {HEAD: FORMAT, OWING: OWING_FORMAT}
_TRIES = 5
"""A committer replaces its checkpoint every half minute; to look through one takes less."""


def folder_of(root: Path, partition: int) -> Path:
    """Return where a partition's checkpoint is."""
    return root / "checkpoints" / str(partition)


def head_path(root: Path, partition: int) -> Path:
    """Return where the head is from which a committer continues, or would be if there were one."""
    folder, found = folder_of(root, partition), None
    with suppress(OSError):  # whoever reads it hears of that
        found = newest_head(DiskFolder(folder))
    return folder / (HEAD if found is None else found[0])


def read_head(folder: Folder, name: str) -> bytes | None:
    """Return a head as it is there, None if it isn't."""
    try:
        return folder.read(name)
    except FileNotFoundError:
        return None


def newest_head(folder: Folder) -> tuple[str, bytes] | None:
    """Return the name and the bytes of the newest head.

    If that is the whole checkpoint's, its writer died before it removed the other one.
    """
    whole, owing = read_head(folder, HEAD), read_head(folder, OWING)
    if owing is None or (whole is not None and _position(whole) >= _position(owing)):
        return None if whole is None else (HEAD, whole)
    return OWING, owing


def body_of(folder: Folder, head: tuple[str, bytes]) -> dict[str, Any]:
    """Return what a head (its name and its bytes) says.

    Raises CorruptLog, which says what to do, if it is damaged or of another format.
    """
    name, encoded = head
    try:
        body = json.loads(encoded)
    except ValueError as error:
        raise unusable(folder, f"{name} is not JSON: {error}", name) from error
    if not isinstance(body, dict) or body.get("format") != FORMATS[name]:
        raise unusable(folder, f"{name} has an unknown format", name)
    if not break_seal(body):
        raise unusable(folder, f"{name} is damaged", name)
    return body


def check_files(root: Path, partition: int) -> None:
    """Raise CorruptLog, which says what to do, if a partition's newest checkpoint is damaged.

    Its head and all its files are read; what is in them isn't.
    """
    folder = DiskFolder(folder_of(root, partition))
    for _ in range(_TRIES):
        if (head := newest_head(folder)) is None:
            return
        with suppress(FileNotFoundError):  # a committer replaced it meanwhile
            body = body_of(folder, head)
            if (whose := body["identity"]["partition"]) != partition:
                raise unusable(folder, f"{head[0]} is of partition {whose}", head[0])
            for name, sha256, _ in named_files(body):
                read_named(folder, head, name, sha256)
            return


def files_of(head: bytes | None) -> set[str]:
    """Return the files that a head names; none if it can't be read."""
    try:
        return {name for name, _, _ in named_files(json.loads(head))} if head else set()
    except (ValueError, KeyError, TypeError, AttributeError):
        return set()


def named_files(body: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Yield the files that a head names, by what it says, with their hashes and sizes."""
    hints, packed = body.get("hints", {}), body.get("packed", {})  # older programs wrote none
    for name, (_, sha256, size) in body["parts"].items():
        yield f"{sha256}.part", sha256, size
        if name in hints:
            yield f"{sha256}.hint", *hints[name]
    for _, _, (sha256, size) in packed.values():  # and its hint is in that file, too
        yield f"{sha256}.part", sha256, size


def read_named(folder: Folder, head: tuple[str, bytes], name: str, sha256: str) -> bytes:
    """Return a file that a head (its name and its bytes) names.

    Raises CorruptLog, which says what to do, if it is missing or damaged; FileNotFoundError if the
    head was replaced meanwhile, and the file removed.
    """
    try:
        data = folder.read(name)
        problem = "is damaged"
    except FileNotFoundError:
        if read_head(folder, head[0]) != head[1]:
            raise
        data, problem = None, "is missing"
    if data is None or sha256_of(data) != sha256:
        raise unusable(folder, f"{name} {problem}", head[0])
    return data


def unusable(folder: Folder, problem: str, head: str) -> CorruptLog:
    """Return the error of a checkpoint that can't be used, and of the name of its head."""
    advice = advice_without(head, folder.names())
    return CorruptLog(f"checkpoint {folder}: {problem}. {advice}")


def advice_without(head: str, names: Collection[str]) -> str:
    """Say what to do if a head can't be used, in a folder with these files."""
    other = HEAD if head == OWING else OWING
    if other in names:
        return f"Delete {head} in this folder; the committer then continues from {other}"
    return "Delete this folder; the committer then reads the log from its beginning"


def _position(head: bytes) -> float:
    """Return how far a head is in the outcomes; one that can't be read is not passed over."""
    try:
        return int(json.loads(head)["outcomes_position"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return inf
