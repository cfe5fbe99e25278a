"""What a side worker is asked to build, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commitlog.core.manifest.manifest_state import ManifestState

if TYPE_CHECKING:
    from commitlog.codecs.lance_schema import SchemaMetadata


@dataclass(frozen=True, slots=True)
class Build:
    """What is to be built: `message` is rebased, its read version is `head`."""

    location: str
    head: int
    message: bytes
    schema_metadata: SchemaMetadata | None = None


@dataclass(frozen=True, slots=True)
class Built:
    """A staged manifest of version `head + 1`."""

    data: bytes
    state: ManifestState
    staged_path: str
    """Relative to the table's location."""


@dataclass(frozen=True, slots=True)
class BuildRefused:
    """Pylance cannot build it; `reason` holds its own message, or names the field it dropped."""

    reason: str
    is_temporary: bool = False
    """True: the machine and not the transaction is to blame (a deadline, a full disk)."""
