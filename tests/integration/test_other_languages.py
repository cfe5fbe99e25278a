"""Do the programs of the page on other languages run as they are typed?"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.child import ended
from tests.namespace_world import World

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/languages.md"
SECONDS = 400
TOOLCHAINS = ("/usr/local/go/bin", str(Path.home() / ".cargo/bin"))
ORDERS = pa.table({"id": pa.array([1], pa.int64()), "amount": [1.0]})
STOCK = pa.table({"item": pa.array([3], pa.int64()), "left": pa.array([10], pa.int64())})


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    # A log for each program: all book the same orders, under the same keys.
    running = World(tmp_path / "world")
    yield running
    running.close()


def program(language: str, folder: Path, name: str) -> Path:
    """Write a page's program into a file of its own."""
    [text] = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    found = folder / name
    found.write_text(text)
    return found


def tool(name: str) -> str:
    """Return a toolchain's program; without it the test is skipped, and says so."""
    found = shutil.which(name, path=os.pathsep.join((os.environ["PATH"], *TOOLCHAINS)))
    if found is None:
        pytest.skip(f"{name} isn't on this machine, so its program on the page is not run")
    return found


def run(command: list[str], uri: str, folder: Path) -> str:
    environment = {**os.environ, "LOG_URL": uri, "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
    ran = ended(command, cwd=folder, env=environment, timeout=SECONDS)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


def command(language: str, folder: Path) -> list[str]:
    """Return what runs a page's program, built if its language asks for that."""
    if language == "js":
        return [tool("node"), str(program("js", folder, "main.mjs"))]
    if language == "go":
        return [tool("go"), "run", str(program("go", folder, "main.go"))]
    compiler, source = tool("rustc"), str(program("rust", folder, "main.rs"))
    run([compiler, "--edition", "2021", "-o", "main", source], "", folder)
    return [str(folder / "main")]


@pytest.mark.parametrize("language", ["js", "go", "rust"])
def test_programs_run_as_typed(world: World, tmp_path: Path, language: str) -> None:
    made = command(language, tmp_path)
    assert world.rows("/v1/table/shop$orders/create", ORDERS)[0] == 200
    assert world.rows("/v1/table/shop$stock/create", STOCK)[0] == 200
    assert run(made, world.uri, tmp_path) == "committed true\nresumed true\n"
    assert sorted(world.open(["shop", "orders"]).to_table()["id"].to_pylist()) == [1, 7, 8, 9]
    assert world.open(["shop", "stock"]).to_table()["left"].to_pylist() == [7]
