"""Which files an Iceberg table has: read from its manifest lists and manifests.

Only the paths are of interest here, so any version of the two schemas will do, and what else they
hold is not looked at.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import fastavro

from commitlog.codecs.avro_bounds import check_avro
from commitlog.errors import UnsupportedFormat
from commitlog.model.limits import ICEBERG_METADATA_BYTES_MAX


def manifest_paths(manifest_list: bytes) -> list[str]:
    """Return the manifests that a manifest list names; UnsupportedFormat if it isn't one."""
    return list(_paths(manifest_list, lambda record: record["manifest_path"]))


def data_paths(manifest: bytes) -> list[str]:
    """Return the data and delete files that a manifest names; UnsupportedFormat if it isn't one."""
    return list(_paths(manifest, lambda record: record["data_file"]["file_path"]))


def _paths(data: bytes, path_of: Callable[[Any], Any]) -> Iterator[str]:
    check_avro(data, ICEBERG_METADATA_BYTES_MAX)
    try:
        for record in fastavro.reader(io.BytesIO(data)):
            yield str(path_of(record))
    except Exception as error:  # fastavro raises whatever broken bytes lead it to
        raise UnsupportedFormat(f"not a manifest of Iceberg: {error}") from error
