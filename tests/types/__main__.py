"""Runs all paths for all types: `python -m tests.types`; `--write` puts the table into the docs."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.namespace_world import World
from tests.types.matrix import WRITTEN, document, run


def main() -> int:
    """Print the table, or write it down."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        table = document(dict(run(world)))
        world.close()
    if "--write" in sys.argv[1:]:
        WRITTEN.write(table)
    else:
        print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
