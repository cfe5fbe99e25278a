"""A table of three fragments in a running service, and what tests of operations do with it.

What a test asserts is seen by plain pylance, which opens the table by its path.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance import LanceOperation
from lance.commit import CommitConflictError
from lance.file import LanceFileWriter
from lance.fragment import DataFile, write_fragments

from commitlog.codecs.manifest_file import decode_manifest, manifest_name
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.lancepb.table_pb2 import DataFragment, IndexSection
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.records import Code, Outcome, Status
from consumers.tools.verify import VerifyOptions, verify
from tests.service import SCHEMA, Service, rows, service

T = "ns$t"


@contextmanager
def three_fragments(root: Path, *, stable_row_ids: bool) -> Iterator[Service]:
    """Make a table of three fragments: ids 0 to 3, 4 to 7, 8 to 11; its head is version 4."""
    with service(root) as made:
        made.client.create_table(T, SCHEMA, stable_row_ids=stable_row_ids)
        for first in (0, 4, 8):
            made.client.append(T, rows(*range(first, first + 4)))
        yield made


@contextmanager
def six_versions(root: Path, *, stable_row_ids: bool) -> Iterator[Service]:
    """Make the same table with an index on `id`, and delete row 1: its head is version 6."""
    with three_fragments(root, stable_row_ids=stable_row_ids) as made:
        made.client.open(T).create_scalar_index("id", "BTREE", name="by_id")
        made.client.delete(T, "id = 1")
        yield made


def version_without_file(running: Service, name: str) -> int:
    """Make a table of one-row appends under `latest`; return a version that has no manifest."""
    running.client.create_table(name, SCHEMA, policy="latest")
    location = running.location(name)
    [fragment] = write_fragments(rows(1), str(location), schema=SCHEMA)
    append = LanceOperation.Append([fragment])
    tickets = [running.client.submit(name, append) for _ in range(40)]
    assert {ticket.result().status for ticket in tickets} == {Status.COMMITTED}
    versions = location / "_versions"
    return next(v for v in range(2, 41) if not (versions / manifest_name(v)).exists())


def patched(fragment: lance.LanceFragment, data: pa.Table) -> LanceOperation.Update:
    """Write new values of a fragment's rows, named by `id`, and return what commits them."""
    image, fields, offsets = fragment.update_columns(data, "id", "id", with_offsets=True)
    return LanceOperation.Update(
        updated_fragments=[image],
        fields_modified=fields,
        update_mode="rewrite_columns",
        updated_fragment_offsets={fragment.fragment_id: offsets},
    )


def comparable(root: Path, version: int) -> dict[str, Any]:
    """Return what a manifest says, without its time and its transaction."""
    state, encoded = decode_manifest((root / "_versions" / manifest_name(version)).read_bytes())
    assert encoded is not None
    return {
        "flags": (state.reader_feature_flags, state.writer_feature_flags),
        "ids": (state.version, state.max_fragment_id, state.next_row_id),
        "header": state.header.message,
        "fragments": [DataFragment.FromString(f) for f in state.fragments.values()],
        "indices": list(IndexSection.FromString(state.index_section or b"").indices),
    }


def opened(running: Service) -> lance.LanceDataset:
    """Open the table by its path, as if there were no log."""
    return lance.dataset(str(running.location(T)))


def submit(running: Service, operation: Any, read_version: int | None = None) -> Outcome:
    """Submit an operation and wait until it can be read."""
    return running.client.submit(T, operation, read_version=read_version).result()


def committed(running: Service, operation: Any, read_version: int | None = None) -> Outcome:
    """Submit an operation, which commits."""
    outcome = submit(running, operation, read_version)
    assert outcome.status is Status.COMMITTED, outcome.message
    assert lance.dataset(str(running.location(T))).version == outcome.version
    return outcome


def replay(running: Service) -> None:
    """Have another committer lead, which makes the same state of the log as the first one had."""
    first = running.running[0]
    first.stop()
    follower = first.committer._follower
    rebuilt = running.start(running.root / "again").await_leading().committer._follower
    assert follower is not None
    assert rebuilt is not None
    assert rebuilt.machine.digest() == follower.machine.digest()


def refused(running: Service, operation: Any, code: Code, *words: str) -> None:
    """Submit an operation, which is refused in these words, and nothing changes."""
    before = opened(running).version
    outcome = submit(running, operation)
    assert (outcome.status, outcome.code) == (Status.REJECTED, code), outcome.message
    for word in words:
        assert word in outcome.message
    assert opened(running).version == before
    assert running.client.table(T).version == before


def message(running: Service, **fields: Any) -> Transaction:
    """Return Lance's message for an operation that read the head."""
    head = running.client.table(T).version
    return Transaction(read_version=head, uuid=str(uuid.uuid4()), **fields)


def column_file(dataset: lance.LanceDataset, values: list[Any], column: int = 1) -> DataFile:
    """Write a file of one column alone, of `name` if none is given."""
    name = f"{uuid.uuid4()}.lance"
    schema = pa.schema([SCHEMA.field(column)])
    found = dataset.get_fragments()[0].metadata.files[0]
    major, minor = found.file_major_version, found.file_minor_version
    path = Path(dataset.uri) / "data" / name
    with LanceFileWriter(str(path), schema, version=f"{major}.{minor}") as writer:
        writer.write_batch(pa.table([values], schema=schema))
    return DataFile(name, [column], [0], major, minor, path.stat().st_size)


def pylance_commits(path: str, transaction: lance.Transaction) -> Status:
    """Commit a transaction by pylance alone; say how it ended."""
    try:
        lance.LanceDataset.commit(path, transaction)
    except CommitConflictError as error:
        return Status.RETRYABLE if error.retryable else Status.INCOMPATIBLE
    return Status.COMMITTED


def decided_again_alike(running: Service) -> None:
    """Decide the whole log again by the leader's own code; nothing may differ."""
    verdict = verify(running.log, 0, VerifyOptions(root=running.root))
    assert verdict.problems == []
    assert verdict.decided_again == verdict.outcomes
    assert verdict.not_decided_again == 0


def manifest(running: Service, version: int) -> tuple[ManifestState, Transaction]:
    """Read a version's manifest from its file, and the transaction in it."""
    path = running.location(T) / "_versions" / manifest_name(version)
    state, encoded = decode_manifest(path.read_bytes())
    assert encoded is not None
    return state, Transaction.FromString(encoded)
