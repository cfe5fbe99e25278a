"""A committer's checkpoints in a backup: they spare a restored log being read from its beginning.

They are taken before the log's end is looked for, so the backup goes further than they do. A
checkpoint's files are named by what is in them, and so are the heads here: nothing else needs to
list them. What is restored takes the newest one that isn't beyond it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from commitlog.adapters.storage import sha256_of, store_for
from commitlog.errors import CorruptLog, UnsupportedFormat, WrongLog
from commitlog.ports import Log
from consumers.partition.checkpoints.checkpoint import Checkpoints
from consumers.partition.checkpoints.checkpoint_heads import (
    FORMATS,
    HEAD,
    body_of,
    folder_of,
    named_files,
    read_head,
    read_named,
)
from consumers.partition.checkpoints.checkpoint_proof import check_log_holds
from consumers.partition.files.folders import DiskFolder, Folder, break_seal
from consumers.tools.backup.cut import RestorePoint
from consumers.tools.backup.saved import BadBackup, Store, damaged, part, read_whole, write_checked

FOLDER = "checkpoints"
_HEADS = "heads"
_TRIES = 5
"""A committer replaces its checkpoint every half minute; copying one takes less."""


def save_checkpoints(place: str, root: Path | None, partitions: int) -> int:
    """Copy the newest checkpoint of each partition in a root; return the files that were new."""
    if root is None:
        return 0
    target, count = part(place, FOLDER), 0
    for number in range(partitions):
        source = DiskFolder(folder_of(root, number))
        for _ in range(_TRIES):
            head = read_head(source, HEAD)
            if head is None:
                break
            body = body_of(source, (HEAD, head))
            try:
                count += sum(
                    _save_part(source, head, target, f"{number}", *one) for one in named_files(body)
                )
            except FileNotFoundError:
                continue  # it was replaced meanwhile
            name = f"{body['chain']['sequence']:020}-{sha256_of(head)}.json"
            path = f"{number}/{_HEADS}/{name}"
            if target.size(path) < 0:
                write_checked(target, path, head)
                count += 1
            break
    return count


def put_back(
    place: str, root: Path, log: Log, ends: Mapping[int, RestorePoint], damage: list[str]
) -> int:
    """Put back each partition's newest checkpoint by where it was cut; return of how many.

    One that isn't this log's is left out, and so is one of which a file isn't what was written,
    which is added to `damage`: the log has everything that a checkpoint says.
    """
    source, count = store_for(place), 0
    for number, end in ends.items():
        target = store_for(str(root / FOLDER / str(number)))
        try:
            head = _newest(source, number, end)
            if head is None:
                continue
            for name, sha256, _ in named_files(head):
                target.write(name, read_whole(source, f"{FOLDER}/{number}/{name}", sha256))
        except BadBackup as error:
            damage.append(f"{error}, so the log is read from its beginning once")
            continue
        checkpoints = Checkpoints(root, log.identity(), log.genesis(number))
        try:
            checkpoints.take_over(head)
            saved = checkpoints.load()
            assert saved is not None
            check_log_holds(log, number, saved)
        except (CorruptLog, UnsupportedFormat, WrongLog):
            target.delete(HEAD)
            continue
        count += 1
    return count


def damage(place: str, partitions: int) -> Iterator[BadBackup]:
    """Read all checkpoints; yield what is wrong with each file that is gone or damaged."""
    source = store_for(place)
    for number in range(partitions):
        parts: set[tuple[str, str]] = set()
        for name in sorted(source.names(f"{FOLDER}/{number}/{_HEADS}")):
            try:
                head = _read_head(source, number, name)
                if head["format"] > FORMATS[HEAD]:
                    raise BadBackup(
                        f"{FOLDER}/{number}/{_HEADS}/{name} has format {head['format']}, and this"
                        f" program reads {FORMATS[HEAD]}: check the backup with the program that"
                        " made it"
                    )
                parts |= {one[:2] for one in named_files(head)}
            except BadBackup as error:
                yield error
        for name, sha256 in sorted(parts):
            try:
                read_whole(source, f"{FOLDER}/{number}/{name}", sha256)
            except BadBackup as error:
                yield error


def _read_head(source: Store, number: int, name: str) -> dict[str, Any]:
    """Return what a head says; raise BadBackup if it isn't what a committer wrote."""
    path = f"{FOLDER}/{number}/{_HEADS}/{name}"
    data = source.read(path)
    try:
        body: dict[str, Any] = json.loads(data)
    except ValueError:
        raise damaged(path) from None
    # Older programs copied one that was damaged, under the hash of what it was by then.
    if not name.endswith(f"-{sha256_of(data)}.json") or not break_seal(body):
        raise damaged(path)
    return body


def _newest(source: Store, number: int, end: RestorePoint) -> dict[str, Any] | None:
    """Return the newest head that isn't beyond what is restored, and that this program reads."""
    for name in sorted(source.names(f"{FOLDER}/{number}/{_HEADS}"), reverse=True):
        if int(name.partition("-")[0]) > end.sequence:
            continue
        head = _read_head(source, number, name)
        if head["format"] == FORMATS[HEAD] and head["outcomes_position"] <= end.outcomes_end:
            return head
    return None


def _save_part(
    source: Folder, head: bytes, target: Store, folder: str, name: str, sha256: str, size: int
) -> bool:
    """Copy a file unless it is there; return True if it was copied."""
    if target.size(f"{folder}/{name}") == size:
        return False
    write_checked(target, f"{folder}/{name}", read_named(source, (HEAD, head), name, sha256))
    return True
