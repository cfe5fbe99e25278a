"""Does a command that is ended say what it leaves, and how to continue?"""

from __future__ import annotations

import signal
import sys
from typing import Any, NoReturn

import pytest

from consumers import cli
from consumers.commands.app import app
from consumers.commands.exit_codes import ExitCode
from consumers.commands.interrupted import _LEFT, left_by
from consumers.tools import move
from tests.child import ended

MOVE = ["move", "new:1", "--bootstrap-servers", "old:1"]
SAID = "move: interrupted; run it again: it continues\n"
PROGRAM = f"""
import os, signal, sys
from consumers import cli
from consumers.tools import move

def killed(*_, **__):
    if (child := os.fork()) == 0:
        os.kill(os.getpid(), signal.SIGTERM)
    os.waitpid(child, 0)
    os.kill(os.getpid(), signal.SIGTERM)

signal.signal(signal.SIGTERM, signal.SIG_DFL)
move.move = killed
sys.argv[1:] = {MOVE!r}
cli.run()
"""


def test_ctrl_c_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(move, "move", interrupted)
    assert cli.main(MOVE) == ExitCode.INTERRUPTED
    assert capsys.readouterr() == ("", SAID)


@pytest.mark.slow
def test_so_is_sigterm_once_and_it_ends_the_process_as_ever() -> None:
    done = ended([sys.executable, "-c", PROGRAM])
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "")
    assert done.stderr.endswith(SAID)  # pylance warns of the fork
    assert done.stderr.count("interrupted") == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["backup", "--check", "b"], "backup: interrupted; nothing is changed; run it again"),
        (["orphans"], "orphans: interrupted; nothing is changed; run it again"),
        (["log", "--follow"], ""),
        ([], ""),
    ],
)
def test_what_only_asks_changes_nothing(arguments: list[str], text: str) -> None:
    assert left_by(arguments) == text


def test_each_command_that_cares_for_a_log_has_its_line() -> None:
    groups: dict[str, Any] = {name: app[name].group for name in app if not name.startswith("-")}
    names = {name for name, of in groups.items() if any(one.name == "Operate" for one in of)}
    quick = {"acl", "places", "version"}
    assert names - quick == set(_LEFT)
