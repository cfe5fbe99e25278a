"""Generate commitlog/lancepb from the .proto files in schemas/: `make proto`."""

from __future__ import annotations

import sys
from importlib.resources import as_file, files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[1]


def generate(out: Path) -> int:
    """Write the modules and their stubs below `out`; return protoc's exit code."""
    folders = [ROOT / "schemas" / "lance", ROOT / "schemas" / "commitlog"]
    sources = sorted(str(path) for folder in folders for path in folder.glob("*.proto"))
    includes = [f"-Icommitlog/lancepb={folder}" for folder in folders]
    with as_file(files("grpc_tools") / "_proto") as published:
        arguments = [
            "protoc",
            *includes,
            f"-I{published}",
            f"--python_out={out}",
            f"--pyi_out={out}",
            *sources,
        ]
        return int(protoc.main(arguments))


if __name__ == "__main__":
    sys.exit(generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT))
