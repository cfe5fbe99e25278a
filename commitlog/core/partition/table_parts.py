"""A table's state as bytes: in one part, or in its chunks and the rest.

From protocol 6 on, fragments and write sets are in parts of their own, in chunks. So the cost of a
checkpoint, and of the state's hash, depends on what changed since the last one, not on the size and
age of the table. The newest chunk of each is with the rest, so a small table is one part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, NamedTuple

from commitlog.codecs.lanes import READ_FRAGMENTS, READ_PAIRS
from commitlog.core.conflicts.history import Aspect, History, WriteSet
from commitlog.core.decisions import Noted
from commitlog.core.log.applications import ApplicationAnswer, ApplicationLog
from commitlog.core.log.canonical import joined, to_json
from commitlog.core.log.parts import Part, Saved
from commitlog.core.manifest.fragments import CHUNK_FRAGMENTS, Fragments
from commitlog.core.manifest.manifest_state import ManifestDelta, ManifestState, diff
from commitlog.core.tables.creation import empty_state, state_of
from commitlog.core.tables.lance_tables import Table
from commitlog.core.tables.row_writes import RowQueue
from commitlog.model.limits import TABLES_IN_CHUNKS_SINCE
from commitlog.model.table import Policy

WHOLE = "table/"
REST, FRAGMENTS, HISTORY = "tables/", "fragments/", "history/"
BEFORE_VERSIONS = b'],"versions":'
"""Separates a chunk's entries from its versions. No text contains it, since JSON writes a backslash
before a quotation mark."""
LARGE = 1_000
"""An entry with so many aspects keeps its encoded form."""

Versions = tuple[list[tuple[str, str]], list[tuple[int, WriteSet]]]
"""Each version's transaction and kind, and the write sets of versions that changed anything."""


def table_parts(table: Table, protocol: int) -> Iterator[tuple[str, Part]]:
    """Yield a table's parts by name."""
    name, history, manifest = table.incarnation, table.history, table.manifest
    if protocol < TABLES_IN_CHUNKS_SINCE:
        yield f"{WHOLE}{name}", _part(table.changed_at, partial(_whole, table), manifest)
        return
    newest = manifest.fragments.last_id // CHUNK_FRAGMENTS if manifest is not None else 0
    rest = partial(_rest, table, newest)
    yield f"{REST}{name}", _part(table.changed_at, rest, manifest, newest)
    for chunk in history.chunks():
        encode = partial(_versions, history, chunk)
        yield f"{HISTORY}{name}/{chunk}", Part(chunk, encode, digests=history.digests)
    for chunk in manifest.fragments.chunks() if manifest is not None else ():
        if chunk != newest:
            assert manifest is not None
            part = _part(chunk, partial(_fragments, manifest, chunk), manifest, chunk)
            yield f"{FRAGMENTS}{name}/{chunk}", part._replace(digests=manifest.fragments.digests)


def _part(
    counter: int,
    encode: Callable[[], bytes],
    manifest: ManifestState | None,
    chunk: int | None = None,
) -> Part:
    """Return a part with a hint: which of its fragments ask for feature flags."""
    return Part(counter, encode, lambda: (encode(), _features(manifest, chunk)))


def tables_of(parts: Mapping[str, Saved]) -> Iterator[Table]:
    """Yield the tables whose parts are among these."""
    chunks = _Chunks(_by_chunk(parts, HISTORY), _by_chunk(parts, FRAGMENTS))
    for name, saved in parts.items():
        if name.startswith((WHOLE, REST)):
            yield _restore(saved, chunks)


class _Chunks(NamedTuple):
    """Saved chunks by incarnation and number, ascending."""

    history: dict[str, dict[int, Saved]]
    fragments: dict[str, dict[int, Saved]]


def _by_chunk(parts: Mapping[str, Saved], prefix: str) -> dict[str, dict[int, Saved]]:
    found: dict[str, dict[int, Saved]] = {}
    for name in parts:
        if name.startswith(prefix):
            incarnation, _, _ = name.removeprefix(prefix).rpartition("/")
            found.setdefault(incarnation, {})[parts[name].counter] = parts[name]
    return {name: dict(sorted(chunks.items())) for name, chunks in found.items()}


def _whole(table: Table) -> bytes:
    manifest = b""
    if table.manifest is not None:
        manifest = diff(empty_state(), table.manifest).to_bytes()
    return _encoded(table, table.history.entries(), manifest)


def _rest(table: Table, newest: int) -> bytes:
    history, manifest = table.history, b""
    if table.manifest is not None:
        shown = table.manifest.fork()
        shown.fragments = Fragments.known(table.manifest.fragments.in_chunk(newest), {})
        manifest = diff(empty_state(), shown).to_bytes()
    return _encoded(table, history.in_chunk(history.chunks().stop), manifest)


def _fragments(manifest: ManifestState, chunk: int) -> bytes:
    return _NOTHING._replace(fragments=tuple(manifest.fragments.in_chunk(chunk))).to_bytes()


_NOTHING = ManifestDelta(0, 0, 0, 0, None, 0, "")


def _versions(history: History, chunk: int) -> bytes:
    versions, entries = history.in_chunk(chunk)
    return joined({"versions": versions}, {"entries": [_entry(history, *one) for one in entries]})


def _encoded(table: Table, known: Versions, manifest: bytes) -> bytes:
    history, (versions, entries) = table.history, known
    head = joined(
        {
            "table": list(table.table_id),
            "incarnation": table.incarnation,
            "location": table.location,
            "policy": table.policy.value,
            "primary_key": list(table.primary_key),
            "properties": [list(pair) for pair in table.properties],
            "changed_at": table.changed_at,
            **_said(table),
            "floor": history.floor,
            "versions": versions,
            "applications": {
                name: [log.run, [[sequence, list(answer)] for sequence, answer in log.items()]]
                for name, log in table.applications.items()
            },
        },
        {"entries": [_entry(history, *entry) for entry in entries]},
    )
    return len(head).to_bytes(8) + head + manifest


def _said(table: Table) -> dict[str, Any]:
    """Return the fields that only some tables have; others leave them out."""
    found: dict[str, Any] = {}
    if table.deleted:
        found["deleted"] = [list(one) for one in table.deleted]
    if table.rows is not None:
        found["rows"] = table.rows.to_json()
    if table.noted:
        found["noted"] = [
            [version, said.e_tag, [list(pair) for pair in said.metadata]]
            for version, said in sorted(table.noted.items())
        ]
    return found


def _entry(history: History, version: int, write_set: WriteSet) -> bytes:
    """Return a version's entry: a large one, such as of an append's keys, is encoded once."""
    text = history.texts.get(version)
    if text is None:
        notes = [[_aspect(aspect), value] for aspect, value in write_set.notes]
        files = [list(pair) for pair in write_set.deletion_files]
        start, end = to_json([version, write_set.kind]), to_json([notes, files])
        text = b"%b,[%b],%b" % (start[:-1], b",".join(_texts(write_set.aspects)), end[1:])
        if len(write_set.aspects) >= LARGE:
            history.texts[version] = text
    return text


def _texts(aspects: Sequence[Aspect]) -> Iterator[bytes]:
    """Yield what `_aspect` makes of aspects as JSON: at once for keys, which may be 100,000."""
    for how, same in groupby(aspects, itemgetter(0)):
        found = list(map(itemgetter(1), same))
        if set(map(type, found)) == {bytes} and len(set(map(len, found))) == 1 and found[0]:
            start = to_json([how, "b", ""])[:-2].decode()
            each = b"".join(found).hex(",", len(found[0])).replace(",", f'"],{start}')
            yield f'{start}{each}"]'.encode()
        else:
            yield to_json([_aspect((how, which)) for which in found])[1:-1]


def _aspect(aspect: Aspect) -> list[Any]:
    how, which = aspect
    if isinstance(which, bytes):
        return [how, "b", which.hex()]
    if isinstance(which, tuple):
        return [how, "t", list(which)]
    return [how, "", which]


def _restore_aspect(row: list[Any]) -> Aspect:
    how, form, which = row
    if form == "b":
        return how, bytes.fromhex(which)
    return how, tuple(which) if form == "t" else which


def _restore_write_set(row: Iterable[Any]) -> tuple[int, WriteSet]:
    version, kind, aspects, notes, deletion_files = row
    return version, WriteSet(
        kind,
        tuple(_restore_aspect(aspect) for aspect in aspects),
        tuple((_restore_aspect(aspect), value) for aspect, value in notes),
        tuple((fragment_id, path) for fragment_id, path in deletion_files),
    )


def _features(manifest: ManifestState | None, chunk: int | None = None) -> bytes:
    """Return the feature flags that single fragments ask for; few ask for any."""
    found = manifest.fragments.features_by_id() if manifest is not None else {}
    of_chunk = range((chunk or 0) * CHUNK_FRAGMENTS, ((chunk or 0) + 1) * CHUNK_FRAGMENTS)
    ids = sorted(found) if chunk is None else of_chunk
    return to_json([[i, found[i]] for i in ids if i in found])


def _restore(saved: Saved, chunks: _Chunks) -> Table:
    end = 8 + int.from_bytes(saved.data[:8])
    state = json.loads(saved.data[8:end])
    incarnation = state["incarnation"]
    manifest = None
    if saved.data[end:]:
        manifest = _restore_manifest(saved, end, chunks.fragments.get(incarnation, {}))
    table = Table(
        tuple(state["table"]),
        incarnation,
        state["location"],
        Policy(state["policy"]),
        manifest,
        primary_key=tuple(state["primary_key"]),
        properties=tuple((key, value) for key, value in state["properties"]),
    )
    table.changed_at = state["changed_at"]
    table.deleted = tuple((first, last) for first, last in state.get("deleted", ()))
    if "rows" in state:
        table.rows = RowQueue.of_json(state["rows"])
    for version, e_tag, metadata in state.get("noted", ()):
        table.noted[version] = Noted(e_tag, tuple((k, v) for k, v in metadata))
    table.history = _restore_history(state, chunks.history.get(incarnation, {}))
    for name, (run, answers) in state["applications"].items():
        log = table.applications[name] = ApplicationLog(run)
        for sequence, answer in answers:
            log.note(sequence, run, ApplicationAnswer(*answer))
    return table


def _restore_manifest(saved: Saved, start: int, chunks: Mapping[int, Saved]) -> ManifestState:
    delta = ManifestDelta.from_bytes(saved.data[start:])
    known = [_read_fragments(chunk.data) for chunk in chunks.values()]
    hints = [chunk.hint for chunk in (*chunks.values(), saved)]
    features: dict[int, int] | None = {}
    for hint in hints:
        features = features | dict(json.loads(hint)) if features is not None and hint else None
    # Both are ascending, and the newest chunk's are in the delta.
    fragments = (*chain.from_iterable(known), *delta.fragments)
    manifest = state_of(delta._replace(fragments=fragments), features)
    manifest.fragments.digests |= {number: chunk.digest for number, chunk in chunks.items()}
    return manifest


def _read_fragments(chunk: bytes) -> Iterable[tuple[int, bytes]]:
    """Return a chunk's fragments by id."""
    found = READ_FRAGMENTS(chunk) if READ_FRAGMENTS is not None else None
    return ManifestDelta.from_bytes(chunk).fragments if found is None else found


def _read_versions(chunk: bytes) -> dict[str, Any]:
    """Return a chunk's versions and entries."""
    at = chunk.rfind(BEFORE_VERSIONS)
    versions = READ_PAIRS(chunk, at + len(BEFORE_VERSIONS)) if READ_PAIRS and at >= 0 else None
    if versions is None:
        whole: dict[str, Any] = json.loads(chunk)
        return whole
    return {**json.loads(chunk[: at + 1] + b"}"), "versions": versions}


def _restore_history(state: Mapping[str, Any], chunks: Mapping[int, Saved]) -> History:
    known = [*(_read_versions(chunk.data) for chunk in chunks.values()), state]
    history = History.of_entries(
        state["floor"],
        chain.from_iterable(one["versions"] for one in known),
        (_restore_write_set(row) for one in known for row in one["entries"]),
    )
    history.digests |= {number: chunk.digest for number, chunk in chunks.items()}
    return history
