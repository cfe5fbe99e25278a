"""Machine code and Python beside each other: the same records, or left to Python.

    python -m tests.lanes MODULE SECONDS SEED

holds a built module against Python on the golden records and logs, whole and mutated.
"""

from __future__ import annotations

import dataclasses
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import MemoryCluster
from commitlog.codecs import lanes as installed
from commitlog.codecs.avro import MARKER, load_schema, schema_fingerprint
from commitlog.codecs.avro_chain import FollowedRun, PlainChain
from commitlog.codecs.avro_lanes import CompiledSchema
from commitlog.core.lance.commits import FILE_BY_VERSION
from commitlog.core.log.attribution import PRINCIPAL_PROPERTY
from commitlog.core.partition import decided_appends
from commitlog.core.partition.machine import Machine
from commitlog.errors import CommitLogError
from commitlog.model.records import Outcome, Status
from commitlog.ports import Log
from consumers.tools.erasure.acts import ERASURE
from consumers.tools.verify import VerifyOptions, check, verify
from consumers.tools.verify.witnesses import Witness
from tests.golden.records import FOLDER
from tests.golden.roots import NAMES, golden
from tests.index_lanes import search_rows
from tests.json_lanes import search_json
from tests.made_appends import odd_appends
from tests.parts_lanes import search_parts
from tests.plain_appends import search_plain_appends
from tests.tampering import Copy, Records, swap, with_value

if TYPE_CHECKING:
    from commitlog.codecs._native import AppendColumns, Chain, Codec

COMPILED = ("transaction-v1", "transaction-v2", "outcome-v1", "outcome-v2")


EncodeAppend = Callable[[Any, Any, Any], Any]


def load(
    path: Path,
) -> tuple[type[Codec], type[Chain], EncodeAppend, type[AppendColumns], Any]:
    """Return what a module has that was built at a path."""
    name = "commitlog.codecs._native"
    spec = spec_from_file_location(name, path, loader=ExtensionFileLoader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Codec, module.Chain, module.encode_append, module.AppendColumns, module


def is_alike(one: Any, other: Any) -> bool:
    """Return True if two values are equal and of the same types, all through."""
    kind = one.__class__
    if kind is not other.__class__:
        return False
    parts = _parts(kind)
    if parts is None:
        return bool(one == other)
    these, those = parts(one), parts(other)
    return len(these) == len(those) and all(map(is_alike, these, those))


@cache
def _parts(kind: type) -> Callable[[Any], tuple[Any, ...]] | None:
    """Return what gives the parts of a dataclass or a tuple, None for another class."""
    if issubclass(kind, tuple):
        return tuple
    if not dataclasses.is_dataclass(kind):
        return None
    names = [field.name for field in dataclasses.fields(kind)]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


class Lanes:
    """Both lanes of the records that each commit writes and reads."""

    def __init__(self, codec: type[Codec]) -> None:
        """Take the class that reads and writes in machine code."""
        self.native: dict[str, CompiledSchema] = {}
        self.python: dict[str, CompiledSchema] = {}
        for name in COMPILED:
            schema = load_schema(name)
            prefix = MARKER + schema_fingerprint(schema)
            self.native[name] = CompiledSchema(schema, prefix, codec)
            self.python[name] = CompiledSchema(schema, prefix, None)

    def read(self, data: bytes) -> int:
        """Read a record in both lanes; return how often machine code did it."""
        times = 0
        for name in COMPILED:
            native = self.native[name]._native
            assert native is not None
            found, expected = native.read(data), self.python[name].read(data)
            if found is not None:
                assert expected is not None, data.hex()
                assert is_alike(found, expected), data.hex()
                assert native.write(found[0]) == self.python[name].encode(found[0]), data.hex()
                times += 1
        return times

    def write(self, name: str, value: Any) -> bytes:
        """Write a value in both lanes, its last field too; return the record."""
        native, python = self.native[name], self.python[name]
        assert native._native is not None
        assert native._native_tail is not None
        record = python.encode(value)
        assert native._native.write(value) == record
        assert native._native_tail.write(value) == python.encode_tail(value)
        return record


def records_of(cluster: MemoryCluster) -> Iterator[bytes]:
    """Yield the values of all records of a cluster."""
    for topic in cluster.topics.values():
        for partition in topic.partitions:
            yield from (record.value for record in partition.records if record.value)


def check_lanes(cluster: MemoryCluster) -> None:
    """Read all records of a cluster in both lanes, and its chain, if there are both here."""
    if installed.CODEC is not None and installed.CHAIN is not None:
        for again in (False, True):
            verified_alike(Copy(MemoryLog(cluster)).log, installed.CHAIN, again=again)
        both = _installed_lanes()
        for record in records_of(cluster):
            both.read(record)


@cache
def _installed_lanes() -> Lanes:
    assert installed.CODEC is not None
    return Lanes(installed.CODEC)


def verified_alike(
    log: Log, native: type[Chain], head: tuple[int, str] | None = None, *, again: bool = False
) -> tuple[int, bytes]:
    """Verify a chain in both lanes, and with `again` its decisions.

    Returns how many outcomes machine code followed, and the hash of the state at the end.
    """
    followed: list[int] = []
    machines: list[Machine] = []

    class Counting(PlainChain):
        def follow(self, *arguments: Any, **named: Any) -> FollowedRun:
            run = super().follow(*arguments, **named)
            followed.append(run.outcomes)
            return run

    class Kept(Machine):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            machines.append(self)

    witness = None if head is None else Witness("somebody", *head)
    options = VerifyOptions(chain_only=not again, log_only=again, expected_head=witness)

    def found(chain: PlainChain | None) -> Any:
        with (
            mock.patch.object(check, "plain_chain", return_value=chain),
            mock.patch.object(check, "Machine", Kept),
        ):
            machines.clear()
            try:
                said = verify(log, 0, options).to_json()
            except CommitLogError as error:
                said = {"error": repr(error)}
        return said, machines[-1].digest() if machines else b""

    by_machine_code = found(Counting(PRINCIPAL_PROPERTY, (ERASURE, FILE_BY_VERSION[0]), native))
    assert by_machine_code == found(None)
    return sum(followed), by_machine_code[1]


def golden_logs(stack: ExitStack) -> dict[str, MemoryLog]:
    """Return the logs of the golden roots."""
    folders = {name: Path(stack.enter_context(tempfile.TemporaryDirectory())) for name in NAMES}
    return {name: stack.enter_context(golden(name, folders[name])).log for name in NAMES}


def tampered(log: MemoryLog, chance: random.Random) -> MemoryLog:
    """Return a copy of a log in which something is other than it was."""
    copy = Copy(log)
    records: Records = chance.choice((copy.outcomes, copy.transactions))
    at = chance.randrange(len(records))
    act = chance.randrange(6)
    if act == 0:
        del records[at]
    elif act == 1:
        swap(records, at, chance.randrange(len(records)))
    elif act == 2:
        records[at] = with_value(records[at], None)
    elif act == 3:
        records[at] = dataclasses.replace(records[at], key=mutated(records[at].key or b"k", chance))
    elif act == 4:
        copy.chain_again(_other_outcome(chance, chance.randrange(1, len(copy.outcomes))))
    else:
        records[at] = with_value(records[at], mutated(records[at].value or b"v", chance))
    return copy.log


def _other_outcome(chance: random.Random, sequence: int) -> Callable[[Outcome], Outcome]:
    choice: tuple[str, Any] = chance.choice(
        (
            ("transaction_offset", chance.randrange(20)),
            ("transaction_id", "another"),
            ("payload_hash", bytes(chance.choice((0, 31, 32)))),
            ("sequence", sequence + chance.choice((-1, 0, 1))),
            ("status", chance.choice(list(Status))),
            ("answers", chance.choice((None, 1))),
            ("message", chance.choice(("", "\u00e4\u20ac\U0001f600"))),
        )
    )

    changed: dict[str, Any] = dict([choice])

    def change(outcome: Outcome) -> Outcome:
        is_it = outcome.sequence == sequence
        return dataclasses.replace(outcome, **changed) if is_it else outcome

    return change


def search_logs(
    logs: Iterable[MemoryLog],
    native: type[Chain],
    seconds: float,
    seed: int,
    *,
    again: bool = False,
) -> tuple[int, int]:
    """Verify tampered logs for so long; return how many, and what machine code followed of them."""
    chance = random.Random(seed)
    pool = list(logs)
    tried = followed = 0
    until = time.process_time() + seconds
    while time.process_time() < until:
        tried += 1
        log = tampered(chance.choice(pool), chance)
        followed += verified_alike(log, native, again=again)[0]
    return tried, followed


def golden_records() -> dict[str, list[bytes]]:
    """Return the values of the golden records, and of all in the golden roots' logs."""
    found = {"": [path.read_bytes() for path in sorted(FOLDER.glob("*.bin"))]}
    for name in NAMES:
        with tempfile.TemporaryDirectory() as folder, golden(name, Path(folder)) as opened:
            found[name] = list(records_of(opened.cluster))
    return found


def mutated(record: bytes, chance: random.Random) -> bytes:
    """Return a record with some bytes changed, lost, doubled or put in."""
    data = bytearray(record)
    for _ in range(chance.choice((1, 1, 2, 5))):
        # The prefix stays mostly: without it nothing is read at all.
        at = chance.randrange(chance.choice((0, *[10] * 9)), len(data)) if len(data) > 10 else 0
        act = chance.randrange(6)
        if act == 0:
            data[at : at + 1] = bytes(
                [chance.choice((0, 1, 2, 127, 128, 255, chance.getrandbits(8)))]
            )
        elif act == 1:
            del data[at : at + chance.choice((1, 1, 7, len(data)))]
        elif act == 2:
            data[at:at] = chance.randbytes(chance.choice((1, 3, 10)))
        elif act == 3:
            data[at:at] = data[at : at + chance.choice((1, 30))]
        elif act == 4:  # a number of more bytes than it needs
            longer = b"\x80" * chance.choice((0, 3, 4, 8)) + b"\0"
            data[at : at + 1] = bytes(one | 0x80 for one in data[at : at + 1]) + longer
        else:
            data[at:at] = b"\xff" * 9 + bytes([chance.choice((0, 1, 2, 127))])
    return bytes(data)


def search(lanes: Lanes, records: Iterable[bytes], seconds: float, seed: int) -> tuple[int, int]:
    """Read mutated records for so long; return how many, and how many machine code read."""
    chance = random.Random(seed)
    pool = list(records)
    tried = read = 0
    until = time.process_time() + seconds
    while time.process_time() < until:
        tried += 1
        read += lanes.read(mutated(chance.choice(pool), chance))
    return tried, read


_NUMBERS = (0, 0, 1, 2, 127, 128, 10_000, 2**31 - 1, 2**32 - 1, 2**63 - 1)
_ODD_NUMBERS = (-1, 2**31, 2**32, 2**63, 2**64 - 1, 2**64, 2**70, None, True, 1.0, "1", b"")


def a_number(chance: random.Random) -> Any:
    """Return a number, or now and then what is none."""
    return chance.choice(_ODD_NUMBERS if chance.random() < 0.01 else _NUMBERS)


def numbers(chance: random.Random) -> Any:
    """Return ids of fields, or columns."""
    found = [chance.choice((0, 1, 2, -1, -2, 300, 2**31 - 1, -(2**31))) for _ in range(3)]
    found += [a_number(chance)] if chance.random() < 0.1 else []
    return chance.choice((found, found, found, [], tuple(found), None))


def an_append(chance: random.Random, fragment: Any, file: Any) -> list[Any]:
    """Return fragments made by `fragment` of files made by `file`: plain ones, mostly."""

    def rarely(value: Any, plain: Any) -> Any:
        return value if chance.random() < 0.02 else plain

    def a_file() -> Any:
        path = chance.choice(("a.lance", "b" * 200, "\u00e9/\U0001f600", "c"))
        made = file(path=path, fields=numbers(chance))
        made._path = rarely(chance.choice(("", "\ud800", 1, None)), path)
        made.column_indices = numbers(chance)
        made.file_major_version, made.file_minor_version = a_number(chance), a_number(chance)
        made.file_size_bytes = rarely(None, a_number(chance))
        made.base_id = rarely(chance.choice((0, 1)), None)
        return made

    def a_fragment() -> Any:
        files = [a_file() for _ in range(chance.choice((1, 1, 1, 0, 2, 12)))]
        made = fragment(id=0, files=rarely(tuple(files), files), physical_rows=a_number(chance))
        made.id = rarely(a_number(chance), 0)
        made.overlays = rarely(chance.choice((None, ())), [])
        made.deletion_file = rarely([], None)
        made.row_id_meta = made.created_at_version_meta = made.last_updated_at_version_meta = None
        if chance.random() < 0.02:
            setattr(made, chance.choice(("row_id_meta", "created_at_version_meta")), object())
        if chance.random() < 0.01:
            del made.overlays
        return made

    return [a_fragment() for _ in range(chance.choice((1, 1, 1, 0, 3)))]


def search_appends(encode: EncodeAppend, seconds: float, seed: int) -> int:
    """Encode appends for so long; return how many machine code took."""
    chance, taken = random.Random(seed), 0
    until = time.process_time() + seconds
    while time.process_time() < until:
        fragments = an_append(chance, SimpleNamespace, SimpleNamespace)
        version = a_number(chance)
        taken += encode(fragments, version, chance.choice(("u", "", "\ud800", 1))) is not None
    return taken


def main() -> None:
    """Hold a module against Python."""
    path, seconds, seed = sys.argv[1:]
    codec, chain, encode, columns, module = load(Path(path))
    print(f"{search_appends(encode, float(seconds), int(seed))} appends encoded")
    tried, taken = search_rows(columns, mutated, float(seconds), int(seed))
    print(f"{tried} appends changed, rows of {taken} made")
    readers = module.read_plain_append, module.is_plain_fragment
    tried, plain = search_plain_appends(*readers, mutated, float(seconds), int(seed))
    print(f"{tried} messages of appends, {plain} of them plain")
    tried, made = search_json(module.to_json, float(seconds), int(seed))
    print(f"{tried} values, {made} of them written as JSON")
    tried, read = search_parts(module, mutated, float(seconds), int(seed))
    print(f"{tried} chunks of checkpoints, {read} of them read")
    lanes = Lanes(codec)
    records = [one for each in golden_records().values() for one in each]
    whole = sum(map(lanes.read, records))
    tried, read = search(lanes, records, float(seconds), int(seed))
    print(f"{whole} whole, {tried} mutated, {read} of them read")
    with ExitStack() as stack:
        logs = golden_logs(stack)
        tried, followed = search_logs(logs.values(), chain, float(seconds), int(seed))
    print(f"{tried} logs tampered with, {followed} of their outcomes followed")
    with mock.patch.multiple(
        decided_appends, APPENDS=module.Appends, APPEND_HEAD=module.AppendHead
    ):
        odd = [odd_appends(each, 60).log for each in range(3)]
        tried, followed = search_logs(odd, chain, float(seconds), int(seed), again=True)
    print(f"{tried} logs of appends tampered with, {followed} of their outcomes decided again")


if __name__ == "__main__":
    main()
