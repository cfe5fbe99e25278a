"""What clients are shown of a metadata file: all of it, or no snapshots but those that refs name.

To check each snapshot takes four times as long as to find that the file is JSON.
"""

from __future__ import annotations

import json
import zlib

from commitlog.core.iceberg.reading import dump_json
from commitlog.newest import Newest

ALL, REFS = "all", "refs"
_WHOLE_MAX = 1_000
_REFS_MAX = 16
"""Their answers can have megabytes: a table's log of snapshots stays in them."""


class ShownFiles:
    """Remembers files, which are looked through once. Thread-safe."""

    def __init__(self) -> None:
        self._whole: dict[tuple[str, int], tuple[str, str]] = {}
        """Files that were found to be JSON: the uuids and locations of their tables."""
        self._refs: Newest[tuple[str, int], bytes] = Newest(_REFS_MAX)

    def show(self, location: str, data: bytes, snapshots: str) -> tuple[bytes, str, str]:
        """Return what is shown, and the table's uuid and location.

        Raises ValueError, LookupError or TypeError for what isn't usual metadata.
        """
        file = location, zlib.crc32(data)
        shown = data if snapshots == ALL else self._refs.get(file)
        if shown is None or file not in self._whole:
            told = json.loads(data.decode())
            if len(self._whole) >= _WHOLE_MAX:
                self._whole.clear()
            uuid, home = str(told["table-uuid"]), str(told["location"])
            self._whole[file] = uuid.lower(), home.rstrip("/")
        if shown is None:
            named = {ref["snapshot-id"] for ref in told["refs"].values()}
            told["snapshots"] = [s for s in told["snapshots"] if s["snapshot-id"] in named]
            shown = self._refs[file] = dump_json(told).encode()
        return shown, *self._whole[file]
