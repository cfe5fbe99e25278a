"""The machine's state as bytes, in parts; most parts stay as they were.

One part or more per table, one per range of ids, one for the rest. A part's counter is the sequence
of the outcome that changed it last, or it knows its hash until it changes; so a checkpoint writes
only what changed. Equal states have equal bytes in every process: JSON with sorted keys, and a
manifest as its delta from nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from commitlog.core.iceberg.domain import encode_state
from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.views import decode_state
from commitlog.core.log.canonical import joined, to_json
from commitlog.core.log.deduplication import Deduplication
from commitlog.core.log.parts import Part, Saved
from commitlog.core.partition.state import PartitionState
from commitlog.core.partition.table_parts import table_parts, tables_of
from commitlog.core.tables.lance_tables import LocationParts, Locations, Place
from commitlog.errors import CorruptLog
from commitlog.model.limits import Rules
from commitlog.model.table import TableId

FORMAT = 1
MACHINE = "machine"
IDS = "ids/"
ICEBERG = "iceberg/"


class Piece(NamedTuple):
    """What changes as one, such as a table, with the parts that hold it."""

    key: Hashable
    changed_at: int
    """As long as this stays, so do its parts; only the machine's own may change all the same."""
    parts: Callable[[], Iterable[tuple[str, Part]]]


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
            if digest is None or name == MACHINE or not part.is_as(*digest):
                digest = (part.counter, part.digest())
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
    return {name: part for piece in pieces(machine) for name, part in piece.parts()}


def pieces(machine: PartitionState) -> Iterator[Piece]:
    """Yield the pieces of a machine's state. Their parts are made only when asked for."""
    own = Part(machine.sequence, lambda: _machine(machine))
    yield Piece(MACHINE, machine.sequence, lambda: [(MACHINE, own)])
    ids, protocol = machine.deduplication, machine.rules.protocol
    for chunk, changed in ids.chunks():
        yield Piece((IDS, chunk), changed, partial(_of_ids, ids, chunk, changed))
    for table in machine.tables.values():
        # What a table's parts are depends on the protocol, too.
        key = protocol, table.incarnation
        yield Piece(key, table.changed_at, partial(table_parts, table, protocol))
    for name, changed in machine.iceberg.changed_at.items():
        yield Piece((ICEBERG, name), changed, partial(_of_iceberg, machine, name, changed))


def settled_parts(machine: PartitionState, since: int, until: int) -> Iterator[tuple[str, Part]]:
    """Yield parts that changed after outcome `since`, and to which nothing is added any more.

    These are full parts, and tables that no outcome after `until` changed. A part still changes
    when a fragment in it loses rows, or an id is forgotten. The machine may apply outcomes between
    two of them.
    """
    ids = machine.deduplication
    for chunk in [chunk for chunk, changed in ids.chunks() if changed > since][:-1]:
        if (changed := ids.changed_at(chunk)) is not None:
            yield from _of_ids(ids, chunk, changed)
    for table in [table for table in machine.tables.values() if table.changed_at > since]:
        for name, part in table_parts(table, machine.rules.protocol):
            if part.digests is not None or table.changed_at <= until:
                yield name, part


def _of_ids(ids: Deduplication, chunk: int, changed: int) -> list[tuple[str, Part]]:
    encode, with_hint = partial(ids.encode_chunk, chunk), partial(ids.encode_with_hint, chunk)
    return [(f"{IDS}{chunk}", Part(changed, encode, with_hint))]


def _of_iceberg(machine: PartitionState, name: TableId, changed: int) -> list[tuple[str, Part]]:
    # A uuid doesn't tell Iceberg tables apart: one metadata file may be registered twice.
    known_as = f"{ICEBERG}{hashlib.sha256(to_json(list(name))).hexdigest()[:32]}"
    return [(known_as, Part(changed, partial(_iceberg, machine, name)))]


def restore(machine: PartitionState, parts: Mapping[str, Saved]) -> None:
    """Put a new machine into the state that `parts` hold."""
    try:
        _restore_machine(machine, json.loads(parts[MACHINE].data))
        chunks = sorted(int(name[len(IDS) :]) for name in parts if name.startswith(IDS))
        machine.deduplication.expect(len(chunks))
        for chunk in chunks:
            saved = parts[f"{IDS}{chunk}"]
            if saved.unpack is not None:
                machine.deduplication.restore_sealed(chunk, saved.unpack)
            else:
                machine.deduplication.restore_chunk(chunk, saved.data, saved.hint)
        for name in sorted(parts):
            if name.startswith(ICEBERG):
                _restore_iceberg(machine, parts[name].data)
        tables = list(tables_of(parts))
    except (KeyError, ValueError, TypeError, IndexError, Invalid) as error:
        raise CorruptLog(f"a checkpoint's part cannot be read: {error!r}; delete it") from error
    for table in sorted(tables, key=lambda t: t.table_id):
        machine.tables[table.table_id] = table


def _machine(machine: PartitionState) -> bytes:
    rules = machine.rules
    places = {
        "locations": machine.locations.encoded(_place),
        "iceberg_locations": machine.iceberg.locations.encoded(_place),
    }
    return joined(
        {
            "format": FORMAT,
            "sequence": machine.sequence,
            "time_ms": machine.time_ms,
            "ids_forgotten_ms": machine.deduplication.forgotten_ms,
            **_ids_clocks(machine),
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
        },
        places,
    )


def _ids_clocks(machine: PartitionState) -> dict[str, int]:
    once = machine.deduplication
    clocks = {"ids_clock_ms": once.clock_ms, "ids_appended_ms": once.appended_ms}
    return {name: time_ms for name, time_ms in clocks.items() if time_ms}


def _ended_rows(machine: PartitionState) -> dict[str, Any]:
    ended = machine.catalogue.ended_rows
    return {"ended_rows": dict(sorted(ended.items()))} if ended else {}


def _place(parts: LocationParts, place: Place) -> bytes:
    row: list[Any] = [list(parts), list(place.table_id), place.incarnation, place.is_live]
    return to_json([*row, place.version] if place.version else row)


def _restore_places(locations: Locations, rows: Iterable[list[Any]]) -> None:
    for parts, table_id, incarnation, is_live, *version in rows:
        scheme, *path = parts
        location = f"{scheme}://{'/'.join(path)}" if scheme else f"/{'/'.join(path)}"
        locations.take(location, Place(tuple(table_id), incarnation, is_live, *version))


def _restore_machine(machine: PartitionState, state: Any) -> None:
    if state["format"] != FORMAT:
        raise CorruptLog(f"the checkpoint has format {state['format']}; delete it")
    machine.sequence, machine.time_ms = state["sequence"], state["time_ms"]
    machine.deduplication.forgotten_ms = state["ids_forgotten_ms"]
    machine.deduplication.clock_ms = state.get("ids_clock_ms", 0)
    machine.deduplication.appended_ms = state.get("ids_appended_ms", 0)
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
