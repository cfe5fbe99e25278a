"""The tags of a Lance table, as they lie beside it: one small file each, which Lance writes.

They are no part of the log: whoever may write to a table's folder may move them at any time.
"""

from __future__ import annotations

import json
import logging

from commitlog.adapters.storage import store_for

_FOLDER = "_refs/tags"
_SUFFIX = ".json"

logger = logging.getLogger(__name__)


def lance_tags(location: str) -> dict[str, int]:
    """Return the versions of the main branch by the tags that name them now; raise OSError."""
    store = store_for(location)
    found: dict[str, int] = {}
    for name in store.names(_FOLDER):
        if not name.endswith(_SUFFIX):
            continue
        try:
            tag = json.loads(store.read(f"{_FOLDER}/{name}"))
            if tag.get("branch") is None:
                found[name.removesuffix(_SUFFIX)] = int(tag["version"])
        except FileNotFoundError:
            continue  # deleted meanwhile
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("the tag %s of %s cannot be read: %s", name, location, error)
    return found
