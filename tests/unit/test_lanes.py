"""Does machine code read and write records as Python does, and does Python do without it?"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from lance import LanceOperation
from lance.fragment import DataFile, FragmentMetadata

from commitlog.client.commits.append_records import around
from commitlog.client.rows.contents import contents, summary
from commitlog.codecs import lanes as installed
from commitlog.codecs.avro import PREFIX_BYTES
from commitlog.codecs.avro_lanes import sha256
from commitlog.codecs.lance_objects import to_transaction
from commitlog.core.log.attribution import attributed
from commitlog.model.operations import ROW_OPERATIONS, LanceCommit, Summary
from commitlog.model.records import Outcome, Transaction
from infra.native import MODULE, NoCompiler, build
from tests.child import ended
from tests.lanes import (
    COMPILED,
    Lanes,
    a_number,
    an_append,
    golden_records,
    load,
    mutated,
    search,
)
from tests.parts_lanes import search_parts
from tests.properties.test_avro import TRANSACTIONS, dataclass_of
from tests.verified import INDEXED_SECONDS

SECONDS, SEED, APPENDS = 1.0, 1, 2_000
WHICH = "from commitlog.codecs.lanes import lane; print(lane())"


@pytest.fixture(scope="module")
def lanes(native_module: Path) -> Lanes:
    return Lanes(load(native_module)[0])


@pytest.fixture(scope="module")
def golden() -> dict[str, list[bytes]]:
    return golden_records()


@pytest.mark.slow
def test_every_golden_record_is_read_and_written_alike(
    lanes: Lanes, golden: dict[str, list[bytes]]
) -> None:
    prefixes = {one.prefix for one in lanes.python.values()}
    for name, records in golden.items():
        of_schemas = [one for one in records if one[:PREFIX_BYTES] in prefixes]
        assert len(of_schemas) >= len(COMPILED), name
        assert all(lanes.read(one) for one in of_schemas), "all that is whole, in machine code"
        assert not any(lanes.read(one) for one in records if one not in of_schemas)


@pytest.mark.slow
@given(transaction=TRANSACTIONS, outcome=dataclass_of(Outcome))
def test_any_value_is_written_and_read_alike(
    lanes: Lanes, transaction: Transaction, outcome: Outcome
) -> None:
    has_rows = not ROW_OPERATIONS.isdisjoint(map(type, transaction.operations))
    names: dict[str, Transaction | Outcome] = {"transaction-v2": transaction}
    if not has_rows:
        names["transaction-v1"] = transaction
    names |= {"outcome-v1": outcome, "outcome-v2": outcome}
    for name, value in names.items():
        assert lanes.read(lanes.write(name, value)) == 1


@pytest.mark.slow
def test_mutated_records_are_read_alike_or_left_to_python(
    lanes: Lanes, golden: dict[str, list[bytes]]
) -> None:
    records = [one for each in golden.values() for one in each]
    tried, read = search(lanes, records, SECONDS, SEED)
    assert 0 < read < tried


ODD: tuple[object, ...] = (
    True,
    1.0,
    None,
    "",
    b"",
    (),
    [],
    2**63,
    "\ud800",
    object(),
    (("a", 1), ("a", "b")),
)


@pytest.mark.parametrize("name", COMPILED)
def test_values_of_other_types_are_left_to_python(lanes: Lanes, name: str) -> None:
    kind: type[Any] = Transaction if name.startswith("transaction") else Outcome
    native, python = lanes.native[name], lanes.python[name]
    given = {"transaction_id": "a", "sequence": 1, "transaction_offset": 1, "operations": ()}
    given = {field: value for field, value in given.items() if field in kind.__slots__}
    given |= {"status": "committed"} if kind is Outcome else {}
    assert native._native is not None
    refused = 0
    for field in kind.__slots__:
        for odd in ODD:
            value = kind(**{**given, field: odd})
            made = native._native.write(value)
            refused += made is None
            assert made is None or made == python.encode(value), (field, odd)
    assert refused > len(kind.__slots__)
    assert native._native.write(object()) is None
    assert native._native.read(bytearray(python.prefix)) is None  # type: ignore[arg-type]


@pytest.mark.slow
def test_reading_and_writing_keep_no_memory(lanes: Lanes, golden: dict[str, list[bytes]]) -> None:
    records = [
        one for one in golden[""] if one[:PREFIX_BYTES] in {p.prefix for p in lanes.python.values()}
    ]
    broken = [one[:end] for one in records for end in range(0, len(one), 3)]

    def work() -> None:
        for one in (*records, *broken):
            for schema in lanes.native.values():
                assert schema._native is not None
                if (found := schema._native.read(one)) is not None:
                    schema._native.write(found[0])

    work()
    before = sys.getallocatedblocks()
    for _ in range(5):
        work()
    # One lost reference in one record would show hundreds of times.
    assert sys.getallocatedblocks() - before < 100


@pytest.mark.slow
def test_an_address_sanitizer_finds_nothing_in_mutated_records(tmp_path: Path) -> None:
    # Any other level compiles with three times the CPU, and leaves fewer accesses to look at.
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g1", "-O0")
    try:
        path = build(tmp_path, *flags)
    except NoCompiler as error:
        pytest.skip(str(error))
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("the sanitizers' libraries are found by gcc")
    libraries = [
        ended([compiler, f"-print-file-name=lib{name}.so"], check=True).stdout.strip()
        for name in ("asan", "ubsan")
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.lanes", str(path), str(SECONDS), str(SEED)],
        capture_output=True,
        text=True,
        check=False,
        timeout=INDEXED_SECONDS,
        env={
            **os.environ,
            "LD_PRELOAD": " ".join(libraries),
            "PYTHONMALLOC": "malloc",
            # Python ends without freeing all that it had.
            "ASAN_OPTIONS": "detect_leaks=0",
        },
    )
    assert done.returncode == 0, done.stderr[-5000:]


def test_an_append_is_encoded_as_python_does_it_or_left_to_it(native_module: Path) -> None:
    encode, chance, taken = load(native_module)[2], random.Random(SEED), 0
    for _ in range(APPENDS):
        fragments = an_append(chance, FragmentMetadata, DataFile)
        version, uuid = a_number(chance), chance.choice(("u-1", "u-1", "", "\ud800"))
        found = encode(fragments, version, uuid)
        if found is None:
            continue
        taken += 1
        append = LanceOperation.Append(fragments)
        message, metadata = to_transaction(append, read_version=version, uuid=uuid)
        assert metadata is None
        which, added, updated, removed = contents(message)
        assert (which, list(updated), list(removed)) == ("append", [], [])
        data, rows, size, files = found
        assert data == message.SerializeToString(deterministic=True)
        said = summary(added, (), (), ())
        assert (rows, size) == (said.rows_added, said.bytes_added)
        brought = [file for fragment in added for file in fragment.files]
        assert files == [(one.path, one.file_size_bytes, list(one.fields)) for one in brought]
        assert not any(fragment.id for fragment in added)
    assert taken > APPENDS // 8


def test_the_record_of_an_append_is_encoded_as_python_does_it(
    native_module: Path, lanes: Lanes
) -> None:
    *_, native = load(native_module)
    chance, python = random.Random(SEED), lanes.python["transaction-v1"]
    for _ in range(APPENDS):
        fragments = an_append(chance, FragmentMetadata, DataFile)
        version, time_ms = a_number(chance), a_number(chance)
        table = chance.choice((("t",), ("shop", "\u00e9t\u00e9" * 100)))
        incarnation, principal = (
            chance.choice(("", "life-1")),
            chance.choice(("", "jo", "\u00e9" * 99)),
        )
        found = native.encode_append_record(
            fragments, version, "u-1", time_ms, around(table, incarnation, principal)
        )
        made = native.encode_append(fragments, version, "u-1")
        if made is None or type(time_ms) is not int or not 0 <= time_ms < 2**63:
            assert found is None
            continue
        message, rows, size, files = made
        said = Summary(
            rows_added=rows,
            bytes_added=size,
            fragments_added=len(fragments),
            data_files=tuple(path for path, _, _ in files),
        )
        commit = LanceCommit(table, "Append", version, message, incarnation, summary=said)
        asked = Transaction("u-1", (commit,), principal=principal, submitted_at_ms=time_ms)
        assert found == (python.encode(attributed(asked)), files)


@pytest.mark.parametrize(
    "given",
    [
        (),
        ([], 1, "u", 2),
        ([], 1, "u", 2, ()),
        ([], 1, "u", 2, ("",) * 4),
        ([], 1, "u", -1, (b"",) * 4),
    ],
)
def test_a_record_with_other_things_around_is_left_to_python(
    native_module: Path, given: tuple[Any, ...]
) -> None:
    assert load(native_module)[-1].encode_append_record(*given) is None


@pytest.mark.slow
def test_encoding_appends_keeps_no_memory(native_module: Path) -> None:
    *_, native = load(native_module)
    surroundings = around(("t",), "life", "jo")

    def work() -> None:
        chance = random.Random(SEED)
        for _ in range(APPENDS):
            fragments = an_append(chance, SimpleNamespace, SimpleNamespace)
            native.encode_append(fragments, a_number(chance), "u")
            native.encode_append_record(fragments, a_number(chance), "u", 1, surroundings)

    work()
    before = sys.getallocatedblocks()
    work()
    assert sys.getallocatedblocks() - before < 100


@pytest.mark.slow
def test_chunks_of_a_checkpoint_are_read_alike_or_left_to_python(native_module: Path) -> None:
    tried, read = search_parts(load(native_module)[4], mutated, SECONDS, SEED)
    assert tried // 8 < read < tried


def said_with(lane: str, program: str = WHICH) -> tuple[int, str]:
    """Return what a program ends with, and what it says, where the variable is set."""
    done = ended([sys.executable, "-c", program], env={**os.environ, installed.VARIABLE: lane})
    return done.returncode, (done.stdout + done.stderr).strip()


def test_a_ctrl_c_in_what_machine_code_calls_is_not_taken_for_a_refusal(
    native_module: Path, golden: dict[str, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def interrupted(data: bytes) -> bytes:
        calls.append(data)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return sha256(data)

    monkeypatch.setattr("commitlog.codecs.avro_lanes.sha256", interrupted)
    read = Lanes(load(native_module)[0]).native["transaction-v2"]
    record = next(one for one in chain(*golden.values()) if one.startswith(read.prefix))
    with pytest.raises(KeyboardInterrupt):
        read.read(record)
    assert read.read(record) is not None


def test_a_variable_chooses_the_lane(native_module: Path) -> None:
    del native_module
    assert said_with("python") == (0, "python")
    assert said_with("")[1] in {"python", "native"}
    code, said = said_with("native")
    assert said == "native" if installed.CODEC is not None else code == 1


def test_a_lane_that_there_is_not_is_refused() -> None:
    code, said = said_with("rust")
    assert code == 1
    assert "InvalidRequest: COMMITLOG_LANE is 'rust'. Set it to 'python' or 'native'" in said


def test_without_a_compiler_nothing_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "nothing"))
    with pytest.raises(NoCompiler, match="no C compiler"):
        build(tmp_path)
    monkeypatch.setenv("CC", "false")
    with pytest.raises(NoCompiler, match="failed"):
        build(tmp_path)
    monkeypatch.setenv(installed.VARIABLE, "python")
    with pytest.raises(NoCompiler, match=installed.VARIABLE):
        build(tmp_path)
    assert not (tmp_path / MODULE).exists()
