"""What `commitlog up` leaves in a root: how to reach what runs there, and where its places are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from commitlog.adapters import disk

ENDPOINTS = "endpoints.json"


def read_endpoints(root: Path) -> dict[str, str]:
    """Return what was left in a root, empty if nothing is; OSError if it can't be read.

    What isn't of that form counts as nothing: `up` writes it anew, and `is_damaged` tells.
    """
    try:
        left = json.loads((root / ENDPOINTS).read_text(encoding="utf-8"))
        endpoints = {str(name): str(value) for name, value in left.items()}
        _roots_in(endpoints)
    except (FileNotFoundError, NotADirectoryError, ValueError, AttributeError):
        return {}
    return endpoints


def is_damaged(root: Path) -> bool:
    """Return True if something is there that nobody left."""
    return (root / ENDPOINTS).exists() and not read_endpoints(root)


def noted_roots(root: Path) -> dict[str, str]:
    """Return where named roots are, as far as that was left."""
    return _roots_in(read_endpoints(root))


def _roots_in(endpoints: Mapping[str, str]) -> dict[str, str]:
    """Return the named roots among endpoints; ValueError or AttributeError if they are none."""
    roots = json.loads(endpoints.get("roots", "{}"))
    return {str(name): str(place) for name, place in roots.items()}


def write_endpoints(root: Path, endpoints: Mapping[str, str]) -> None:
    """Leave in a root how to reach what runs there, after a power cut too."""
    replacement = root / f"{ENDPOINTS}.new"
    replacement.write_text(json.dumps(dict(endpoints), indent=2) + "\n", encoding="utf-8")
    disk.sync(replacement)
    replacement.replace(root / ENDPOINTS)
