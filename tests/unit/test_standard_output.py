"""What comes of a command whose output is cut off, closed, full or of a narrow alphabet?"""

import io
import json
import os
import socket
import subprocess
import sys
from operator import itemgetter
from pathlib import Path

import pytest

from commitlog.model.records import Answered, Outcome, Status
from consumers.commands import ask, output
from consumers.commands.columns import Column
from consumers.commands.exit_codes import ExitCode
from tests.child import ended

COMMAND = [sys.executable, "-m", "consumers.cli"]
SECONDS = 120
# Prints one finding through the module that all commands print through.
PRINTS = """
import sys
from consumers import cli
from consumers.commands import app, output
app.app.command(lambda: {call}, name="says")
sys.argv[1:] = ["says"]
cli.run()
"""


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return ended(
        ["bash", "-c", line, "bash", *COMMAND], timeout=SECONDS, env={**os.environ, **environment}
    )


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ["--help", "tables --help", "version"])
def test_a_reader_that_has_seen_enough_ends_a_command_well(arguments: str) -> None:
    done = shell(f'"$@" {arguments} | true; echo ${{PIPESTATUS[0]}}')
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "call", ['output.print_check("disk", "ok", "1 GiB free")', 'output.print_json(["one"])']
)
def test_a_finding_that_is_not_read_is_no_failed_check(tmp_path: Path, call: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PRINTS.format(call=call))
    done = shell(f"{sys.executable} {program} | true; echo ${{PIPESTATUS[0]}}")
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", ["--help", "version", "version --json"])
def test_a_full_disk_is_no_fault_of_the_program(arguments: str) -> None:
    done = shell(f'"$@" {arguments} > /dev/full')
    assert done.returncode == ExitCode.MACHINE
    assert done.stderr == "commitlog: No space left on device (free some space there)\n"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ["--help", "version", "version --json"])
def test_a_closed_standard_output_loses_only_what_would_be_there(arguments: str) -> None:
    done = shell(f'"$@" {arguments} >&-')
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(("arguments", "code"), [("tables --nothing", 2), ("tables --root /", 3)])
def test_an_error_that_nobody_can_read_has_its_code(arguments: str, code: int) -> None:
    done = shell(f'"$@" {arguments} 2>/dev/full; echo $?')
    assert done.stdout == f"{code}\n"


@pytest.mark.slow
def test_an_error_whose_reader_has_gone_has_its_code() -> None:
    done = shell('"$@" tables --root / 2>&1 >/dev/null | true; echo ${PIPESTATUS[0]}')
    assert done.stdout == "3\n"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ["index", "server --nothing", "up --root /dev/null/root"])
def test_a_part_that_cannot_begin_says_so_as_json(arguments: str) -> None:
    done = shell(f'"$@" {arguments}', COMMITLOG_LOG_FORMAT="json")
    [line] = map(json.loads, done.stderr.splitlines())
    assert (line["part"], line["level"]) == (arguments.partition(" ")[0], "error")
    assert line["message"]
    assert done.returncode in (ExitCode.USAGE, ExitCode.MACHINE)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "text"])
def test_why_all_parts_end_is_logged(tmp_path: Path, form: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        up = f'"$@" up --root {tmp_path} --port {port}'
        done = shell(up, COMMITLOG_LOG_FORMAT=form)
    assert done.returncode == ExitCode.MACHINE
    assert done.stderr.count("cannot listen on 127.0.0.1:") == 1, done.stderr
    assert f"up ends: cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "up ends: cannot listen" in (tmp_path / "up.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "command", "valid"),
    [
        ("COMMITLOG_LANE", "version", "'native'"),
        ("COMMITLOG_LOG_FORMAT", "up --root {root} --port 0", "json"),
    ],
)
def test_a_wrong_variable_is_a_wrong_setting(
    tmp_path: Path, variable: str, command: str, valid: str
) -> None:
    done = shell(f'"$@" {command.format(root=tmp_path)}', **{variable: "rust"})
    assert done.returncode == ExitCode.USAGE, done.stderr
    [line] = done.stderr.splitlines()
    assert variable in line
    assert "'rust'" in line
    assert valid in line


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["2>&-", "0<&- 2>&-", "0<&- 1>&- 2>&-"])
def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path, closed: str) -> None:
    program, file = tmp_path / "program.py", tmp_path / "file"
    call = f"sys.exit(9) if open({str(file)!r}, 'w').fileno() < 3 else None"
    program.write_text(PRINTS.format(call=call))
    assert shell(f"{sys.executable} {program} {closed}").returncode == 0


@pytest.mark.slow
def test_a_query_from_a_closed_standard_input_is_none(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PRINTS.format(call="print(repr(sys.stdin.read()))"))
    assert shell(f"{sys.executable} {program} <&-").stdout == "''\n"


@pytest.mark.slow
def test_an_alphabet_without_a_name_does_not_keep_a_table_from_being_shown(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PRINTS.format(call='output.print_facts({"table": "größe"})'))
    done = shell(f"{sys.executable} {program}", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout) == (0, "table  gr\\xf6\\xdfe\n"), done.stderr


@pytest.mark.parametrize("width", range(20, 50))
def test_no_heading_is_cut_where_a_column_could_leave(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    columns = [Column(f"heading{at}", lambda row: row["value"], leaves=at) for at in range(4)]
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    output.print_listing(columns, [{"value": "1"}], as_json=False, nothing="")
    assert "…" not in capsys.readouterr().out


def test_a_finding_that_a_terminal_wraps_goes_on_below_its_beginning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    output.print_check("disk", "warn", "little " * 20, "free " * 20)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert {line.index("little") for line in lines if "little" in line} == {24}
    assert {line.index("free") for line in lines if "free" in line} == {27}


def test_columns_of_wide_letters_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    columns = [Column(name, itemgetter(name)) for name in ("a", "b")]
    rows = [{"a": "日本$表", "b": "1"}, {"a": "shop$or", "b": "2"}]
    output.print_listing(columns, rows, as_json=False, nothing="")
    assert capsys.readouterr().out == "a        b\n日本$表  1\nshop$or  2\n"


def test_a_log_begins_with_its_rules_and_times_say_that_they_are_utc(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = Answered(0, 1, 0, Outcome(1, "", 0, Status.COMMITTED))
    row = ask._record_row(first)
    output.print_listing(ask.LOG_COLUMNS, [row], as_json=False, nothing="")
    ask._print_line(row, as_json=False)
    heading, *lines = capsys.readouterr().out.splitlines()
    assert "time, UTC" in heading
    assert all("rules of the log" in line for line in lines)
    assert "1970-01-01 00:00:00.000Z" in lines[1]


def test_who_waits_for_news_notices_that_nobody_reads_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `commitlog log --follow | head -1`, after whose line nothing may happen for hours."""
    read, write = os.pipe()
    with open(write, "w") as printed:
        monkeypatch.setattr(sys, "stdout", printed)
        output.check_reader()
        os.close(read)
        with pytest.raises(BrokenPipeError):
            output.check_reader()
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    output.check_reader()
