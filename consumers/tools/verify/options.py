"""What a verification is asked to look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

from commitlog.adapters.storage import ObjectStore, store_for
from consumers.tools.verify.state import SAVE_SECONDS
from consumers.tools.verify.witnesses import Witness


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """What to verify, and where things are."""

    root: Path | None = None
    """The log's root: its checkpoint and version index are compared too."""
    table: str = ""
    """Look at this table's files only; the log is walked in whole all the same."""
    chain_only: bool = False
    """Hashes, order and answers; decide nothing again, look at no file and no index."""
    log_only: bool = False
    """Decide everything again, but look at no file and no index."""
    contents: bool = False
    """Read all rows of the newest versions as well."""
    state: Path | None = None
    """A folder in which an interrupted run continues; None: it begins at Genesis each time."""
    expected_head: Witness | None = None
    """An outcome that somebody noted down."""
    save_seconds: float = SAVE_SECONDS
    open_store: Callable[[str], ObjectStore] = field(default=store_for, repr=False)

    def wanted(self) -> dict[str, Any]:
        """Return what a run that continues must have wanted as well."""
        return {
            "root": str(self.root),
            "table": self.table,
            "chain_only": self.chain_only,
            "log_only": self.log_only,
            "program": package_version("lance-commitlog"),
        }
