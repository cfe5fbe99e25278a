"""Lance's deletion files: which rows of a fragment are deleted.

There are two formats, told apart by the name: `.arrow`, an Arrow IPC file with one column of row
offsets, and `.bin`, a portable Roaring bitmap. Both are read here; the second is written, by
`core.manifest.deletion_vectors`, for its bytes follow from the rows alone.
"""

from __future__ import annotations

import pyarrow as pa
from pyroaring import BitMap

from commitlog.codecs.arrow_claims import claimed_bytes
from commitlog.core.decisions import Found
from commitlog.core.manifest.roaring import from_portable
from commitlog.errors import CommitLogError, UnsupportedFormat
from commitlog.lancepb.table_pb2 import DeletionFile
from commitlog.model.records import Observation

_HERE = pa.ipc.IpcReadOptions(use_threads=False)
"""Such files are small: to wake another thread of Arrow's takes longer than to read one."""


COMPRESSION_MAX = 64
"""Of an Arrow file whose rows are different, at most: those of zstd's highest level have 7."""


def decode_deletion_file(data: bytes, file_type: DeletionFile.DeletionFileType) -> BitMap:
    """Return the deleted rows' offsets."""
    if file_type == DeletionFile.BITMAP:
        return from_portable(data)
    if file_type == DeletionFile.ARROW_ARRAY:
        return _decode_arrow(data)
    raise UnsupportedFormat(f"deletion file type {file_type}")


def found_deletions(path: str, data: bytes) -> Found:
    """Return what a look at a deletion file finds: its rows, or why it can't be read."""
    observation = Observation.of(path, data)
    is_arrow = path.endswith(".arrow")
    file_type = DeletionFile.ARROW_ARRAY if is_arrow else DeletionFile.BITMAP
    try:
        return Found(observation, vector=decode_deletion_file(data, file_type))
    except CommitLogError as error:
        return Found(observation, error=str(error))


def _decode_arrow(data: bytes) -> BitMap:
    try:
        with pa.ipc.open_file(pa.BufferReader(data), options=_HERE) as reader:
            kinds = [field.type for field in reader.schema]
            if kinds not in ([pa.uint32()], [pa.int32()]):
                raise UnsupportedFormat(f"a deletion file has the columns {reader.schema}")
            if (claimed := claimed_bytes(data)) > len(data) * COMPRESSION_MAX:
                raise UnsupportedFormat(
                    f"a deletion file of {len(data)} bytes claims to hold {claimed}: it has rows"
                    " many times"
                )
            table = reader.read_all()
        table.validate()
        if table.column(0).null_count:
            raise UnsupportedFormat(f"a deletion file has the columns {table.schema} with nulls")
        rows = BitMap()
        for chunk in table.column(0).chunks:
            rows |= BitMap(chunk.cast(pa.uint32()).to_numpy())
    except (pa.ArrowException, OSError, ValueError) as error:
        # The bytes are in memory, so an OSError says nothing about the store that they came from.
        raise UnsupportedFormat("a deletion file is not an Arrow IPC file") from error
    return rows
