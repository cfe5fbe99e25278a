"""Does a root that was moved or copied, or whose tables are gone, start anything?"""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from consumers.broker.embedded import EmbeddedBroker
from consumers.commands.exit_codes import ExitCode
from tests import forked
from tests.integration.test_up import LEAN, run, service, write

pytestmark = [pytest.mark.broker]


@dataclass(frozen=True)
class Made:
    """A root whose service was stopped, as it was then, and what the service had said."""

    root: Path
    kept: Path
    line: str


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A root with a table of one row, stopped; its path was given with dots."""
    folder = tmp_path_factory.mktemp("places")
    (folder / "here").mkdir()
    with service(folder / "here" / ".." / "root", *LEAN) as running:
        assert write(running, 1)[-1] == "1"
        running.stop()
        line = running.line
    (folder / "root").rename(folder / "kept")
    return Made(folder / "root", folder / "kept", line)


@pytest.fixture
def root(made: Made) -> Iterator[Path]:
    """The root as it was when its service was stopped."""
    shutil.copytree(made.kept, made.root, symlinks=True)
    yield made.root
    if made.root.is_symlink():
        made.root.unlink()
    else:
        shutil.rmtree(made.root, ignore_errors=True)


@pytest.fixture(scope="module")
def on_broker(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """Flags for the log of that root, on a broker that runs: else each refusal starts another."""
    folder = tmp_path_factory.mktemp("running")
    shutil.copytree(made.kept / "kafka", folder / "kafka", ignore=shutil.ignore_patterns("port"))
    with EmbeddedBroker.start(folder) as running:
        yield ("--bootstrap-servers", running.bootstrap_servers)


def refused(root: Path, *flags: str) -> str:
    done = run("up", "--root", str(root), "--port", "0", *flags)
    assert done.returncode == ExitCode.MACHINE, done.stderr[-2000:]
    assert done.stdout == ""
    return done.stderr


def manifests(root: Path) -> list[Path]:
    return sorted(root.rglob("*.manifest"))


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


READER = """
import sys
import lance
from commitlog import CommitLog
log = CommitLog.connect(sys.argv[1])
info = log.table("shop$orders")
print(info.location)
print(log.open("shop$orders", 2).count_rows(), lance.dataset(info.location).count_rows())
handle = log.open("shop$orders")
handle.delete("id = 1")
print(log.open("shop$orders").count_rows())
"""


def test_a_moved_root_is_refused_and_works_once_its_place_is_bound(
    root: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "moved"
    root.rename(moved)
    before = manifests(moved)
    words = refused(moved)
    assert "moved" in words
    binding = f"{root / 'tables'}={moved / 'tables'}"
    assert f"--places {binding}" in words
    found = run("doctor", "--root", str(moved), "--json")
    assert found.returncode == ExitCode.REFUSED, "nobody says where they are"
    assert manifests(moved) == before
    assert not root.exists(), "nothing is made at a place without its data"
    with service(moved, "--places", binding, *LEAN) as running:
        assert write(running, 2)[-1] == "2"
        # A client that knows nothing of it: its leader says where the tables are.
        done = forked.run(["-c", READER, running.kafka])
        assert done.returncode == 0, done.stderr[-2000:]
        place, counts, left = done.stdout.splitlines()
        assert place.startswith(str(moved / "tables"))
        assert (counts, left) == ("1 2", "1")
        # So it is for commands that name the root: what runs there says it.
        for command in (["doctor", "--json"], ["verify", "--contents"]):
            for flags in (("--places", binding), ()):
                found = run(*command, "--root", str(moved), *flags)
                assert found.returncode == ExitCode.OK, found.stdout
        listed = run("tables", "--root", str(moved), "--json")
        of_page = running.get("/api/table?table=shop$orders")
        for shown in (listed.stdout, json.dumps(of_page)):
            assert str(moved / "tables") in shown
            assert str(root / "tables") not in shown
        assert not root.exists(), "nothing is made at a place without its data"
        into = str(tmp_path / "rebuilt")
        rebuilt = run("replay", into, "--root", str(moved))
        assert rebuilt.returncode == ExitCode.OK, rebuilt.stdout + rebuilt.stderr
        running.stop()
    warning = f"the tables of this log are in {root / 'tables'}"
    assert warning not in (moved / "up.log").read_text(), "they are where they were bound to"
    again = tmp_path / "moved-again"
    moved.rename(again)
    assert f"--places {root / 'tables'}={again / 'tables'}" in refused(again)
    found = run("doctor", "--root", str(again), "--json")
    assert found.returncode == ExitCode.REFUSED, "what ran elsewhere says nothing of this place"


def test_a_root_that_was_moved_after_its_place_was_bound_is_well(
    root: Path, tmp_path: Path
) -> None:
    with service(root, *LEAN) as running:
        assert run("places", "bind", str(root / "tables"), "--root", str(root)).returncode == 0
        running.stop()
    moved = tmp_path / "moved"
    root.rename(moved)
    found = json.loads(run("doctor", "--root", str(moved), "--json").stdout)
    assert [one["level"] for one in found if one["name"] == "places"] == ["ok"], found
    with service(moved, *LEAN) as running:
        assert write(running, 2)[-1] == "2"
        running.stop()
    assert not root.exists()


def test_a_copied_root_is_refused(root: Path, on_broker: Sequence[str], tmp_path: Path) -> None:
    copy, before = tmp_path / "copy", contents(root)
    shutil.copytree(root, copy, symlinks=True)
    assert "copied" in refused(copy, *on_broker)
    assert contents(root) == before, "the one it is a copy of goes on as it was"


def test_tables_that_are_gone_are_not_made_again(
    root: Path, on_broker: Sequence[str], tmp_path: Path
) -> None:
    tables = root / "tables"
    tables.rename(tmp_path / "elsewhere")
    assert "nothing is there" in refused(root, *on_broker)
    tables.mkdir()  # a disk that isn't mounted
    assert "nothing is there" in refused(root, *on_broker)
    assert not any(tables.iterdir())


def test_a_root_with_dots_is_recorded_without_them(made: Made) -> None:
    assert made.line.endswith(f"root {made.root}")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--root", "/proc/x"], "cannot be written"),
        (["--root", "r", "--tables-root", "gopher://x/y"], "tables_root"),
        (["--root", "r", "--tables-root", "s3://bucket/../x"], "tables_root"),
    ],
)
def test_a_bad_place_is_refused_before_anything_is_written(
    flags: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("up", *flags, "--port", "0")
    assert done.returncode in (ExitCode.USAGE, ExitCode.MACHINE)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "r" / "kafka").exists()
