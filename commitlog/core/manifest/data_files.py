"""Whether a fragment that a writer brings fits the table it is brought to.

Everything is judged from the manifest alone, as Lance does when it builds one; whether a file
exists and holds what its metadata says is observed elsewhere. A layout (field ids and columns of
a fragment's files) is checked once per schema, because a writer's fragments all look alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from commitlog.core.manifest.header import ManifestHeader
from commitlog.core.manifest.manifest_state import DeltaRefused, NotDirect
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.table_pb2 import DataFile, DataFragment
from commitlog.model.reasons import Phrase

LEGACY_FILE_FORMAT = "0.1"
_FORMAT_OF_FILE = {
    (0, 0): LEGACY_FILE_FORMAT,
    (0, 1): LEGACY_FILE_FORMAT,
    (0, 2): LEGACY_FILE_FORMAT,
    (0, 3): "2.0",
    (2, 0): "2.0",
    (2, 1): "2.1",
    (2, 2): "2.2",
    (2, 3): "2.3",
}
_BLOB_KEY = "lance-encoding:blob"
_EXTENSION_KEY = "ARROW:extension:name"
_BLOB_V2_EXTENSION = b"lance.blob.v2"
_PACKED_KEYS = ("packed", "lance-encoding:packed")
_TRUE = (b"1", b"true", b"on", b"yes", b"y")


def check_new_fragment(header: ManifestHeader, fragment: DataFragment, *, is_current: bool) -> bool:
    """Refuse a fragment that this table cannot hold; return True if it mixes file formats.

    `is_current` says that the writer read this version, so that every field it wrote is known.
    """
    check_rows(fragment)
    files = fragment.files
    if not files:
        raise DeltaRefused("no_data_files", field="files", value=[])
    parts: list[object] = [is_current]
    for data_file in files:
        check_address(header, data_file)
        check_size(data_file)
        parts += (
            data_file.file_major_version,
            data_file.file_minor_version,
            tuple(data_file.fields),
            tuple(data_file.column_indices),
        )
    for overlay in fragment.overlays:
        check_address(header, overlay.data_file)
        check_size(overlay.data_file)
    layout = tuple(parts)
    is_mixed = header.accepted_layouts.get(layout)
    if is_mixed is None:
        is_mixed = header.accepted_layouts[layout] = _check_layout(header, files, is_current)
    return is_mixed


def check_address(header: ManifestHeader, data_file: DataFile) -> None:
    """Refuse a data file whose path leads out of the table and its base paths."""
    if leads_out(data_file.path):
        raise DeltaRefused("path_escapes", field="files.path", value=data_file.path)
    if data_file.HasField("base_id") and data_file.base_id not in header.bases:
        raise DeltaRefused(
            "unknown_base_path", field=place_in(data_file, ".base_id"), value=data_file.base_id
        )


def leads_out(path: str) -> bool:
    """Return True if a data file's path may lead out of the folder of its table, or its base."""
    return (
        not path
        or "\\" in path
        or "\0" in path
        or path in {".", ".."}
        or ("/" in path and not {"", ".", ".."}.isdisjoint(path.split("/")))
    )


def check_size(data_file: DataFile) -> None:
    """Leave a file of unknown size to pylance, which looks."""
    if not data_file.file_size_bytes:
        raise NotDirect(f"the size of data file {data_file.path!r} is not given")


def data_files(fragment: DataFragment) -> Iterator[DataFile]:
    """Yield the files of a fragment's columns, those that overlay others too."""
    return chain(fragment.files, (overlay.data_file for overlay in fragment.overlays))


def check_fragment(header: ManifestHeader, fragment: DataFragment) -> None:
    """Refuse a fragment, new or changed, that Lance couldn't read by this schema."""
    check_rows(fragment)
    if not fragment.files:
        raise DeltaRefused("no_data_files", field="files", value=[])
    for data_file in data_files(fragment):
        check_address(header, data_file)
    try:
        _check_layout(header, fragment.files, False)
    except NotDirect:
        return  # it was pylance's to check


def check_rows(fragment: DataFragment) -> None:
    """Refuse a fragment that doesn't say how many rows it has."""
    if not fragment.physical_rows:
        raise DeltaRefused("physical_rows_missing", field="physical_rows", value=0)


def place_in(data_file: DataFile, part: str = "") -> Phrase:
    """Return a data file, or a part of what is said of it, as refusals name it."""
    return Phrase("file_part", {"path": data_file.path, "part": part})


def _check_layout(header: ManifestHeader, files: Sequence[DataFile], is_current: bool) -> bool:
    table_format = header.message.data_format.version
    formats: set[str] = set()
    seen: set[int] = set()
    for data_file in files:
        formats.add(_file_format(data_file, table_format))
        fields = tuple(data_file.fields)
        where = place_in(data_file, ".fields")
        if not fields:
            raise DeltaRefused("no_fields", field=where, value=[])
        stored = [field_id for field_id in fields if field_id >= 0]
        if len(set(stored)) != len(stored) or not seen.isdisjoint(stored):
            raise DeltaRefused("field_twice", field=where, value=list(fields))
        seen.update(stored)
        # A field that was dropped since the writer read the table is no longer in the schema;
        # Lance ignores its column.
        unknown = [f for f in stored if f not in header.fields] if is_current else []
        if unknown:
            known = sorted(header.fields)
            raise DeltaRefused("unknown_field", field=where, value=unknown, known=known)
        _check_columns(header, data_file, fields)
    _check_required_fields(header, seen)
    if formats & {"2.2", "2.3"} and any(is_legacy_blob(f) for f in header.fields.values()):
        raise NotDirect("files of format 2.2 change the schema of blob columns")
    return formats != {table_format}


def _file_format(data_file: DataFile, table_format: str) -> str:
    major, minor = data_file.file_major_version, data_file.file_minor_version
    file_format = _FORMAT_OF_FILE.get((major, minor))
    where = place_in(data_file)
    if file_format is None:
        raise DeltaRefused("unknown_file_format", field=where, value=f"{major}.{minor}")
    if file_format != table_format and LEGACY_FILE_FORMAT in (file_format, table_format):
        raise DeltaRefused(
            "storage_format_mismatch", field=where, value=file_format, table_format=table_format
        )
    return file_format


def _check_columns(header: ManifestHeader, data_file: DataFile, fields: tuple[int, ...]) -> None:
    columns = tuple(data_file.column_indices)
    version = (data_file.file_major_version, data_file.file_minor_version)
    file_format = _FORMAT_OF_FILE[version]
    if file_format == LEGACY_FILE_FORMAT or not columns:
        return
    where = place_in(data_file, ".column_indices")
    if len(columns) != len(fields):
        raise DeltaRefused("column_count_mismatch", field=where, value=columns)
    if file_format == "2.0":
        return
    parents = {field.parent_id for field in header.fields.values()}
    for field_id, column in zip(fields, columns, strict=True):
        field = header.fields.get(field_id)
        if field is None:
            continue
        needs_column = field_id not in parents or is_packed(field) or is_blob(field)
        if needs_column != (column != -1):
            raise DeltaRefused(
                "column_missing" if needs_column else "column_unexpected",
                field=where,
                field_id=field_id,
                column=column,
            )


def _check_required_fields(header: ManifestHeader, stored: set[int]) -> None:
    present: set[int] = set()
    for field_id in stored:
        field = header.fields.get(field_id)
        while field is not None and field.id not in present:
            present.add(field.id)
            field = header.fields.get(field.parent_id)
    roots = (f for f in header.fields.values() if f.parent_id == -1 and not f.nullable)
    missing = sorted(field.id for field in roots if field.id not in present)
    if missing:
        raise DeltaRefused("required_field_missing", field="files.fields", value=missing)


def is_packed(field: Field) -> bool:
    """Return True if a struct's fields share one column."""
    return any(field.metadata.get(key, b"").lower() in _TRUE for key in _PACKED_KEYS)


def is_blob(field: Field) -> bool:
    """Return True if a column's values lie apart from its rows."""
    return _BLOB_KEY in field.metadata or is_blob_v2(field)


def is_blob_v2(field: Field) -> bool:
    """Return True if a column of blobs is one of the second kind, a struct."""
    return field.metadata.get(_EXTENSION_KEY, b"") == _BLOB_V2_EXTENSION


def is_legacy_blob(field: Field) -> bool:
    """Return True if a column of blobs is one of the first kind, which format 2.2 ended."""
    return _BLOB_KEY in field.metadata and not is_blob_v2(field)
