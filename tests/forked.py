"""Python programs of tests, forked from a process that has imported much.

A command of ours takes half a second to more than one of CPU to start, and most of that is imports.
What is forked has them: it is a process as any other, with arguments, environment, output and exit
code of its own, and may be killed. It ends with the process of the tests.
"""

from __future__ import annotations

import atexit
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TextIO

from consumers.runtime.forking import CAN_FORK, Forked, Template

Program = Forked | subprocess.Popen[bytes]
REPOSITORY = Path(__file__).resolve().parents[1]
IMPORTS = (
    *("tests.forked", "tests.empty_index"),
    "commitlog.adapters.lean_import",  # before what imports that library
    *("commitlog.client.commits.native", "consumers.commands.app", "consumers.commands.options"),
    *(
        "consumers.tools.maintenance.cleaning",
        "consumers.tools.doctor",
        "consumers.tools.replay.replay",
    ),
    *("consumers.tools.verify", "consumers.views.version_index"),
    # What the parts of a service need.
    *(
        "consumers.servers.committer",
        "consumers.tools.rows.writer",
        "consumers.tools.maintenance.maintenance",
    ),
    *("consumers.servers.server", "consumers.servers.namespace.routes"),
    *("consumers.servers.iceberg.rest", "consumers.servers.feed"),
    *("consumers.servers.page.routes", "consumers.servers.page.sql"),
)


def run(
    arguments: Sequence[str], *, timeout: float = 600, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS`, which begin with `-m` or `-c`, as `subprocess.run` would.

    Raises subprocess.TimeoutExpired after so many seconds.
    """
    command = [sys.executable, *arguments]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        child = start(arguments, stdout=out.fileno(), stderr=errors.fileno(), env=env)
        try:
            code = child.wait(timeout)
        except BaseException as error:
            child.kill()
            child.wait(60)
            if isinstance(error, subprocess.TimeoutExpired):
                raise subprocess.TimeoutExpired(command, timeout) from None
            raise
        said = []
        for file in (out, errors):
            file.seek(0)
            said.append(file.read().decode())
    return subprocess.CompletedProcess(command, code, *said)


def start(
    arguments: Sequence[str],
    *,
    stdout: int,
    stderr: int,
    env: Mapping[str, str] | None = None,
    is_fork: bool = CAN_FORK,
) -> Program:
    """Start `python ARGUMENTS`, which begin with `-m` or `-c`, with these descriptors as output."""
    if not is_fork:
        command = [sys.executable, *arguments]
        return subprocess.Popen(command, env=env, stdout=stdout, stderr=stderr)
    environment = dict(os.environ if env is None else env)
    streams = [stdout, stderr]
    what = [list(arguments), environment, os.getcwd(), _empty_index(), *streams]
    return _template().fork("tests.forked:be", what, inherited=streams, shown=arguments)


@contextmanager
def beside(
    arguments: Sequence[str], *, env: Mapping[str, str] | None = None
) -> Iterator[tuple[Program, TextIO]]:
    """Run a program beside the test, as `start` does; yield it and its output, and kill it."""
    reading, writing = os.pipe()
    with open(reading) as said:
        with open(writing, "wb"):
            process = start(arguments, stdout=writing, stderr=2, env=env)
        try:
            yield process, said
        finally:
            process.kill()
            process.wait(60)


@cache
def _template() -> Template:
    template = Template(IMPORTS)
    atexit.register(template.close)
    return template


@cache
def _empty_index() -> str:
    folder = tempfile.mkdtemp(prefix="commitlog-index-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return os.path.join(folder, "empty")


def be(what: tuple[Sequence[str], Mapping[str, str], str, str, int, int]) -> None:
    """Be the program, in a process that was forked for that."""
    from tests.empty_index import copying

    arguments, environment, folder, empty, *streams = what
    copying(Path(empty)).start()
    for number, standard in zip(streams, (1, 2), strict=True):
        os.dup2(number, standard)
    for number in {*streams} - {2}:
        os.close(number)
    # The template's know whether its own could be sought in.
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    how, program, *sys.argv[1:] = arguments
    warnings.resetwarnings()
    warnings.simplefilter("ignore")
    try:
        if how == "-m":
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
    finally:
        atexit._run_exitfuncs()
