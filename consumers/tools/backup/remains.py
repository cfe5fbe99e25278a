"""What a lost log had beyond its backup, as far as the remains of its root show.

The log itself is gone, with its broker's disk. Its last decisions have left traces: rows in
the version index, manifests and metadata files among the tables, and a checkpoint. Whatever these
name was committed, and isn't in the backup. Nothing is changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from commitlog.adapters.places import is_moved, plain
from commitlog.adapters.storage import LocalStore, store_for
from commitlog.codecs.manifest_file import VERSIONS_DIRECTORY, decode_manifest, parse_manifest_name
from commitlog.errors import CommitLogError
from commitlog.lancepb.transaction_pb2 import Transaction
from consumers import history
from consumers.partition.checkpoints.checkpoint_heads import head_path
from consumers.runtime.config import ConfigurationError
from consumers.tools.backup.cut import Heads
from consumers.tools.backup.saved import Store

INDEX = (
    "SELECT partition, sequence, transaction_id, tables, versions, time FROM transactions"
    " WHERE status = 'committed' AND answers IS NULL AND partition = ? AND sequence > ?"
    " ORDER BY sequence"
)
_INCARNATION = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(\.\w+)?$")
PLACES = "SELECT table_name, location AS place FROM tables WHERE location <> ''"


@dataclass(frozen=True, slots=True)
class Lost:
    """One version that was committed and isn't in the backup."""

    table: str
    """Its name, or the one derived from its folder if only files show it."""
    version: int = 0
    """0: it made none, or only a file shows it."""
    transaction_id: str = ""
    """Empty if nothing names it."""
    partition: int = -1
    position: int = 0
    """0: only a file shows it."""
    at: str = ""
    file: str = ""
    """The manifest or metadata file among the remains that has its rows."""


@dataclass(slots=True)
class Remains:
    """The remains of a log."""

    lost: list[Lost] = field(default_factory=list)
    positions: dict[int, int] = field(default_factory=dict)
    """The last position of each partition that the remains show."""
    unread: list[str] = field(default_factory=list)
    """What couldn't be read, and why: it may have more."""


def look_at(place: str, heads: Heads, ends: Mapping[int, int], tables_root: str) -> Remains:
    """Return what a root, or a place of tables, has beyond a backup that ends at `ends`.

    Raises ConfigurationError if there is nothing at all.
    """
    found = Remains()
    root = None if "://" in place else Path(place)
    if root is not None and not (root.is_dir() and any(root.iterdir())):
        raise ConfigurationError(
            f"--remains {place} has nothing: name a folder with what was saved"
        )
    is_root = root is not None and ((root / "tables").is_dir() or (root / "kafka").exists())
    rows: dict[tuple[str, int], Lost] = {}
    names = dict(heads.names)
    if is_root and root is not None:
        _checkpoints(root, ends, found)
        rows = _index(root, ends, found, names)
    tables, below = f"{place}/tables" if is_root else place, plain(tables_root)
    for one in _files(tables, heads, tables_root, found):
        name = names.get(f"{below}/{one.table}") or _name_of(one.table)
        row = rows.get((name, one.version))
        made = rows.get((name, 0))
        if row is None and made is not None and made.transaction_id == one.transaction_id:
            row = rows.pop((name, 0))  # the index counts no version for making a table
        rows[name, one.version] = replace(
            row or one, table=name, version=one.version, file=one.file
        )
    found.lost = sorted(
        rows.values(), key=lambda one: (one.partition, one.position, one.table, one.version)
    )
    return found


def _name_of(folder: str) -> str:
    """Derive a table's name from its folder, which was derived from the name."""
    parts = [part.removesuffix(".ns") for part in folder.split("/")]
    return "$".join([*parts[:-1], _INCARNATION.sub("", parts[-1])])


def _checkpoints(root: Path, ends: Mapping[int, int], found: Remains) -> None:
    for partition in ends:
        path = head_path(root, partition)
        try:
            has = int(json.loads(path.read_bytes())["chain"]["sequence"])
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError) as error:
            found.unread.append(f"{path}: {error}")
            continue
        found.positions[partition] = max(has, found.positions.get(partition, 0))


def _index(
    root: Path, ends: Mapping[int, int], found: Remains, names: dict[str, str]
) -> dict[tuple[str, int], Lost]:
    """Return what the version index has, by table and version; add to the tables' names."""
    rows: dict[tuple[str, int], Lost] = {}
    try:
        for row in history.status(root):
            partition, has = int(str(row["partition"])), int(str(row["sequence"]))
            found.positions[partition] = max(has, found.positions.get(partition, 0))
        for row in history.query(root, PLACES):
            names[plain(str(row["place"]))] = str(row["table_name"])
        for partition, end in ends.items():
            for row in history.query(root, INDEX, [partition, end]):
                tables: Any = row["tables"] or [""]
                versions: Any = row["versions"] or [0]
                for table, version in zip(tables, versions, strict=False):
                    one = Lost(
                        str(table),
                        int(version or 0),
                        transaction_id=str(row["transaction_id"]),
                        partition=partition,
                        position=int(str(row["sequence"])),
                        at=str(row["time"]),
                    )
                    rows[one.table, one.version] = one
    except CommitLogError as error:
        found.unread.append(str(error))
    return rows


def _files(place: str, heads: Heads, tables_root: str, found: Remains) -> Iterator[Lost]:
    """Yield the manifests and metadata files that the backup's outcomes don't have."""
    root = plain(tables_root)
    # What is looked at is the old place, even if that is bound to where the backup was put.
    store: Store = LocalStore(Path(place)) if "://" not in place else store_for(place)
    if "://" in place and is_moved(place):
        found.unread.append(f"{place}: --places binds it to another place")
        return

    def unlisted(error: OSError) -> None:
        found.unread.append(f"{error.filename}: {error.strerror}")

    for path in store.walk(on_error=unlisted) if isinstance(store, LocalStore) else store.walk():
        folder, _, name = path.rpartition("/")
        table, _, kind = folder.rpartition("/")
        if kind == "metadata" and name.endswith(".metadata.json"):
            if f"{root}/{path}" not in heads.metadata:
                yield Lost(table, file=f"{place}/{path}")
            continue
        parsed = parse_manifest_name(name) if kind == VERSIONS_DIRECTORY else None
        if parsed is None or parsed.is_detached or parsed.staged_by:
            continue
        if parsed.version > heads.versions.get(f"{root}/{table}", 0):
            yield Lost(table, parsed.version, _made_by(store, path, found), file=f"{place}/{path}")


def _made_by(store: Store, path: str, found: Remains) -> str:
    """Return the id of the transaction that made a manifest, empty if it doesn't say."""
    try:
        state, message = decode_manifest(store.read(path))
    except (CommitLogError, OSError, ValueError) as error:
        found.unread.append(f"{path}: {error}")
        return ""
    if message is not None:
        return Transaction.FromString(message).uuid
    return state.transaction_file.removesuffix(".txn").partition("-")[2]
