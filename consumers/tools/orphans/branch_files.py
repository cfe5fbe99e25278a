"""Which files of Lance's own branches somebody needs.

The log doesn't order the versions of a branch that Lance made beside a table, in `tree/<branch>`:
what its manifests name is needed as long as they and its reference are there. A branch without a
reference was deleted, by somebody who didn't come to its files perhaps.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

from commitlog.adapters.storage import ObjectStore, store_for
from commitlog.codecs.manifest_file import (
    TRANSACTIONS_DIRECTORY,
    VERSIONS_DIRECTORY,
    decode_manifest,
    parse_manifest_name,
)
from commitlog.lancepb.table_pb2 import DataFragment, IndexSection
from consumers.tools.orphans.file_ledger import LifeFiles
from consumers.tools.orphans.named_files import INDICES, index_folder, paths_in

TREE = "tree/"
FOLDERS = (VERSIONS_DIRECTORY, TRANSACTIONS_DIRECTORY, "data", "_deletions", INDICES)
_REFERENCES, _SUFFIX = "_refs/branches", ".json"


def branch_names(store: ObjectStore) -> set[str]:
    """Return the branches that a table's folder has references of."""
    names = store.names(_REFERENCES)
    return {unquote(name.removesuffix(_SUFFIX)) for name in names if name.endswith(_SUFFIX)}


def branch_of(path: str) -> tuple[str, str]:
    """Return the branch of a file below a table, and its path there; empty if it is of none."""
    if path.startswith(TREE):
        parts = path.split("/")
        at = next((at for at, part in enumerate(parts) if at > 1 and part in FOLDERS), 0)
        if at:
            return "/".join(parts[1:at]), "/".join(parts[at:])
    return "", path


def branch_life(life: LifeFiles, branch: str) -> LifeFiles:
    """Return a branch as a table of its own, without any versions."""
    return LifeFiles(life.table, life.incarnation, f"{life.location}/{TREE}{branch}")


def needed_by_branches(life: LifeFiles) -> Iterator[str]:
    """Yield the files that versions of Lance's own branches of a table read; raise OSError."""
    store = store_for(life.location)
    for branch in branch_names(store):
        at = branch_life(life, branch)
        for name in store.names(f"{TREE}{branch}/{VERSIONS_DIRECTORY}"):
            parsed = parse_manifest_name(name)
            if parsed is None or parsed.staged_by:
                continue
            state, _ = decode_manifest(store.read(f"{TREE}{branch}/{VERSIONS_DIRECTORY}/{name}"))
            at.bases = {base.id: base for base in state.header.message.base_paths}
            yield at.place(f"{TRANSACTIONS_DIRECTORY}/{state.transaction_file}")
            for encoded in state.fragments.values():
                yield from paths_in(at, DataFragment.FromString(encoded))
            for index in IndexSection.FromString(state.index_section or b"").indices:
                yield from index_folder(at, index)
