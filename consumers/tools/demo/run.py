"""A run's place on disk: what makes a demo that was killed continue, and a finished one start over.

ROOT/demo/run.json        which run this is, and whether it is finished
ROOT/demo/flights/        the weekly files
ROOT/demo/run-1/          checkpoint of the stream, journals and meetings of the desks
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path

_NAMESPACE = uuid.UUID("5b7b0a5e-7c0f-4b53-9a53-0f6d0d9f7a01")


@dataclass(frozen=True)
class Run:
    """One run of the demo on a root."""

    root: str
    number: int = 1
    seed: str = ""
    """Names the run in the log: part of every application id."""
    first_sequence: int = 0
    """The log's position when its tables stood empty; 0 until then."""
    is_finished: bool = False

    @property
    def home(self) -> Path:
        """What all runs share."""
        return Path(self.root) / "demo"

    @property
    def folder(self) -> Path:
        """What belongs to this run."""
        return self.home / f"run-{self.number}"

    @property
    def slices(self) -> Path:
        """The weekly files."""
        return self.home / "flights"

    @property
    def checkpoint(self) -> Path:
        """The stream's checkpoint."""
        return self.folder / "checkpoint"

    def save(self) -> Run:
        """Note it, in one step."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.home / "run.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self)))
        os.replace(partial, path)
        return self

    def with_start(self, sequence: int) -> Run:
        """Note where the log stood when the tables were empty."""
        return replace(self, first_sequence=sequence).save()

    def finished(self) -> Run:
        """Note that nothing is left to do."""
        return replace(self, is_finished=True).save()


def open_run(root: Path) -> tuple[Run, str]:
    """Return the run to do on a root, and whether it is `first`, `resumed` or `next`."""
    path = root / "demo" / "run.json"
    if not path.exists():
        return _new(root, 1), "first"
    known = Run(**{**json.loads(path.read_text()), "root": str(root)})
    if known.is_finished:
        return _new(root, known.number + 1), "next"
    return known, "resumed"


def _new(root: Path, number: int) -> Run:
    seed = uuid.uuid5(_NAMESPACE, f"{root.absolute()}/{number}")
    return Run(str(root), number, f"{number}-{seed.hex[:8]}").save()
