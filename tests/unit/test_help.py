"""What do people see who ask a command for help?"""

import shlex
from pathlib import Path

import pytest

from consumers import cli
from consumers.commands.app import app
from consumers.commands.examples import EXAMPLES
from consumers.commands.exit_codes import ExitCode

pytestmark = pytest.mark.usefixtures("terminal")
HELP = Path(__file__).parents[1] / "golden" / "help"
COMMANDS = sorted(
    [name for name in app if not name.startswith("-")]
    + ["bench against", "bench all", "bench commit", "bench conflicts", "bench growth"]
    + ["bench iceberg", "bench index", "bench maintain", "bench merge"]
    + ["bench rag", "bench replay", "bench report", "bench rows"]
    + ["bench soak", "bench spark"]
)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_reads_as_expected(
    command: str, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    assert cli.main([*command.split(), "--help"]) == ExitCode.OK
    shown = capsys.readouterr().out
    expected = HELP / f"{command.replace(' ', '-') or 'commitlog'}.txt"
    if request.config.getoption("--rewrite"):
        expected.write_text(shown, encoding="utf-8")
    assert shown == expected.read_text(encoding="utf-8"), "pytest --rewrite, if it is meant"


@pytest.mark.parametrize("command", [[], ["tables"], ["bench", "rows"]])
def test_help_may_be_asked_for_as_a_command(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command, "--help"]) == ExitCode.OK
    shown = capsys.readouterr().out
    assert cli.main(["help", *command]) == ExitCode.OK
    assert capsys.readouterr().out == shown
    assert cli.main(["help", "nonsense"]) == ExitCode.USAGE


@pytest.mark.slow
def test_each_command_shows_examples_that_are_its_own() -> None:
    assert {name for name in app if not name.startswith("-")} - {"bench"} == set(EXAMPLES)
    for name, lines in EXAMPLES.items():
        for line in lines:
            words = shlex.split(line)
            assert words[:2] == ["commitlog", name]
            app.parse_args(words[1:], exit_on_error=False, print_error=False)
            assert len(f"  {line}") <= 80, line


def test_there_is_no_help_of_a_command_that_is_gone() -> None:
    assert {path.stem for path in HELP.iterdir()} == {
        "commitlog",
        *(command.replace(" ", "-") for command in COMMANDS),
    }
