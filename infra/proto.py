"""Generate commitlog/lancepb from the .proto files in schemas/: `make proto`."""

from __future__ import annotations

import sys
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[1]


def generate(out: Path) -> int:
    """Write the modules and their stubs below `out`; return protoc's exit code."""
    folders = [ROOT / "schemas" / "lance", ROOT / "schemas" / "commitlog"]
    files = sorted(str(path) for folder in folders for path in folder.glob("*.proto"))
    includes = [f"-Icommitlog/lancepb={folder}" for folder in folders]
    arguments = ["protoc", *includes, f"--python_out={out}", f"--pyi_out={out}", *files]
    return int(protoc.main(arguments))


if __name__ == "__main__":
    sys.exit(generate(ROOT))
