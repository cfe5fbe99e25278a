"""Does the wheel carry all that a writer and a server need, and nothing that gets in the way?"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from infra.native import MODULE, NoCompiler, compiler
from tests.child import ended

ROOT = Path(__file__).resolve().parents[2]

READ = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import commitlog
assert commitlog.__file__.startswith(sys.argv[1]), commitlog.__file__
from commitlog.codecs.avro import decode_outcome_record
record = decode_outcome_record(Path(sys.argv[2]).read_bytes())
print(type(record).__name__)
"""

RUN_FROM = """
import sys
sys.path.insert(0, sys.argv[1])
from consumers import cli
assert cli.__file__.startswith(sys.argv[1]), cli.__file__
sys.exit(cli.main(sys.argv[2:]))
"""

WITHOUT_EXTRAS = """
import sys
sys.modules["cyclopts"] = None
from consumers.cli import main
sys.exit(main(["--help"]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    return next(folder.glob("*.whl"))


def test_the_wheel_carries_machine_code_if_there_is_a_compiler(wheel: Path) -> None:
    names = [name for name in zipfile.ZipFile(wheel).namelist() if "/_native." in name]
    try:
        compiler()
    except NoCompiler:
        assert wheel.name.endswith("-py3-none-any.whl")
        assert names == ["commitlog/codecs/_native.pyi"]
    else:
        assert not wheel.name.endswith("-any.whl"), "it is for this Python and this machine"
        assert sorted(names) == sorted(
            ["commitlog/codecs/_native.pyi", f"commitlog/codecs/{MODULE}"]
        )


def test_the_wheel_holds_code_schemas_pins_and_licence(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    packages = {top for top in tops if not top.endswith(".dist-info")}
    assert packages == {"commitlog", "consumers", "pyspark_commitlog"}
    schemas = {path.name for path in (ROOT / "schemas").glob("*.avsc")}
    assert {f"commitlog/schemas/{name}" for name in schemas} <= set(names)
    wanted = ("commitlog/py.typed", "consumers/py.typed", "consumers/broker/kafka-jars.txt")
    assert set(wanted) <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if "/tools/bench/" in name or "/tools/demo/" in name]


@pytest.mark.parametrize("command", [["demo"], ["bench", "conflicts"]], ids=" ".join)
def test_what_the_wheel_lacks_is_said_in_one_line(
    wheel: Path, tmp_path: Path, command: list[str]
) -> None:
    done = ended([sys.executable, "-c", RUN_FROM, str(wheel), *command], cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert f"`commitlog {command[0]}` is part of the source" in done.stderr


@pytest.mark.parametrize("is_zip", [True, False], ids=["as a zip", "unpacked"])
def test_a_record_is_read_by_the_wheels_own_schemas(
    wheel: Path, tmp_path: Path, is_zip: bool
) -> None:
    place = wheel
    if not is_zip:
        place = tmp_path / "installed"
        zipfile.ZipFile(wheel).extractall(place)
    golden = ROOT / "tests" / "golden" / "genesis-v1.bin"
    done = ended([sys.executable, "-c", READ, str(place), str(golden)], cwd=tmp_path)
    assert done.stdout.strip() == "Genesis", done.stderr


def test_without_its_extra_the_command_line_says_what_to_install() -> None:
    done = ended([sys.executable, "-c", WITHOUT_EXTRAS], env=dict(os.environ))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pip install 'lance-commitlog[server]'" in done.stderr
