"""Fragments as a Delete or an Update lists them: as they are to be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from zlib import crc32

from commitlog.core.conflicts.history import Aspect
from commitlog.core.manifest.deletion_vectors import deletion_file_of
from commitlog.core.manifest.indices import retain_relevant
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.model.records import FragmentImage


def files_digest(fragment: DataFragment) -> int:
    """Digest a fragment's data files, by which Lance tells whether they changed."""
    digest = 0
    for data_file in fragment.files:
        digest = crc32(data_file.SerializeToString(deterministic=True), digest)
    return digest


def image_aspects(
    kind: str, images: Iterable[DataFragment], before: ManifestState
) -> tuple[list[Aspect], list[tuple[int, str]]]:
    """Return what images touch, and the deletion files of the fragments that get another one."""
    aspects: list[Aspect] = []
    deletion_files: list[tuple[int, str]] = []
    for image in images:
        aspects.append((f"{kind}.updated", image.id))
        known = before.fragments.get(image.id)
        if known is None:
            continue
        fragment = DataFragment.FromString(known)
        if files_digest(fragment) != files_digest(image):
            aspects.append(("files", image.id))
        if fragment.deletion_file != image.deletion_file:
            deletion_files.append((image.id, deletion_file_of(fragment)))
    return aspects, deletion_files


def put_rebased(updated: Any, removed: Any, images: Iterable[FragmentImage]) -> None:
    """Put fragments as rebased among the updated ones; those without a row are removed."""
    rebased = {image.fragment_id: image.image for image in images}
    kept: list[DataFragment] = []
    for fragment in updated:
        image = rebased.get(fragment.id, b"")
        if image is not None:
            kept.append(DataFragment.FromString(image or fragment.SerializeToString()))
    del updated[:]
    updated.extend(kept)
    removed.extend(sorted(fragment_id for fragment_id, image in rebased.items() if image is None))


def retained_indices(state: ManifestState, removed: tuple[int, ...]) -> bytes | None:
    """Return the indices that make sense without these fragments, None if all do."""
    if not state.index_section:
        return None
    return retain_relevant(state.index_section, state.header.fields, state.fragments, removed)
