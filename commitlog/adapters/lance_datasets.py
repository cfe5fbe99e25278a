"""Opens datasets by path, each with the storage options of its location."""

from __future__ import annotations

from typing import Any

import lance

from commitlog.adapters.storage_options import storage_options


def open_dataset(location: str, version: int | None = None, **more: Any) -> lance.LanceDataset:
    """Open a version, the newest if none is named; ValueError or OSError if it can't be."""
    return lance.dataset(
        location, version=version, storage_options=storage_options(location) or None, **more
    )
