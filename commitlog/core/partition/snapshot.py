"""The machine's state as bytes, in parts; most parts stay as they were.

One part per table, one per range of ids, one for the rest. A part's counter is the sequence of the
outcome that changed it last, so a checkpoint writes only parts whose counter is new. Equal states
have equal bytes in every process: JSON with sorted keys, and a manifest as its delta from nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from commitlog.core.conflicts.history import Aspect, History, WriteSet
from commitlog.core.decisions import Noted
from commitlog.core.iceberg.domain import encode_state
from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.views import decode_state
from commitlog.core.log.applications import ApplicationAnswer, ApplicationLog
from commitlog.core.log.canonical import joined, to_json
from commitlog.core.log.parts import Part, Saved
from commitlog.core.manifest.manifest_state import ManifestDelta, diff
from commitlog.core.partition.state import PartitionState
from commitlog.core.tables.creation import empty_state, state_of
from commitlog.core.tables.lance_tables import Locations, Place, Table
from commitlog.core.tables.row_writes import RowQueue
from commitlog.errors import CorruptLog
from commitlog.model.limits import Rules
from commitlog.model.table import Policy, TableId

FORMAT = 1
MACHINE = "machine"
IDS = "ids/"
TABLE = "table/"
ICEBERG = "iceberg/"
LARGE = 1_000
"""Entries of so many aspects are kept as they are written."""


class Digests:
    """Hashes of parts, kept as long as the parts don't change."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, bytes]] = {}

    def know(self, parts: Mapping[str, Saved]) -> None:
        """Keep the hashes of parts that were restored just now."""
        self._known = {name: (part.counter, part.digest) for name, part in parts.items()}

    def of(self, machine: PartitionState) -> bytes:
        """Return the hash over all parts."""
        known: dict[str, tuple[int, bytes]] = {}
        for name, part in to_parts(machine).items():
            digest = self._known.get(name)
            if digest is None or digest[0] != part.counter or name == MACHINE:
                digest = (part.counter, hashlib.sha256(part.encode()).digest())
            known[name] = digest
        self._known = known
        return digest_of({name: digest for name, (_, digest) in known.items()})


def digest_of(parts: Mapping[str, bytes]) -> bytes:
    """Return the hash of a state whose parts have these SHA-256 hashes, by name."""
    whole = hashlib.sha256()
    for name in sorted(parts):
        whole.update(f"{name}\0".encode() + parts[name])
    return whole.digest()


def to_parts(machine: PartitionState) -> dict[str, Part]:
    """Return the parts of a machine's state by name."""
    parts = {MACHINE: Part(machine.sequence, lambda: _machine(machine))}
    for chunk, changed in machine.deduplication.chunks():
        encode, hint = machine.deduplication.encode_chunk, machine.deduplication.encode_hint
        parts[f"{IDS}{chunk}"] = Part(changed, partial(encode, chunk), partial(hint, chunk))
    for table in machine.tables.values():
        of_table = f"{TABLE}{table.incarnation}"
        parts[of_table] = Part(table.changed_at, partial(_table, table), partial(_features, table))
    for name, changed in machine.iceberg.changed_at.items():
        part = Part(changed, partial(_iceberg, machine, name))
        # A uuid doesn't tell Iceberg tables apart: one metadata file may be registered twice.
        parts[f"{ICEBERG}{hashlib.sha256(to_json(list(name))).hexdigest()[:32]}"] = part
    return parts


def restore(machine: PartitionState, parts: Mapping[str, Saved]) -> None:
    """Put a new machine into the state that `parts` hold."""
    try:
        _restore_machine(machine, json.loads(parts[MACHINE].data))
        chunks = sorted(int(name[len(IDS) :]) for name in parts if name.startswith(IDS))
        for chunk in chunks:
            saved = parts[f"{IDS}{chunk}"]
            machine.deduplication.restore_chunk(chunk, saved.data, saved.hint)
        for name in sorted(parts):
            if name.startswith(ICEBERG):
                _restore_iceberg(machine, parts[name].data)
        of_tables = (saved for name, saved in parts.items() if name.startswith(TABLE))
        tables = [_restore_table(saved.data, saved.hint) for saved in of_tables]
    except (KeyError, ValueError, TypeError, IndexError, Invalid) as error:
        raise CorruptLog(f"a checkpoint's part cannot be read: {error!r}; delete it") from error
    for table in sorted(tables, key=lambda t: t.table_id):
        machine.tables[table.table_id] = table


def _machine(machine: PartitionState) -> bytes:
    rules = machine.rules
    return to_json(
        {
            "format": FORMAT,
            "sequence": machine.sequence,
            "time_ms": machine.time_ms,
            "ids_forgotten_ms": machine.deduplication.forgotten_ms,
            **(
                {"ids_clock_ms": machine.deduplication.clock_ms}
                if machine.deduplication.clock_ms
                else {}
            ),
            "rules": [
                rules.protocol,
                rules.id_horizon_ms,
                rules.history_versions,
                rules.operations_max,
                *([list(map(list, rules.lance_releases))] if rules.lance_releases else []),
            ],
            "namespaces": sorted(
                [list(n), [list(p) for p in properties]]
                for n, properties in machine.catalogue.namespaces.items()
            ),
            **_ended_rows(machine),
            "locations": _places(machine.locations),
            "iceberg_locations": _places(machine.iceberg.locations),
        }
    )


def _ended_rows(machine: PartitionState) -> dict[str, Any]:
    ended = machine.catalogue.ended_rows
    return {"ended_rows": dict(sorted(ended.items()))} if ended else {}


def _places(locations: Locations) -> list[list[Any]]:
    return sorted(
        [list(parts), list(place.table_id), place.incarnation, place.is_live]
        for parts, place in locations.items().items()
    )


def _restore_places(locations: Locations, rows: Iterable[list[Any]]) -> None:
    for parts, table_id, incarnation, is_live in rows:
        scheme, *path = parts
        location = f"{scheme}://{'/'.join(path)}" if scheme else f"/{'/'.join(path)}"
        locations.take(location, Place(tuple(table_id), incarnation, is_live))


def _restore_machine(machine: PartitionState, state: Any) -> None:
    if state["format"] != FORMAT:
        raise CorruptLog(f"the checkpoint has format {state['format']}; delete it")
    machine.sequence, machine.time_ms = state["sequence"], state["time_ms"]
    machine.deduplication.forgotten_ms = state["ids_forgotten_ms"]
    machine.deduplication.clock_ms = state.get("ids_clock_ms", 0)
    protocol, horizon, versions, operations, *releases = state["rules"]
    named = tuple((since, release) for one in releases for since, release in one)
    machine.rules = Rules(
        protocol=protocol,
        id_horizon_ms=horizon,
        history_versions=versions,
        operations_max=operations,
        lance_releases=named,
    )
    for name, properties in state["namespaces"]:
        machine.catalogue.namespaces[tuple(name)] = tuple((k, v) for k, v in properties)
    machine.catalogue.ended_rows.update(state.get("ended_rows", {}))
    _restore_places(machine.locations, state["locations"])
    _restore_places(machine.iceberg.locations, state["iceberg_locations"])


def _iceberg(machine: PartitionState, name: TableId) -> bytes:
    iceberg = machine.iceberg
    known: dict[str, Any] = {"table": list(name), "changed_at": iceberg.changed_at[name]}
    if name in iceberg.registered:
        known["is_registered"] = True
    if name in iceberg.read_only:
        known["is_read_only"] = True
    head = to_json(known)
    return len(head).to_bytes(8) + head + encode_state(iceberg.tables[name])


def _restore_iceberg(machine: PartitionState, data: bytes) -> None:
    end = 8 + int.from_bytes(data[:8])
    state = json.loads(data[8:end])
    name = tuple(state["table"])
    machine.iceberg.restore(
        name,
        decode_state(data[end:]),
        state["changed_at"],
        is_registered=state.get("is_registered", False),
        is_read_only=state.get("is_read_only", False),
    )


def _table(table: Table) -> bytes:
    history = table.history
    versions, entries = history.entries()
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
        "entries",
        [_entry(history, *entry) for entry in entries],
    )
    manifest = b""
    if table.manifest is not None:
        manifest = diff(empty_state(), table.manifest).to_bytes()
    return len(head).to_bytes(8) + head + manifest


def _said(table: Table) -> dict[str, Any]:
    """Return what few tables have, and leaves no trace in the others."""
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
        text = to_json([version, *_write_set(write_set)])
        if len(write_set.aspects) >= LARGE:
            history.texts[version] = text
    return text


def _write_set(write_set: WriteSet) -> list[Any]:
    return [
        write_set.kind,
        [_aspect(aspect) for aspect in write_set.aspects],
        [[_aspect(aspect), value] for aspect, value in write_set.notes],
        [list(pair) for pair in write_set.deletion_files],
    ]


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


def _features(table: Table) -> bytes:
    """Return the feature flags that single fragments ask for; few ask for any."""
    found = table.manifest.fragments.features_by_id() if table.manifest is not None else {}
    return to_json([[i, found[i]] for i in sorted(found)])


def _restore_table(data: bytes, hint: bytes | None) -> Table:
    end = 8 + int.from_bytes(data[:8])
    state = json.loads(data[8:end])
    features = dict(json.loads(hint)) if hint is not None else None
    manifest = None
    if data[end:]:
        manifest = state_of(ManifestDelta.from_bytes(data[end:]), features)
    table = Table(
        tuple(state["table"]),
        state["incarnation"],
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
    table.history = History.of_entries(
        state["floor"],
        state["versions"],
        (_restore_write_set(row) for row in state["entries"]),
    )
    for name, (run, answers) in state["applications"].items():
        log = table.applications[name] = ApplicationLog(run)
        for sequence, answer in answers:
            log.note(sequence, run, ApplicationAnswer(*answer))
    return table
