"""`commitlog explain`: what was compared with what, why it ended so; and verdicts beforehand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pytest
from lance import LanceOperation
from lance.fragment import write_fragments

from commitlog.client.rows.rows import prepare_delete
from commitlog.model.operations import RenameTable
from commitlog.model.records import Outcome, Status
from commitlog.ports import Log
from consumers import cli, history
from consumers.commands.exit_codes import ExitCode
from consumers.tools.rules import put_in_force
from consumers.views import explanation
from consumers.views.version_index import run_index
from tests.namespace_world import World
from tests.operations_world import T, opened, three_fragments
from tests.service import SCHEMA, Service, rows
from tests.waiting import up_to_end


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Service]:
    """Make a table of three fragments; its head is version 4."""
    with three_fragments(tmp_path, stable_row_ids=False) as made:
        yield made


def indexed(root: Path, log: Log) -> Path:
    """Bring the version index up to the log's end."""
    run_index(log, root, **up_to_end())
    return root


def deleting(running: Service, predicate: str) -> Any:
    """Prepare a Delete that reads version 4; return what submits it."""
    prepared = prepare_delete(
        running.client.table(T), lance.dataset(str(running.location(T)), version=4), predicate
    )

    def submit(**options: Any) -> Outcome:
        ticket = running.client.submit(
            T, prepared.operation, read_version=4, affected_rows=prepared.affected, **options
        )
        return ticket.result()

    return submit


def words_of(running: Service, *outcomes: Outcome) -> list[list[str]]:
    """Explain outcomes, each of one attempt."""
    root = indexed(running.root, running.log)
    found = [explanation.explain(root, outcome.transaction_id) for outcome in outcomes]
    return [list(attempt["words"]) for [attempt] in found]  # type: ignore[arg-type]


def test_each_way_to_end_is_explained(running: Service) -> None:
    first, same, other = (deleting(running, f"id = {i}") for i in (1, 1, 2))
    fragments = list(write_fragments(rows(100), str(running.location(T)), schema=SCHEMA))
    outcomes = [
        first(),
        running.client.submit(T, LanceOperation.Append(fragments)).result(),
        other(),
        same(),
        running.client.submit(T, LanceOperation.Restore(99)).result(),
    ]
    statuses = [outcome.status for outcome in outcomes]
    assert statuses == ["committed", "committed", "committed", "retryable", "rejected"]
    plain, append, rebased, refused, rejected = words_of(running, *outcomes)
    assert plain == [
        "It committed.",
        f"Delete of {T} read version 4; version 4 was the newest.",
        "No other commit came in between, so there was nothing to compare it with.",
        "It became version 5.",
    ]
    assert append == [
        "It committed.",
        f"Append of {T} reads nothing: it is as of the head, version 5.",
        "It became version 6.",
    ]
    assert rebased == [
        "It committed.",
        f"Delete of {T} read version 4; version 6 was the newest.",
        "Commits in between, and the verdict on each:",
        "  1 Delete, version 5: Delete or Update over a Delete or Update. (rule rows_deleted)",
        "  1 Append, version 6: compatible, whatever they touched",
        "The rows that it deletes were still there: its deletion vectors were merged with newer"
        " ones on top of version 6, and it became version 7.",
    ]
    assert refused[-2:] == [
        f"Version 7 of {T}, Delete by transaction {outcomes[2].transaction_id}, came first:"
        " delete_delete_same_rows on fragments 0 and keys 0/1.",
        "What to do: Read version 7 and redo the operation.",
    ]
    assert "  2 Delete, versions 5 to 7: " in "\n".join(refused)
    assert rejected[0] == "It was refused: the request itself is wrong."
    assert rejected[-1].startswith("INVALID_OPERATION: Restore of ns$t: version 99 does not exist")


def test_a_record_of_the_log_s_rules_is_explained(running: Service) -> None:
    put_in_force(running.client, lambda now: replace(now, history_versions=7))
    root = indexed(running.root, running.log)
    asked = "SELECT max_by(transaction_id, sequence) AS id FROM transactions WHERE kind='protocol'"
    [row] = history.query(root, asked)
    [told] = explanation.explain(root, str(row["id"]))
    assert "It put rules of the log in force" in str(told["words"])


def test_properties_of_a_table_are_shown_and_explained(
    running: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    done = running.client.set_properties(T, {"owner": "a", "gone": None})
    [words] = words_of(running, done)
    said = [f"It removed gone of {T}.", f"It set owner of {T} to a."]
    assert words[-2:] == said
    assert cli.main(["show", done.transaction_id, "--root", str(running.root)]) == ExitCode.OK
    assert capsys.readouterr().out.splitlines()[-2:] == [f"  {line}" for line in said]


def test_versions_under_a_former_name_are_explained_and_those_of_an_earlier_table_are_not(
    running: Service,
) -> None:
    delete, renamed = deleting(running, "id = 1"), ("ns", "renamed")
    running.client.append(T, rows(100))
    running.client.submit(None, RenameTable(("ns", "t"), renamed)).result().raise_for_conflict()
    running.client.create_table(T, SCHEMA)
    running.client.append(T, rows(1))
    other = running.client.submit(T, LanceOperation.Restore(99)).result()
    running.client.drop_table(T)
    running.client.submit(None, RenameTable(renamed, ("ns", "t"))).result().raise_for_conflict()
    same, refused = words_of(running, delete(), other)
    assert f"Delete of {T} read version 4; version 5 was the newest." in same
    assert any(line.startswith("  1 Append, version 5:") for line in same)
    assert refused[1].endswith("version 2 was the newest.")


def test_the_command_tells_it_in_words_and_as_json(
    running: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = deleting(running, "id = 1")()
    root = str(indexed(running.root, running.log))
    assert cli.main(["explain", outcome.transaction_id, "--root", root]) == ExitCode.OK
    told = capsys.readouterr().out
    assert f"position {outcome.sequence}: committed" in told
    assert "It became version 5." in told
    assert cli.main(["explain", str(outcome.sequence), "--root", root, "--json"]) == ExitCode.OK
    [attempt] = json.loads(capsys.readouterr().out)
    assert attempt["operations"][0]["head"] == 4
    assert cli.main(["explain", "unknown", "--root", root]) == ExitCode.REFUSED


def test_attempts_are_explained_one_by_one(running: Service) -> None:
    first, second = deleting(running, "id = 1"), deleting(running, "id = 1")
    first()
    refused = second()
    again = running.client.delete(T, "id = 2", transaction_id=refused.transaction_id)
    assert again.status is Status.COMMITTED
    root = indexed(running.root, running.log)
    statuses = [one["status"] for one in explanation.explain(root, refused.transaction_id)]
    assert statuses[0] == "retryable"
    assert statuses[-1] == "committed"


def test_iceberg_requirements_are_explained(tmp_path: Path) -> None:
    world = World(tmp_path)
    try:
        server = world.iceberg
        assert server.ask("POST", "/v1/namespaces", {"namespace": ["n"]}).status == 200
        body = {"name": "ice", "schema": {"type": "struct", "fields": []}}
        assert server.ask("POST", "/v1/namespaces/n/tables", body).status == 200
        for schema_id, expected in ((0, 200), (7, 409)):
            requirement = {"type": "assert-current-schema-id", "current-schema-id": schema_id}
            change = {
                "requirements": [requirement],
                "updates": [{"action": "set-properties", "updates": {"a": "b"}}],
            }
            reply = server.ask("POST", "/v1/namespaces/n/tables/ice", change)
            assert reply.status == expected
        root = indexed(tmp_path, world.log.runtime().log)
        made, refused = _newest(root, 2)
        assert any("held" in line for line in made)
        assert any("required" in line and "it has" in line for line in refused), refused
    finally:
        world.close()


def _newest(root: Path, count: int) -> list[list[str]]:
    from consumers import history

    rows = history.query(
        root, "SELECT transaction_id FROM transactions ORDER BY sequence DESC LIMIT ?", [count]
    )
    ids = [str(row["transaction_id"]) for row in reversed(rows)]
    found = [explanation.explain(root, one)[-1]["words"] for one in ids]
    return [list(map(str, words)) for words in found]  # type: ignore[arg-type]


def test_a_verdict_beforehand_is_the_one_that_follows(running: Service) -> None:
    first, same, other = (deleting(running, f"id = {i}") for i in (1, 1, 2))
    assert first(dry_run=True).version == 5
    assert first().version == 5
    assert same(dry_run=True).status is Status.RETRYABLE
    verdict = other(dry_run=True)
    assert (verdict.status, verdict.version) == (Status.COMMITTED, 6)
    assert verdict.results[0].rebased
    head = running.client.table(T).version
    sequence = running.client.runtime().request(0, "status")["sequence"]
    files = {path for path in running.location(T).rglob("*") if path.is_file()}
    schema = opened(running).lance_schema
    project = LanceOperation.Project(schema, True)
    for operation in (LanceOperation.Restore(2), project):
        verdict = running.client.submit(T, operation, dry_run=True).result()
        assert verdict.status is Status.COMMITTED, verdict.message
        assert verdict.version == head + 1
    assert running.client.submit(T, LanceOperation.Restore(99), dry_run=True).result().code
    assert running.client.table(T).version == head
    assert running.client.runtime().request(0, "status")["sequence"] == sequence
    left = {path for path in running.location(T).rglob("*") if path.is_file()} - files
    assert left == set(), "what was built for a verdict is removed again"
    assert SCHEMA.names == opened(running).schema.names
