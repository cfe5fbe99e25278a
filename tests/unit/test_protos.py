"""Generated message classes are those of `schemas/`."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
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


def test_the_oldest_protobuf_that_may_be_installed_runs_the_generated_code() -> None:
    """Code that a newer protoc made than the library at hand fails when it is imported."""
    needed = {
        found[1]
        for path in GENERATED.glob("*_pb2.py")
        if (
            found := re.search(r"^# Protobuf Python Version: (.*)$", path.read_text(), re.MULTILINE)
        )
    }
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert [f"protobuf>={one}" for one in needed] == [
        one for one in project["dependencies"] if one.startswith("protobuf")
    ]
