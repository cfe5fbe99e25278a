"""One version's manifest in memory, and what turns it into the next one.

`apply_delta(old, diff(old, new))` makes `old` equal to `new`, and a delta's bytes are the same in
every process. A state changes only through `apply_delta`; fork it to look ahead.

What changes with every version is apart from what rarely does (schema, config, base paths), and
fragments stay bytes, so that an append to a table of 100,000 fragments costs what it adds. Bytes
are also what keeps fields that a newer Lance wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from commitlog.core.manifest.encoded_fragments import changes
from commitlog.core.manifest.fragments import Fragments
from commitlog.core.manifest.header import ManifestHeader, header_in
from commitlog.errors import CommitLogError, CorruptLog, InvalidTransaction
from commitlog.lancepb.manifest_delta_pb2 import ManifestDelta as ManifestDeltaMessage
from commitlog.lancepb.table_pb2 import IndexMetadata, IndexSection, Manifest
from commitlog.model.reasons import Phrase
from commitlog.words import say


class DeltaRefused(InvalidTransaction):
    """The transaction cannot be applied to this version by any builder."""

    def __init__(
        self, code: str, *, field: str | Phrase, value: object = None, **arguments: object
    ) -> None:
        given = {} if value is None else {"value": value}
        self.phrase = Phrase(code, {"field": field, **given, **arguments})
        place = say(field) if isinstance(field, Phrase) else field
        super().__init__(say(self.phrase), field=place, value=value)
        self.code = code


class NotDirect(CommitLogError):
    """Only pylance can build this manifest; `reason` says what it would have to look at."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ManifestState:
    """A version's manifest: scalars, header, fragments, index section."""

    __slots__ = (
        "fragments",
        "header",
        "index_section",
        "max_fragment_id",
        "next_row_id",
        "reader_feature_flags",
        "tag",
        "timestamp_nanos",
        "transaction_file",
        "version",
        "writer_feature_flags",
    )
    version: int
    timestamp_nanos: int
    reader_feature_flags: int
    writer_feature_flags: int
    max_fragment_id: int | None
    next_row_id: int
    transaction_file: str
    tag: str
    header: ManifestHeader
    fragments: Fragments
    index_section: bytes | None

    @classmethod
    def of(
        cls, manifest: Manifest, fragments: Fragments, index_section: bytes | None
    ) -> ManifestState:
        """Make a state of a manifest message without fragments, which loses its scalars."""
        state = cls()
        state.version = manifest.version
        # Protobuf's own sum refuses times that no calendar has, and Lance opens those, too.
        written = manifest.timestamp
        state.timestamp_nanos = written.seconds * 1_000_000_000 + written.nanos
        state.reader_feature_flags = manifest.reader_feature_flags
        state.writer_feature_flags = manifest.writer_feature_flags
        has_maximum = manifest.HasField("max_fragment_id")
        state.max_fragment_id = manifest.max_fragment_id if has_maximum else None
        state.next_row_id = manifest.next_row_id
        state.transaction_file = manifest.transaction_file
        state.tag = manifest.tag
        state.header = ManifestHeader.of(manifest)
        state.fragments = fragments
        state.index_section = index_section or None
        return state

    @property
    def last_fragment_id(self) -> int:
        """The highest id that a fragment has or had, -1 if there was none; the next one follows."""
        return self.fragments.last_id if self.max_fragment_id is None else self.max_fragment_id

    def copy(self) -> ManifestState:
        """Return the same state, to change alone."""
        state = self.fork()
        state.fragments = self.fragments.copy()
        return state

    def fork(self) -> ManifestState:
        """Return a state that starts as this one and changes alone; this one must stay still."""
        state = ManifestState()
        for name in ManifestState.__slots__:
            setattr(state, name, getattr(self, name))
        state.fragments = self.fragments.fork()
        return state

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ManifestState):
            return NotImplemented
        return (
            _scalars(self) == _scalars(other)
            and self.header.encoded == other.header.encoded
            and self.index_section == other.index_section
            and dict(self.fragments) == dict(other.fragments)
        )

    __hash__ = None  # type: ignore[assignment]


TIME_NANOS_END = 2**64
"""A delta's time is before it, which is in the year 2554, and not before 1970."""


class ManifestDelta(NamedTuple):
    """What turns version n into n + 1."""

    version: int
    timestamp_nanos: int
    reader_feature_flags: int
    writer_feature_flags: int
    max_fragment_id: int | None
    next_row_id: int
    transaction_file: str
    tag: str = ""
    removed: tuple[int, ...] = ()
    fragments: tuple[tuple[int, bytes], ...] = ()
    """Added or replaced, ascending by id."""
    header: bytes | None = None
    """None: unchanged."""
    index_section: bytes | None = None
    """None: unchanged; empty: there is no index any more."""

    def to_bytes(self) -> bytes:
        """Encode for the log."""
        message = ManifestDeltaMessage(
            version=self.version,
            timestamp_nanos=self.timestamp_nanos,
            reader_feature_flags=self.reader_feature_flags,
            writer_feature_flags=self.writer_feature_flags,
            max_fragment_id=self.max_fragment_id,
            next_row_id=self.next_row_id,
            transaction_file=self.transaction_file,
            tag=self.tag,
            header=self.header,
            index_section=self.index_section,
        )
        changes: dict[int, bytes | None] = dict.fromkeys(self.removed)
        changes.update(self.fragments)
        for fragment_id in sorted(changes):
            message.fragments.add(id=fragment_id, data_fragment=changes[fragment_id])
        return message.SerializeToString(deterministic=True)

    @classmethod
    def from_bytes(cls, data: bytes) -> ManifestDelta:
        """Decode what `to_bytes` encoded."""
        message = ManifestDeltaMessage.FromString(data)
        present = message.HasField
        changes = message.fragments
        removed: tuple[int, ...] = ()
        fragments = tuple([(change.id, change.data_fragment) for change in changes])
        if not all([encoded for _, encoded in fragments]):
            removed = tuple(c.id for c in changes if not c.HasField("data_fragment"))
            fragments = tuple(
                (c.id, c.data_fragment) for c in changes if c.HasField("data_fragment")
            )
        return cls(
            version=message.version,
            timestamp_nanos=message.timestamp_nanos,
            reader_feature_flags=message.reader_feature_flags,
            writer_feature_flags=message.writer_feature_flags,
            max_fragment_id=message.max_fragment_id if present("max_fragment_id") else None,
            next_row_id=message.next_row_id,
            transaction_file=message.transaction_file,
            tag=message.tag,
            removed=removed,
            fragments=fragments,
            header=message.header if present("header") else None,
            index_section=message.index_section if present("index_section") else None,
        )


def _scalars(state: ManifestState | ManifestDelta) -> tuple[object, ...]:
    return (
        state.version,
        state.timestamp_nanos,
        state.reader_feature_flags,
        state.writer_feature_flags,
        state.max_fragment_id,
        state.next_row_id,
        state.transaction_file,
        state.tag,
    )


def apply_delta(state: ManifestState, delta: ManifestDelta) -> None:
    """Turn `state` into the version that `delta` describes."""
    if delta.version <= state.version:
        raise CorruptLog(f"a delta to version {delta.version} meets version {state.version}")
    for fragment_id in delta.removed:
        state.fragments.remove(fragment_id)
    state.fragments.put(delta.fragments)
    state.version = delta.version
    state.timestamp_nanos = delta.timestamp_nanos
    state.reader_feature_flags = delta.reader_feature_flags
    state.writer_feature_flags = delta.writer_feature_flags
    state.max_fragment_id = delta.max_fragment_id
    state.next_row_id = delta.next_row_id
    state.transaction_file = delta.transaction_file
    state.tag = delta.tag
    if delta.header is not None:
        state.header = header_in(delta.header)
    if delta.index_section is not None:
        state.index_section = delta.index_section or None


def diff(old: ManifestState, new: ManifestState) -> ManifestDelta:
    """Return what turns `old` into `new`, a manifest that was built elsewhere."""
    removed, fragments = changes(old.fragments, new.fragments)
    header, index_section = new.header.encoded, new.index_section or b""
    return ManifestDelta(
        version=new.version,
        timestamp_nanos=new.timestamp_nanos,
        reader_feature_flags=new.reader_feature_flags,
        writer_feature_flags=new.writer_feature_flags,
        max_fragment_id=new.max_fragment_id,
        next_row_id=new.next_row_id,
        transaction_file=new.transaction_file,
        tag=new.tag,
        removed=removed,
        fragments=fragments,
        header=None if header == old.header.encoded else header,
        index_section=None if index_section == (old.index_section or b"") else index_section,
    )


def put_header(state: ManifestState, header: ManifestHeader) -> None:
    """Put a header into a manifest, with the feature flags that it asks for."""
    state.header = header
    reader, writer = header.flags
    state.reader_feature_flags |= reader
    state.writer_feature_flags |= writer


def change_indices(state: ManifestState, change: Callable[[IndexMetadata], None]) -> None:
    """Change each entry of a manifest's index section, if it has one."""
    if state.index_section:
        section = IndexSection.FromString(state.index_section)
        for index in section.indices:
            change(index)
        state.index_section = section.SerializeToString(deterministic=True)
