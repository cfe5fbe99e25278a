"""The part of a manifest that seldom changes: schema, format, config, base paths.

A header is never modified; a change makes another one. What can be derived from it is derived
once and kept, since thousands of versions share one header.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache

from commitlog.core.manifest.feature_flags import (
    FLAG_BASE_PATHS,
    FLAG_MANAGED_BLOBS,
    FLAG_NON_REUSABLE_FIELD_IDS,
    FLAG_TABLE_CONFIG,
    MANAGED_BLOBS_KEY,
)
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.table_pb2 import (
    BasePath,
    DataFile,
    DeletionFile,
    IndexMetadata,
    Manifest,
)

WRITER = "lance"
InBase = DataFile | DeletionFile | IndexMetadata
"""What may be at another base than its table."""
_SCALARS = (
    "version",
    "version_aux_data",
    "index_section",
    "timestamp",
    "tag",
    "reader_feature_flags",
    "writer_feature_flags",
    "max_fragment_id",
    "transaction_file",
    "next_row_id",
    "transaction_section_deprecated",
    "transaction_section",
    "fragments",
)


class ManifestHeader:
    """What seldom changes: schema, format, config, base paths. Never modified."""

    def __init__(self, encoded: bytes) -> None:
        self.encoded = encoded
        self._by: tuple[str, ManifestHeader] | None = None

    @staticmethod
    def of(manifest: Manifest) -> ManifestHeader:
        """Make a header of a manifest message, which loses its other fields."""
        for name in _SCALARS:
            manifest.ClearField(name)
        # Lance keeps them in a hash map, so their order differs from one manifest to the next.
        manifest.base_paths.sort(key=lambda base: base.id)
        return header_in(manifest.SerializeToString(deterministic=True))

    @cached_property
    def message(self) -> Manifest:
        """The header as a message; copy it before changing anything."""
        return Manifest.FromString(self.encoded)

    @cached_property
    def fields(self) -> Mapping[int, Field]:
        """The schema's fields by id."""
        return {field.id: field for field in self.message.fields}

    @cached_property
    def declares_key(self) -> bool:
        """Return True if the schema names an unenforced primary key."""
        return any(field.unenforced_primary_key for field in self.message.fields)

    @cached_property
    def bases(self) -> Mapping[int, BasePath]:
        """The base paths by id."""
        return {base.id: base for base in self.message.base_paths}

    def place_of(
        self, location: str, named: InBase, path: str, folder: str = ""
    ) -> tuple[str, str]:
        """Return the root of a file, a base or its table's location, and its path there.

        A base that isn't a table has no `folder`.
        """
        base = self.bases.get(named.base_id) if named.HasField("base_id") else None
        if base is not None and not base.is_dataset_root:
            folder = ""
        return location if base is None else base.path, f"{folder}/{path}" if folder else path

    def by(self, release: str) -> ManifestHeader:
        """Return the same header, written by a release of Lance."""
        if self._by is None or self._by[0] != release:
            self._by = release, self._written_by(release)
        return self._by[1]

    def _written_by(self, release: str) -> ManifestHeader:
        writer = Manifest.WriterVersion(library=WRITER, version=release)
        if self.message.writer_version == writer:
            return self
        manifest = Manifest.FromString(self.encoded)
        manifest.writer_version.CopyFrom(writer)
        return ManifestHeader.of(manifest)

    @cached_property
    def flags(self) -> tuple[int, int]:
        """The reader and writer feature flags that the header by itself asks for."""
        manifest = self.message
        reader = FLAG_BASE_PATHS if manifest.base_paths else 0
        if manifest.schema_metadata.get(MANAGED_BLOBS_KEY) == b"true":
            reader |= FLAG_MANAGED_BLOBS
        writer = reader
        if manifest.config:
            writer |= FLAG_TABLE_CONFIG
        if manifest.HasField("max_allocated_field_id"):
            writer |= FLAG_NON_REUSABLE_FIELD_IDS
        return reader, writer

    @cached_property
    def accepted_layouts(self) -> dict[tuple[object, ...], bool]:
        """Layouts that were checked against this schema before, and if they mix file formats."""
        return {}


@lru_cache(maxsize=1)
def header_in(encoded: bytes) -> ManifestHeader:
    """Return the header of these bytes, the same object as long as no other bytes come between.

    Each step of a decision asks for it, and 4,000 keys of config take a millisecond to read.
    """
    return ManifestHeader(encoded)
