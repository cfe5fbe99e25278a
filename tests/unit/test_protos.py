"""Generated message classes are those of `schemas/`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
GENERATED = REPOSITORY / "commitlog" / "lancepb"


def test_generated_code_is_what_the_schemas_generate(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    # In a process of its own: protoc registers what it compiles.
    subprocess.run([sys.executable, "-m", "infra.proto", str(tmp_path)], cwd=REPOSITORY, check=True)
    made = {path.name: path.read_text() for path in (tmp_path / "commitlog/lancepb").iterdir()}
    kept = {path.name: path.read_text() for path in GENERATED.glob("*_pb2.py*")}
    assert made == kept, "run `make proto`"
