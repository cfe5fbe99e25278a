"""`commitlog demo`, and what demo and measurements need: their modules, a service of their own."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

from commitlog.errors import CommitLogError
from consumers.commands.options import Flag, Folder
from consumers.runtime.config import ConfigurationError


class JobFailed(CommitLogError):
    """The job did not come to its end: its message names what did not work."""


def demo(*, root: Folder = Path("demo-data"), stay: Flag = False) -> int:
    """Run the main job on real data: the New York flights of 2013.

    Spark streams the flights into one table while eight processes change two more; at the end every
    row is compared with the source, and writers are measured beside plain Lance. An interrupted run
    is continued by starting it again.

    Parameters
    ----------
    root
        Folder of the demo; its broker, tables and index are kept there.
    stay
        Keep the service and its page open at the end, until Ctrl-C.
    """
    stage = need_module("consumers.tools.demo.stage", extra="demo")
    expected = (
        need_module("consumers.tools.demo.children", extra="demo").ChildFailed,
        need_module("consumers.tools.demo.source", extra="demo").NoData,
    )
    try:
        return int(stage.run_demo(root, stay=stay))
    except expected as error:
        raise JobFailed(str(error)) from error


SOURCE_ONLY = ("consumers.tools.bench", "consumers.tools.demo")


def need_module(name: str, *, extra: str, command: str = "") -> ModuleType:
    """Import what an extra installs; say which one if it isn't there.

    The command is named after the extra, unless it is another one.
    """
    command = command or extra
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith(SOURCE_ONLY):
            raise ConfigurationError(
                f"`commitlog {command}` is part of the source, not of the wheel: run it in a clone"
                " of the repository, after `make setup`"
            ) from error
        if error.name is not None and error.name.startswith(("consumers", "commitlog")):
            raise
        raise ConfigurationError(
            f"`commitlog {command}` needs {error.name}: pip install 'lance-commitlog[{extra}]'"
        ) from error
