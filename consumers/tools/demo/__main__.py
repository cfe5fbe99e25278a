"""`python -m consumers.tools.demo`: the demo without the command line around it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from consumers.tools.demo.children import ChildFailed
from consumers.tools.demo.source import NoData
from consumers.tools.demo.stage import run_demo


def main() -> int:
    """Run the demo; 0 if every row is as it must be."""
    parser = argparse.ArgumentParser(prog="commitlog demo", description=__doc__)
    parser.add_argument("--root", type=Path, default=Path("demo-data"))
    parser.add_argument("--stay", action="store_true")
    arguments = parser.parse_args()
    try:
        return run_demo(arguments.root, stay=arguments.stay)
    except (ChildFailed, NoData) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
