"""What do people see: help, errors, listings, exit codes?"""

import errno
import io
import json
import logging
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from commitlog import errors
from commitlog.adapters.memory import MemoryLog
from commitlog.client.commits.names import like_known
from commitlog.codecs.lanes import lane
from consumers import cli, history
from consumers.commands import ask, backups, options, output, properties, prove, undo
from consumers.commands.columns import Column
from consumers.commands.exit_codes import ExitCode
from consumers.runtime.log_lines import JsonLines
from consumers.runtime.places import another_log
from consumers.tools.backup.restore import Restored

pytestmark = pytest.mark.usefixtures("terminal")


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["history"], ["up", "--port", "many"], ["log", "--no-such-flag"]]
    + [["up", "--root", ""], ["replay", ""], ["archive", "file"], ["backup", ""]],
)
def test_wrong_usage_is_told_and_ends_with_two(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == ExitCode.USAGE
    told = capsys.readouterr()
    assert told.err.startswith("commitlog: ")
    assert told.err.count("\n") == 1
    assert not told.out
    assert not list(Path().iterdir())


def test_what_a_command_does_not_take_or_lacks_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    lacks: list[Any] = [("up", ["--root"], "needs a value for --root"), ("plot", [], "needs KIND")]
    for command, given, problem in (("up", ["shop data"], "takes no 'shop data'"), *lacks):
        assert cli.main([command, *given]) == ExitCode.USAGE
        said = f"`commitlog {command}` {problem}: `commitlog {command} --help`"
        assert capsys.readouterr().err == f"commitlog: {said} shows more\n"


def test_one_output_format_at_most(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tables", "--json", "--csv"]) == ExitCode.USAGE
    told = capsys.readouterr().err
    assert "--json" in told
    assert "--csv" in told


def test_a_root_that_kafka_would_split_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("up", "broker"):
        assert cli.main([command, "--root", str(tmp_path / "a,b")]) == ExitCode.USAGE
        assert "comma" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("flag", [[], ["--into"]])
def test_a_replay_builds_in_a_folder_of_this_machine(
    flag: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["replay", *flag, "s3://bucket/new"]) == ExitCode.USAGE
    assert "s3://bucket/new is a URI" in capsys.readouterr().err
    assert not list(Path().iterdir()), "a folder named s3: would be another place"


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["0", "-5", "99999999999999999999"])
@pytest.mark.parametrize("command", ["history t", "conflicts", "log"])
def test_a_limit_that_cannot_be_is_wrong_usage(
    command: str, limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command.split(), "-n", limit, "--root", "."]) == ExitCode.USAGE
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "orphans --age -1",
        "orphans --age nan",
        "maintain --interval 0",
        "maintain --interval inf",
        "maintain --removal-interval -5",
        "maintain --policy bad",
        "archive --older-than-days -1",
        "archive --through -1",
        "rules --id-horizon 0",
        "rules --history-versions -1",
        f"rules --operations-max {10**30}",
        "maintain --interval 1e300",
        "move other:9092 --timeout nan",
        "init --partitions 1.9 --bootstrap-servers /",
        "server --http-requests-max 1.5 --bootstrap-servers /",
        "verify --expect-head ²:0123456789",
        "committer --partition 1 --socket-port 65535 --bootstrap-servers 127.0.0.1:1",
        "tag --remove",
        "tag --at 5",
        "backup ~nobody-has-this-name/backup --check",
        "replay ~nobody-has-this-name/new",
        "tables --tables-root ~nobody-has-this-name/tables",
        "tables --kafka-file ~nobody-has-this-name/kafka",
        "rollback --to 2",
        "backup s3:/bucket/x",
        "backup s3:/bucket/x --check",
        "backup ftp://host/x",
        "backup /dev/null",
        "restore /dev/null",
        "restore s3:/bucket/x",
        "replay s3:/bucket/x",
        "replay /dev/null",
        "verify --state /dev/null",
        "verify --contents --log-only",
        "verify --contents --chain-only",
        "verify --table t --log-only",
        "erase t --reason r --where ''",
    ],
)
def test_a_number_that_cannot_be_is_wrong_usage(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*shlex.split(command), "--root", "."]) == ExitCode.USAGE
    shown = capsys.readouterr()
    assert shown.err.startswith("commitlog: "), shown.err
    assert "Traceback" not in shown.err


@pytest.mark.parametrize("root", ["~nobody-has-this-name/root", "\udcff", "a\0b"])
def test_a_root_that_cannot_be_is_wrong_usage(
    root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tables", "--root", root]) == ExitCode.USAGE
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("reason", [[], ["--reason", " "]])
def test_an_erasure_without_a_reason_is_wrong_usage(
    reason: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--root", str(tmp_path), "--bootstrap-servers", "127.0.0.1:1"]
    assert cli.main(["erase", "t", "--where", "id = 1", *reason, *where]) == ExitCode.USAGE
    assert "--reason is missing" in capsys.readouterr().err


def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", Mock(side_effect=KeyError("uid not found")))
    assert options.user() == f"uid {os.getuid()}"


def test_an_archive_does_not_begin_in_the_root_of_another_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    head = tmp_path / "checkpoints" / "0" / "head.json"
    head.parent.mkdir(parents=True)
    head.write_text(json.dumps({"identity": {"log": "theirs", "log_id": "1"}}))
    log = MemoryLog()
    log.create(tables_root=str(tmp_path / "tables"))
    monkeypatch.setattr(prove, "connect", lambda _: log)
    assert cli.main(["archive", "--root", str(tmp_path)]) == ExitCode.STOP
    assert "is of log 'theirs'" in capsys.readouterr().err
    assert not (tmp_path / "archive").exists()


def test_what_another_log_left_is_named_by_its_log() -> None:
    here = {"log": "ours", "log_id": "2", "cluster_id": "c"}
    assert another_log("the archive", {**here}, here) is None
    assert another_log("the archive", {"log": "ours"}, here) is None, "older programs noted less"
    wrong = another_log("the archive", {**here, "log": "theirs", "log_id": "1"}, here)
    assert "the archive belongs to log 'theirs', not to the log you are connected to" in str(wrong)
    elsewhere = another_log("the archive", {**here, "cluster_id": "d"}, here)
    assert "belongs to another log 'ours'" in str(elsewhere)
    assert "(cluster_id is 'd' there and 'c' here)" in str(elsewhere)


@pytest.mark.parametrize(
    "command", ["properties t --set a=1", "tag x", "rollback t --to 1", "undrop t"]
)
def test_what_an_operator_changes_is_recorded_in_their_name(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = Mock(side_effect=errors.Unavailable("nobody is there"))
    for module in (properties, undo):
        monkeypatch.setattr(module, "connect_client", connect)
    assert cli.main([*command.split(), "--root", "."]) == ExitCode.UNAVAILABLE
    assert connect.call_args.args[1] == options.user()


def test_who_misnames_a_table_is_helped() -> None:
    assert like_known("shop$order", {"shop$orders", "x"}) == "Did you mean shop$orders?"
    unquoted = like_known("web", {"web$a_long_name", "web$b_long_name", "webs$a", "x"})
    assert unquoted == "Did you mean web$a_long_name, web$b_long_name, webs$a?"
    assert like_known("zzz", {"b", "a"}) == "The tables are a, b."
    assert like_known("zzz", [f"t{n}" for n in range(9)]).endswith("t4, ….")
    assert like_known("zzz", set(), "dropped tables") == "There are no dropped tables."


def test_what_the_machine_refuses_is_no_fault_of_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "/disk/file")
    told = "commitlog: /disk/file: No space left on device (free some space there)\n"
    answer = OSError("Generic S3 error: no credentials\nsource: many lines")
    descriptors = OSError(errno.EMFILE, "Too many open files")
    more = "commitlog: Too many open files (let this process have more files open (ulimit -n))\n"
    for error, code, shown in (
        (descriptors, ExitCode.MACHINE, more),
        (full, ExitCode.MACHINE, told),
        (answer, ExitCode.UNAVAILABLE, "commitlog: Generic S3 error: no credentials\n"),
    ):
        failing = Mock(side_effect=error)
        monkeypatch.setattr(history, "history", failing)
        assert cli.main(["history", "t", "--root", str(tmp_path)]) == code
        assert capsys.readouterr().err == shown


@pytest.mark.parametrize(
    "place", ["", "root", "root/backup", "tables/backup", "link/backup", ".", "s3/../root"]
)
def test_a_backup_does_not_go_into_what_it_copies(
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = MemoryLog()
    log.create(tables_root=str(tmp_path / "tables"))
    monkeypatch.setattr(backups, "connect_to_files", lambda _: log)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "root")
    assert cli.main(["backup", place, "--root", str(tmp_path / "root")]) == ExitCode.USAGE
    assert "destination" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["link"]


def test_a_backup_to_a_full_disk_names_that_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = MemoryLog()
    log.create(tables_root=str(tmp_path / "tables"))
    monkeypatch.setattr(backups, "connect_to_files", lambda _: log)
    copied = str(tmp_path / "root/archive/0/proof.json")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), copied)
    monkeypatch.setattr("consumers.tools.backup.writer.back_up", Mock(side_effect=full))
    place = str(tmp_path / "backup")
    code = cli.main(["backup", place, "--root", str(tmp_path / "root")])
    assert code == ExitCode.MACHINE
    told = capsys.readouterr().err
    assert f"the disk of {place}" in told
    assert copied not in told


def test_the_command_that_a_restore_ends_with_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(tmp_path / "my $root")
    done = Restored(root, "/old tables", "commitlog", places={"/a b": "/c d"})
    monkeypatch.setattr("consumers.tools.backup.restore.restore", lambda *_: done)
    assert cli.main(["restore", str(tmp_path), "--root", root]) == ExitCode.OK
    typed = capsys.readouterr().err.removeprefix("start it with: ")
    assert shlex.split(typed) == [
        *("commitlog", "up", "--root", root, "--tables-root", "/old tables"),
        *("--places", "/a b=/c d"),
    ]


def test_the_command_after_a_restore_names_the_log_and_its_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(tmp_path / "root")
    done = Restored(root, f"{root}/tables", "sales")
    monkeypatch.setattr("consumers.tools.backup.restore.restore", lambda *_: done)
    where = ["--root", root, "--bootstrap-servers", "kafka:9092"]
    assert cli.main(["restore", str(tmp_path), *where]) == ExitCode.OK
    typed = capsys.readouterr().err.removeprefix("start it with: ")
    assert shlex.split(typed) == ["commitlog", "up", *where, "--log", "sales"]


@pytest.mark.parametrize("flags", [["--again"], []])
@pytest.mark.parametrize("kept", ["letters/mine", "0/head.json", "file"])
def test_a_verification_removes_nothing_that_it_did_not_keep(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kept: str,
    flags: list[str],
) -> None:
    log = MemoryLog()
    log.create()
    monkeypatch.setattr(prove, "connect_to_files", lambda *_, **__: log)
    file = tmp_path / kept
    file.parent.mkdir(exist_ok=True)
    file.write_text("somebody's")
    where = ["--bootstrap-servers", "127.0.0.1:1", "--state", "."]
    assert cli.main(["verify", *where, *flags]) == ExitCode.USAGE
    assert f"({kept.partition('/')[0]})" in capsys.readouterr().err
    assert file.read_text() == "somebody's"


def test_who_may_not_write_to_the_root_is_told_of_the_flag_for_another_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prove, "connect_to_files", lambda *_, **__: pytest.fail("asked first"))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    where = ["--bootstrap-servers", "127.0.0.1:1"]
    for command, flag in (("verify --root .", "--state"), ("replay new", "--into")):
        assert cli.main([*command.split(), *where]) == ExitCode.USAGE
        assert f"cannot be written: name another folder by {flag}" in capsys.readouterr().err


def test_a_verification_that_begins_again_removes_what_it_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MemoryLog()
    log.create()
    monkeypatch.setattr(prove, "connect_to_files", lambda *_, **__: log)
    for name in ("0/progress.json", "0/checkpoint/head.json", "index/0/index.duckdb"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    where = ["--bootstrap-servers", "127.0.0.1:1", "--state", str(tmp_path)]
    assert cli.main(["verify", *where, "--again"]) == ExitCode.OK
    assert not list(tmp_path.rglob("*.json"))
    assert not list(tmp_path.rglob("*.duckdb"))


@pytest.mark.parametrize("command", ["verify --state", "replay new --against", "demo --root"])
def test_a_folder_of_a_variable_that_is_not_set_is_not_the_current_one(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command.split(), ""]) == ExitCode.USAGE
    assert "it is empty" in capsys.readouterr().err


def test_a_replay_builds_in_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prove, "connect", lambda _: pytest.fail("the log was asked first"))
    (tmp_path / "letters").mkdir()
    flags = ["--bootstrap-servers", "127.0.0.1:1"]
    assert cli.main(["replay", str(tmp_path), *flags]) == ExitCode.USAGE
    assert "(letters)" in capsys.readouterr().err


def test_an_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["history", "t"]) == ExitCode.USAGE
    told = capsys.readouterr()
    assert told.err.count("\n") == 1
    assert told.err.startswith("commitlog: no root is set")


def test_debug_shows_where_it_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["history", "t", "--debug"]) == ExitCode.USAGE
    assert "Traceback" in capsys.readouterr().err


def test_a_table_named_like_no_other_ends_with_unavailable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["history", "t", "--root", str(tmp_path)]) == ExitCode.UNAVAILABLE
    assert "commitlog index" in capsys.readouterr().err


def test_versions_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version", "--json"]) == ExitCode.OK
    told = json.loads(capsys.readouterr().out)
    assert told["pylance"] == "14.0.2"
    assert told["lane"] == lane()


@pytest.mark.parametrize("loaded", ["cyclopts", "consumers.commands.app", "consumers.runtime"])
def test_ctrl_c_while_the_commands_are_loaded_says_nothing(loaded: str) -> None:
    code = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
class Interrupts:
    def find_spec(self, name, *_):
        if name == {loaded!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
sys.argv = ["commitlog", "version"]
from consumers.cli import run
run()
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=100, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, b"", b"")


COLUMNS = (
    Column("name"),
    Column("size", is_number=True),
    Column("why", gives_way=True),
)
ROWS = [{"name": "a", "size": 1, "why": ""}, {"name": "bcd", "size": 234, "why": "so\nlong " * 40}]


def test_a_listing_in_a_pipe_keeps_whole_values(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_listing(COLUMNS, ROWS, as_json=False, nothing="none")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "name  size  why"
    assert lines[1] == "a        1  -"
    assert lines[2].count("so long") == 40


def test_a_listing_as_json_is_an_array(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_listing(COLUMNS, ROWS, as_json=True, nothing="none")
    assert json.loads(capsys.readouterr().out) == ROWS
    output.print_listing(COLUMNS, [], as_json=True, nothing="none")
    assert json.loads(capsys.readouterr().out) == []


def test_a_listing_on_a_terminal_fits_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output.print_listing(COLUMNS, ROWS, as_json=False, nothing="none")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 50
    assert "\x1b" not in "".join(lines)


def test_a_long_name_on_a_terminal_is_cut_in_its_middle(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "analytics$" + "of_a_department_" * 10 + "2026_01"
    columns = (
        Column("table"),
        Column("version", is_number=True),
        Column("policy", lambda row: "every", leaves=1),
    )
    rows = [{"table": "a$t", "version": 1}, {"table": name, "version": 12_345}]
    monkeypatch.setenv("TERM", "xterm")  # a dumb one is 80 wide, whatever COLUMNS says
    monkeypatch.setenv("COLUMNS", "60")
    for is_terminal in (True, False):
        monkeypatch.setattr(sys.stdout, "isatty", lambda shown=is_terminal: shown)
        output.print_listing(columns, rows, as_json=False, nothing="none")
    shown = capsys.readouterr().out
    lines = [line for line in shown.splitlines() if line.strip().startswith("analytics$")]
    assert lines[0].split() == [
        "analytics$of_a_depa…_department_2026_01",
        "12345",
        "every",
    ]
    assert lines[1].split() == [name, "12345", "every"]
    output.print_listing(columns, rows, as_json=True, nothing="none")
    assert json.loads(capsys.readouterr().out) == rows


def test_a_narrow_terminal_shows_who_did_what_and_no_part_of_a_path(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    time = "2026-01-31T12:00:00.123Z"
    names = "table_name version changed_at changed_by commits policy location"
    values = ("shop$orders", 7, time, "etl", 7, "every", "/srv/lake/" + "x" * 90)
    table: dict[str, Any] = dict(zip(names.split(), values, strict=True))
    lost: dict[str, Any] = {
        "time": time,
        "table_name": "shop$orders",
        "status": "retryable",
        "principal": "etl",
        "operation": "Update",
        "read_version": 5,
        "winner_operation": "Rewrite",
        "winner_version": 7,
        "winner_principal": "maintenance",
        "rule": "update_rewrite_fragment_rewritten",
        "advice": "Read version 7 and redo it.",
    }
    monkeypatch.setattr(history, "query", lambda root, sql: history.Rows([table]))
    monkeypatch.setattr(history, "conflicts", lambda root, table, limit: history.Rows([lost]))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for command, wanted in (
        ("tables", "shop$orders 7 2026-01-31 12:00:00.123 etl 7 every"),
        ("conflicts", "shop$orders Rewrite @7 by maintenance update_rewrit"),
    ):
        assert cli.main([command, "--root", str(tmp_path)]) == ExitCode.OK
        (line,) = (one for one in capsys.readouterr().out.splitlines() if "shop$orders" in one)
        assert " ".join(line.split()).startswith(wanted)


def test_a_terminal_too_narrow_for_a_table_shows_cells_below_each_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("PAGER", "cat")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    columns = (
        Column("fragment", is_number=True),
        Column("made by"),
        Column("changed by"),
        Column("at, UTC", leaves=1),
    )
    rows = [
        {"fragment": number, "made by": "Append by etl", "changed by": changed, "at, UTC": "noon"}
        for number, changed in ((17, "Update by desk-4"), (18, ""))
    ]
    output.print_listing(columns, rows, as_json=False, nothing="none")
    assert capsys.readouterr().out.splitlines() == [
        *("fragment    17", "made by     Append by etl"),
        *("changed by  Update by desk-4", "at, UTC     noon", ""),
        *("fragment    18", "made by     Append by etl", "at, UTC     noon", ""),
    ]
    output.print_listing(columns, rows * 50, as_json=False, nothing="none")
    assert len(capsys.readouterr().out.splitlines()) == 450


def test_an_empty_listing_says_so_beside_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_listing(COLUMNS, [], as_json=False, nothing="no conflicts")
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "no conflicts\n")


def test_a_part_that_logs_json_ends_with_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    handler.setFormatter(JsonLines("committer"))
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    # Its last line said already what these are about.
    assert cli._report(errors.Unavailable("no answer"), ExitCode.UNAVAILABLE, ()) == 3
    assert not lines.getvalue()
    assert cli._report(KeyError("x"), ExitCode.BUG, ()) == 70
    [line] = map(json.loads, lines.getvalue().splitlines())
    assert line["level"] == "error"
    assert "KeyError: 'x'" in line["exception"]
    monkeypatch.setattr(logging.getLogger("consumers"), "level", logging.INFO)
    output.note("starting")
    assert json.loads(lines.getvalue().splitlines()[-1])["message"] == "starting"
    assert capsys.readouterr() == ("", "")


def test_a_listing_shows_control_characters_of_a_name_and_does_not_send_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    columns = (Column("table"),)
    named = [{"table": "a\x1b[31mb\x07 \u202eé名"}, {"table": "two\nlines"}]
    output.print_listing(columns, named, as_json=False, nothing="none")
    _, *lines = capsys.readouterr().out.splitlines()
    assert lines == [r"a\x1b[31mb\x07 \u202eé名", "two lines"]
    console = Console(width=80, force_terminal=True, color_system=None)
    console.print(output._table(columns, named, console))
    shown = capsys.readouterr().out
    assert r"a\x1b[31mb\x07 \u202eé名" in shown
    assert "\x1b" not in shown


def test_nothing_that_a_writer_named_steers_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "a\x1b[31mb"
    output.print_facts({"writer": f"{name}\nstatus  committed"})
    output.print_check("lost", "warn", name, name)
    output.note(name)
    operation = {"operation": "Append", "table_name": name, "version": 1, "snapshot_id": None}
    operation |= {"status": "committed", "message": name}
    names = ("transaction_id", "attempt", "status", "code", "sequence")
    attempt: dict[str, Any] = dict.fromkeys(names, name)
    attempt |= dict.fromkeys(("partition", "time", "principal", "message"), name)
    set_ = {"table_name": name, "is_table": True, "key": name, "value": name}
    attempt |= {"details": [operation], "failed_requirements": [], "conflict": None}
    attempt |= {"changed": [set_]}
    ask._show_attempt(attempt)
    ask._explain_attempt(attempt | {"words": [name]})
    ask._print_line(attempt | {"what": name}, as_json=False)
    shown = "".join(capsys.readouterr())
    assert "\x1b" not in shown
    assert shown.count(r"a\x1b[31mb") > 10
    assert not any(line.startswith("status  committed") for line in shown.splitlines())
