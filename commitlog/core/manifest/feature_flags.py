"""Lance's feature flags: what each bit is called, which we may meet, which a manifest must carry.

A manifest whose flags include one we do not know is refused as a whole, for reading and writing:
the flag says that ignoring it would lose or misread data.
"""

from __future__ import annotations

from commitlog.errors import UnsupportedFormat
from commitlog.model.reasons import Aside, Phrase

FLAG_DELETION_FILES = 1 << 0
FLAG_STABLE_ROW_IDS = 1 << 1
FLAG_TABLE_CONFIG = 1 << 3
FLAG_BASE_PATHS = 1 << 4
FLAG_DATA_OVERLAY_FILES = 1 << 6
FLAG_COVERED_INDEX_METADATA = 1 << 7
FLAG_MIXED_DATA_FILE_VERSIONS = 1 << 8
FLAG_FRAGMENT_REUSE_INDEX = 1 << 10
FLAG_SPILLED_ROW_LINEAGE = 1 << 11
FLAG_MANAGED_BLOBS = 1 << 14
FLAG_NON_REUSABLE_FIELD_IDS = 1 << 15

# Once set they stay, in both words.
STICKY = FLAG_MIXED_DATA_FILE_VERSIONS | FLAG_FRAGMENT_REUSE_INDEX | FLAG_MANAGED_BLOBS

MANAGED_BLOBS_KEY = "lance.blob.managed"

_NAMES = {
    FLAG_DELETION_FILES: "deletion files",
    FLAG_STABLE_ROW_IDS: "stable row ids",
    1 << 2: "file format 2 (deprecated)",
    FLAG_TABLE_CONFIG: "table config",
    FLAG_BASE_PATHS: "base paths",
    1 << 5: "no transaction files",
    FLAG_DATA_OVERLAY_FILES: "data overlay files",
    FLAG_COVERED_INDEX_METADATA: "covering indices",
    FLAG_MIXED_DATA_FILE_VERSIONS: "mixed data file versions",
    1 << 9: "fragment reuse with stable row ids",
    FLAG_FRAGMENT_REUSE_INDEX: "tagged fragment reuse index",
    FLAG_SPILLED_ROW_LINEAGE: "spilled row lineage",
    1 << 12: "fragment tree",
    1 << 13: "independent covering fields",
    FLAG_MANAGED_BLOBS: "managed blobs",
    FLAG_NON_REUSABLE_FIELD_IDS: "non-reusable field ids",
    1 << 16: "zone write seeds",
    1 << 17: "object metadata",
}
# Lance 14 knows the names of these, and refuses them as well.
_UNSUPPORTED = 1 << 9 | 1 << 12 | 1 << 13 | 1 << 16 | 1 << 17
_SUPPORTED = sum(_NAMES) & ~_UNSUPPORTED


class UnknownFeatureFlag(UnsupportedFormat):
    """A manifest asks for features that this version doesn't know; `names` says which."""

    def __init__(self, word: str, flags: int) -> None:
        bits = [1 << bit for bit in range(flags.bit_length()) if flags >> bit & 1]
        self.word = word
        self.names = tuple(_NAMES.get(bit, f"bit {bit.bit_length() - 1}") for bit in bits)
        super().__init__(
            f"{word} feature flags of the manifest include {', '.join(self.names)}, "
            "which this version does not support; upgrade it"
        )


def why_unreadable(error: Exception) -> Aside:
    """Return why a manifest can't be used: in words, and as a reason keeps it."""
    if not isinstance(error, UnknownFeatureFlag):
        return Aside(error)
    asked = {"word": error.word, "features": list(error.names)}
    return Aside.of(str(error), Phrase("features_unknown", asked))


def check_flags(reader: int, writer: int) -> None:
    """Refuse feature flags that we do not know."""
    for word, flags in (("reader", reader), ("writer", writer)):
        if flags & ~_SUPPORTED:
            raise UnknownFeatureFlag(word, flags & ~_SUPPORTED)
