"""Which files a message of Lance's names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol
from uuid import UUID

from google.protobuf.message import Message

from commitlog.core.manifest.deletion_vectors import deletion_file_path
from commitlog.lancepb.table_pb2 import DataFile, DataFragment, DeletionFile, IndexMetadata

DATA, INDICES = "data", "_indices"


class Placing(Protocol):
    """A table that knows where its files are."""

    def place(self, path: str, base_id: int | None = None, folder: str = "") -> str:
        """Return the whole path of a file."""


def paths_in(table: Placing, message: Message) -> Iterator[str]:
    """Yield the files that a message of Lance's names: of data, deletions and indices."""
    if isinstance(message, DataFile):
        base = message.base_id if message.HasField("base_id") else None
        yield table.place(message.path, base, DATA)
        return
    if isinstance(message, IndexMetadata):
        yield from index_folder(table, message)
        return
    if isinstance(message, DataFragment) and message.HasField("deletion_file"):
        deletion: DeletionFile = message.deletion_file
        base = deletion.base_id if deletion.HasField("base_id") else None
        folder, _, name = deletion_file_path(message.id, deletion).partition("/")
        yield table.place(name, base, folder)
    for described, value in message.ListFields():
        if described.message_type is None or described.message_type.GetOptions().map_entry:
            continue
        for inner in value if described.is_repeated else (value,):
            yield from paths_in(table, inner)


def index_folder(table: Placing, index: IndexMetadata) -> Iterator[str]:
    """Yield the folder of an index."""
    base = index.base_id if index.HasField("base_id") else None
    yield table.place(str(UUID(bytes=index.uuid.uuid)), base, INDICES)
