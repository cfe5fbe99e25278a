"""`python -m tests.upgrades REF`: the program of a commit beside this one, over one log.

REF is a branch, a tag, a commit, or the folder of another checkout. It takes about two minutes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.upgrades.trial import run

if __name__ == "__main__":
    for ref in sys.argv[1:]:
        with tempfile.TemporaryDirectory(prefix="commitlog-upgrades-") as folder:
            run(ref, Path(folder))
