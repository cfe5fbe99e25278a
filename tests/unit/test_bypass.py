"""A leader that looks for versions written around the log moves none of the log's own away."""

from __future__ import annotations

from pathlib import Path

from commitlog.adapters.storage import LocalStore
from commitlog.codecs.manifest_file import manifest_name
from commitlog.model.table import Policy
from consumers.partition.files.bypass import quarantine_foreign
from consumers.partition.files.catalogue import Head

PATH = f"_versions/{manifest_name(2)}"


def test_a_leader_that_is_held_up_takes_no_version_of_a_later_leader(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.write(PATH, b"a stranger's")
    head = Head(("t",), "i", str(tmp_path), Policy.EVERY, 1, None, (), (), False)

    def ask_head() -> Head:
        # A later leader commits version 2 right after this one was told of version 1.
        store.write(PATH, b"the log's")
        return head

    assert not quarantine_foreign(head, ask_head, lambda head, version: None)
    assert store.read(PATH) == b"the log's"
