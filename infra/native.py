"""Builds what reads and writes records in machine code: with the project, if a compiler is there.

The build backend runs this: an editable install gets the module into the tree, a wheel carries it.
Without a compiler, or with COMMITLOG_LANE=python, nothing is built, and Python does the same. By
hand: `python infra/native.py [folder] [flag for the compiler ...]`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "commitlog/codecs/_native.c"
MODULE = "_native" + sysconfig.get_config_var("EXT_SUFFIX")
SECONDS_MAX = 300.0


class NoCompiler(Exception):
    """Nothing was built, and why."""


def compiler() -> list[str]:
    """Return the command that compiles C: what CC says, what made this Python, or the usual."""
    given = os.environ.get("CC")
    names = [given] if given else [sysconfig.get_config_var("CC") or "", "cc", "gcc", "clang"]
    for words in map(shlex.split, names):
        if words and shutil.which(words[0]):
            return words
    raise NoCompiler(f"no C compiler was found (looked for {', '.join(filter(None, names))})")


def build(folder: Path, *flags: str) -> Path:
    """Compile the module into a folder and return it; NoCompiler if that isn't possible."""
    if os.environ.get("COMMITLOG_LANE") == "python":
        raise NoCompiler("COMMITLOG_LANE is python")
    shared = (
        ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    )
    paths = sysconfig.get_paths()
    headers = [f"-I{paths[name]}" for name in ("include", "platinclude")]
    # A program may have the old module open: the new one takes its name, not its place.
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / MODULE
        command = [*compiler(), "-O2", "-fPIC", *shared, *headers, *flags, str(SOURCE)]
        done = subprocess.run(
            [*command, "-o", str(made)],
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS_MAX,
        )
        if done.returncode:
            raise NoCompiler(f"{shlex.join(command)} failed:\n{done.stderr[-2000:]}")
        return made.replace(folder / MODULE)


class NativeLane(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the module to an editable install and to a wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build it; a wheel with it is for one Python on one kind of machine."""
        is_editable = version == "editable"
        try:
            built = build(SOURCE.parent if is_editable else Path(self.root) / "build" / "native")
        except NoCompiler as error:
            self.app.display_warning(f"records will be read and written by Python alone: {error}")
            return
        if not is_editable:
            build_data["force_include"][str(built)] = f"commitlog/codecs/{MODULE}"
            build_data["pure_python"] = False
            build_data["infer_tag"] = True


if __name__ == "__main__":
    into, *more = sys.argv[1:] or [str(SOURCE.parent)]
    print(build(Path(into), *more))
