"""Conversations with the machine: what was asked, and what it answered.

A file holds lines to ask, `----`, and the answers. `--rewrite` writes the answers anew; read the
difference before keeping it.

    create T [columns=N] [key=c0] [at=/location]
    append T ID read=N path … [keys=a,b] [fields=0,1] [app=name:sequence:run]
    delete T ID read=N fragment:row,row … [whole=3,4] [derived]
    update T ID read=N fragment:row,row … [keys=a,b]      moves the rows to a new fragment
    overwrite T ID read=N path …
    reserve T ID read=N count
    config T ID read=N key=value … | key= (removes) | replace
    drop T ID     rename T ID NEW     again ID [attempt=N]     missing path
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyroaring import BitMap

from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.manifest.roaring import portable
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.operations import AffectedRows, DropTable, LanceCommit, RenameTable
from commitlog.model.records import Application, Outcome, Transaction
from tests.core_world import (
    ROOT,
    World,
    append,
    column,
    commit,
    delete,
    key_hashes,
    new_fragment,
    with_attempt,
)

HERE = Path(__file__).parent


class Conversation:
    """Reads lines and asks the machine."""

    def __init__(self) -> None:
        """Start with an empty log."""
        self.world = World()
        self.states: dict[int, ManifestState] = {}
        self.asked: dict[str, Transaction] = {}

    def say(self, line: str) -> str | None:
        """Carry out a line; return the answer."""
        verb, *words = shlex.split(line)
        if verb == "missing":
            self.world.missing.add(f"data/{words[0]}")
            return None
        if verb == "again":
            outcome = self.again(words[0], words[1:])
            return f"{words[0]} again: {told(outcome)}"
        if verb == "create":
            return f"{words[0]} {told(self.create(words[0], options(words[1:])))}"
        table, name, *rest = words
        plain = [word for word in rest if "=" not in word or verb == "config"]
        outcome = self.ask(verb, table, name, plain, options(rest))
        return f"{name} {told(outcome)}"

    def create(self, table: str, given: dict[str, str]) -> Outcome:
        """Create a table."""
        more: dict[str, object] = {}
        if "key" in given:
            more["primary_key"] = tuple(given["key"].split(","))
        outcome = self.world.create(table, columns=int(given.get("columns", "1")), **more)
        self.keep_states()
        return outcome

    def keep_states(self) -> None:
        """Keep table t's manifests: a late writer made its images from an early one."""
        table = self.world.machine.tables.get(("t",))
        if table is not None and table.manifest is not None:
            self.states.setdefault(table.version, table.manifest.copy())

    def ask(
        self, verb: str, table: str, name: str, plain: list[str], given: dict[str, str]
    ) -> Outcome:
        """Run one operation as a transaction."""
        table_id = tuple(table.split("$"))
        if verb == "drop":
            return self.world.ask(name, DropTable(table_id))
        if verb == "rename":
            return self.world.ask(name, RenameTable(table_id, tuple(plain[0].split("$"))))
        read = int(given.get("read", "0"))
        operation = VERBS[verb](self, read, plain, given)
        application = None
        if "app" in given:
            app, sequence, *run = given["app"].split(":")
            application = Application(app, int(sequence), run[0] if run else "")
        outcome = self.world.ask(name, replace(operation, table=table_id), application=application)
        record = self.world.log[-1][0].record
        assert isinstance(record, Transaction)
        self.asked[name] = record
        self.keep_states()
        return outcome

    def again(self, name: str, rest: list[str]) -> Outcome:
        """Send the same record again."""
        attempt = int(options(rest).get("attempt", "0"))
        return self.world.run(with_attempt(self.asked[name], attempt))

    def delete(self, read: int, plain: list[str], given: dict[str, str]) -> LanceCommit:
        """Delete rows."""
        state = self.states[read]
        base = {
            f: list(self.world.deleted_rows(f, state))
            for f in rows_of(plain)
            if f in state.fragments
        }
        whole = [int(f) for f in given.get("whole", "").split(",") if f]
        return delete(
            self.world,
            read,
            rows_of(plain),
            whole=whole,
            state=state,
            with_rows="derived" not in plain,
            base=base,
        )

    def update(self, read: int, plain: list[str], given: dict[str, str]) -> LanceCommit:
        """Move rows into a new fragment."""
        deleting = self.delete(read, plain, given)
        deletes = LanceTransaction.FromString(deleting.message)
        transaction = LanceTransaction(read_version=read, uuid=deletes.uuid)
        transaction.update.updated_fragments.extend(deletes.delete.updated_fragments)
        transaction.update.removed_fragment_ids.extend(deletes.delete.deleted_fragment_ids)
        if "columns" in plain:
            transaction.update.update_mode = LanceTransaction.REWRITE_COLUMNS
            transaction.update.fields_modified.append(0)
            for image in transaction.update.updated_fragments:
                image.ClearField("deletion_file")
                image.files[0].path = f"patched-{transaction.uuid}.lance"
            return commit(transaction)
        moved = sum(len(rows) for rows in rows_of(plain).values())
        fragment = new_fragment(f"moved-{transaction.uuid}.lance", max(moved, 1))
        transaction.update.new_fragments.append(fragment)
        keys = [k.encode() for k in given["keys"].split(",")] if "keys" in given else None
        affected = tuple(
            AffectedRows(f, portable(BitMap(rows))) for f, rows in rows_of(plain).items()
        )
        return commit(transaction, inserted_keys=key_hashes(keys), affected_rows=affected)

    def append(self, read: int, plain: list[str], given: dict[str, str]) -> LanceCommit:
        """Append fragments."""
        keys = [k.encode() for k in given["keys"].split(",")] if "keys" in given else None
        fields = [int(f) for f in given.get("fields", "0").split(",")]
        return append(read, *plain, keys=keys, fields=fields)

    def overwrite(self, read: int, plain: list[str], given: dict[str, str]) -> LanceCommit:
        """Replace everything."""
        transaction = LanceTransaction(read_version=read, uuid="o1")
        transaction.overwrite.schema.add().ParseFromString(column("c0", 0))
        transaction.overwrite.fragments.extend(new_fragment(path) for path in plain)
        if "set" in given:
            transaction.overwrite.config_upsert_values[given["set"]] = "1"
        return commit(transaction)

    def reserve(self, read: int, plain: list[str], given: dict[str, str]) -> LanceCommit:
        """Reserve fragment ids."""
        transaction = LanceTransaction(read_version=read, uuid="r1")
        transaction.reserve_fragments.num_fragments = int(plain[0])
        return commit(transaction)

    def config(self, read: int, plain: list[str], given: dict[str, str]) -> LanceCommit:
        """Change the table's configuration."""
        transaction = LanceTransaction(read_version=read, uuid="c1")
        updates = transaction.update_config.config_updates
        updates.SetInParent()
        for word in plain:
            key, has_value, value = word.partition("=")
            if key == "read":
                continue
            if word == "replace":
                updates.replace = True
            elif has_value and not value:
                updates.update_entries.add(key=key)
            else:
                updates.update_entries.add(key=key, value=value)
        return commit(transaction)


VERBS: dict[str, Callable[[Conversation, int, list[str], dict[str, str]], LanceCommit]] = {
    "append": Conversation.append,
    "delete": Conversation.delete,
    "update": Conversation.update,
    "overwrite": Conversation.overwrite,
    "reserve": Conversation.reserve,
    "config": Conversation.config,
}


def options(words: list[str]) -> dict[str, str]:
    """Return the words of the form name=value."""
    return dict(word.split("=", 1) for word in words if "=" in word)


def rows_of(words: list[str]) -> dict[int, list[int]]:
    """Read `fragment:row,row`; a row may be a range like 0-9."""
    found: dict[int, list[int]] = {}
    for word in words:
        fragment_id, separator, rows = word.partition(":")
        if not separator:
            continue
        listed: list[int] = []
        for row in filter(None, rows.split(",")):
            first, _, last = row.partition("-")
            listed.extend(range(int(first), int(last or first) + 1))
        found[int(fragment_id)] = listed
    return found


def told(outcome: Outcome) -> str:
    """Say an outcome in a line."""
    words = [str(outcome.status)]
    if outcome.version:
        words.append(f"v{outcome.version}")
    if outcome.answers is not None:
        words.append(f"as outcome {outcome.answers}")
    result = outcome.results[0] if outcome.results else None
    if result is not None and result.rebased:
        gone = [i.fragment_id for i in result.images if i.image is None]
        words.append("rebased" + (f", emptied {gone}" if gone else ""))
    if outcome.conflict is not None and outcome.conflict.rule:
        conflict = outcome.conflict
        words.append(f"over v{conflict.version} {conflict.transaction_id}: {conflict.rule}")
        if conflict.keys:
            words.append(f"({', '.join(key[:12] for key in conflict.keys)})")
    elif outcome.code:
        words.append(str(outcome.code))
    return " ".join(words)


@pytest.mark.parametrize("path", sorted(HERE.glob("*.txt")), ids=lambda path: path.stem)
def test_conversation(path: Path, request: pytest.FixtureRequest) -> None:
    asked, _, expected = path.read_text().partition("----\n")
    conversation = Conversation()
    answers = []
    for line in asked.splitlines():
        if line.strip() and not line.startswith("#"):
            answer = conversation.say(line)
            if answer is not None:
                answers.append(answer)
    got = "\n".join(answers) + "\n"
    if request.config.getoption("--rewrite"):
        path.write_text(f"{asked}----\n{got}")
    assert got == expected or request.config.getoption("--rewrite")
    assert conversation.world.replayed().digest() == conversation.world.machine.digest(), ROOT
