"""What a program imports before it needs it: a writer's start, and a command's help."""

import sys

import pytest

import commitlog
from commitlog import errors
from tests.child import ended

# Each costs a start tens to hundreds of milliseconds of CPU.
HEAVY = ("lance", "pyarrow", "numpy", "pandas", "duckdb", "pyiceberg", "pyspark", "obstore")
LINES = {
    "import commitlog": ("commitlog.", "google", "fastavro"),
    "from commitlog import CommitLog; import commitlog.adapters.kafka": (
        "commitlog.core.operations",
        "commitlog.core.decisions",
        "commitlog.core.iceberg",
    ),
    # All that connecting does on this side of a broker.
    "from commitlog import CommitLog\n"
    "from commitlog.adapters.memory import MemoryLog\n"
    "from commitlog.adapters.memory_cluster import MemoryCluster\n"
    "log = MemoryLog(MemoryCluster())\n"
    "log.create(tables_root='/nowhere')\n"
    "CommitLog(lambda: log).runtime().connection(0)": ("commitlog.core.operations",),
    # What `commitlog up` does before its broker starts.
    "import consumers.commands.up\n"
    "from consumers.commands.http_options import check_http\n"
    "from consumers.runtime.config import load\n"
    "check_http(load({'root': '/nowhere'}))": ("lance_namespace", "starlette", "pydantic"),
    "from consumers.cli import main; main(['--help'])": ("commitlog.model.records", "google"),
    "from consumers.cli import main; main(['--version'])": ("commitlog.model.records", "google"),
}


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_a_start_brings_nothing_that_it_may_never_need(line: str) -> None:
    found = [name for name in imported_by(line) if name.startswith((*HEAVY, *LINES[line]))]
    assert not found, f"imports {found}"


def imported_by(line: str) -> list[str]:
    code = f"import sys\n{line}\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    done = ended([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    return done.stderr.split()


OPENS = """
from pathlib import Path
from tempfile import TemporaryDirectory
from tests.service import SCHEMA, rows, service

with TemporaryDirectory() as root, service(Path(root)) as running:
    running.client.create_table("a$t", SCHEMA)
    running.client.append("a$t", rows(1, 2))
    opened = running.client.open("a$t")
    opened.insert(rows(3))
    opened.delete("id = 1")
    opened.checkout_latest()
    assert opened.checkout_version(2).version == 2
    assert running.client.open("a$t").count_rows() == 2
"""


@pytest.mark.slow
def test_native_writes_bring_no_models_of_namespaces() -> None:
    """Neither a writer nor the leader needs them: pydantic takes 0.25 s of CPU to build them."""
    unwanted = ("lance_namespace.", "lance_namespace_urllib3_client.models", "pydantic")
    assert not [name for name in imported_by(OPENS) if name.startswith(unwanted)]


@pytest.mark.slow
def test_a_process_for_sql_brings_nothing_of_the_log() -> None:
    """One starts at each question that the last one didn't survive."""
    found = imported_by("import consumers.servers.page.sql_child")
    unwanted = ("commitlog.core", "commitlog.model.records", "google", "lance", "pyarrow")
    assert not [name for name in found if name.startswith(unwanted)]


@pytest.mark.slow
def test_who_checks_grants_brings_no_client_of_namespaces() -> None:
    found = imported_by("import consumers.servers.security.access_file")
    assert not [name for name in found if name.startswith(f"{CLIENT}.api")]


CLIENT = "lance_namespace_urllib3_client"
USES = (
    f"from {CLIENT} import TableApi",
    f"from {CLIENT} import rest",
    f"from {CLIENT}.api import TableApi",
    f"from {CLIENT}.api.table_api import TableApi",
    f"from {CLIENT} import *; TableApi",
    f"import {CLIENT} as client; client.__version__; client.exceptions.ApiException",
    f"import {CLIENT} as client; assert client.TableVersion is client.models.TableVersion",
    f"import {CLIENT} as client; assert not hasattr(client, 'Nothing')",
    f"from {CLIENT} import TableApi; assert TableApi.list_tables.__wrapped__",
)
"""How programs may ask for the HTTP client that nobody here uses."""


EACH_USE = f"""
import os, sys, traceback, commitlog.adapters.lean_import, lance_namespace
assert "{CLIENT}.models" in sys.modules and "{CLIENT}.api" not in sys.modules
for use in sys.argv[1:]:
    if child := os.fork():
        failed = os.waitpid(child, 0)[1]
        print("failed" if failed else "done")
        continue
    try:
        exec(use, dict())
    except BaseException:
        print(use, file=sys.stderr)
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
"""
"""Tries each use in a process that is forked from one which has imported the library."""


@pytest.mark.slow
def test_a_client_of_namespaces_is_there_for_who_asks() -> None:
    done = ended([sys.executable, "-u", "-c", EACH_USE, *USES])
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["done"] * len(USES), done.stderr


def test_dir_names_what_is_not_imported_yet() -> None:
    """Shells complete by it: `commitlog.<Tab>`."""
    assert set(commitlog.__all__) <= set(dir(commitlog))


def test_a_program_can_catch_by_name_whatever_the_client_raises() -> None:
    inside = {errors.Fenced}  # a leader's own
    raised = {one for one in vars(errors).values() if isinstance(one, type)}
    missing = {one for one in raised if issubclass(one, errors.CommitLogError)} - inside
    assert {one.__name__ for one in missing} <= set(commitlog.__all__)
    assert errors.__doc__ is not None
    assert {one.__name__ for one in missing} <= set(errors.__doc__.split())
