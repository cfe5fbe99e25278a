"""`commitlog`: one command per question or process, with exit codes that scripts can rely on.

Commands import what they need when they run, so that help comes at once. An error of ours is one
line on standard error; its traceback is shown with --debug. Results go to standard output,
everything else to standard error.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TextIO

NEEDED = ("cyclopts", "rich")
PARTS = ("broker", "committer", "index", "maintain", "rows", "server", "up")
"""Commands that log."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    try:
        from consumers.commands.app import app
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            raise
        print(
            f"commitlog: the command line needs {error.name}:"
            " pip install 'lance-commitlog[server]'",
            file=sys.stderr,
        )
        return 2
    from cyclopts import CycloptsError, MissingArgumentError, UnusedCliTokensError

    from consumers.commands.exit_codes import ExitCode, exit_code

    try:
        code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except CycloptsError as error:
        command, problem = " ".join(("commitlog", *(error.command_chain or ()))), ""
        if isinstance(error, UnusedCliTokensError):
            problem = f"takes no {', '.join(map(repr, error.unused_tokens or ()))}"
        elif isinstance(error, MissingArgumentError) and error.argument is not None:
            name = error.argument.name
            problem = f"needs a value for {name}" if error.keyword else f"needs {name}"
        if problem:
            error = CycloptsError(msg=f"`{command}` {problem}: `{command} --help` shows more")
        return _report(error, ExitCode.USAGE, arguments)
    except BrokenPipeError:
        # The reader of our output has seen enough.
        _drop(sys.stdout)
        return ExitCode.OK
    except BaseException as error:
        if isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError):
            return ExitCode.OK  # rich ends with 1 there, which is the code of a failed check
        if isinstance(error, SystemExit | GeneratorExit):
            raise
        if isinstance(error, OSError):
            _drop_output_that_fails()
        return _report(error, exit_code(error), arguments)
    return code if isinstance(code, int) else ExitCode.OK


def _drop_output_that_fails() -> None:
    """Drop what can't be written: Python would try it again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop(sys.stdout)


def _drop(stream: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _say(text: str) -> None:
    """Print to standard error; if nobody can read it, the exit code still says what it must."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _drop(sys.stderr)


def _open_closed_descriptors() -> None:
    """Open what the caller closed: a file of ours with such a number would get our log lines."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _prepare_output() -> None:
    """Let any text be printed in any locale, and into streams that the caller closed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and mode == "w":
            stream.reconfigure(errors="backslashreplace")


def _report(error: BaseException, code: int, arguments: Sequence[str]) -> int:
    from consumers.commands.exit_codes import ExitCode, in_one_line
    from consumers.commands.interrupted import left_by
    from consumers.runtime.log_lines import is_json
    from consumers.runtime.process import has_begun

    had_begun = is_json()
    if had_begun or _is_to_log_json(arguments):
        # A part that had begun has a line for it; what is a bug has its traceback in one line.
        logger = logging.getLogger(__name__)
        if code == ExitCode.BUG:
            logger.error("this is a bug in commitlog; please report it", exc_info=error)
        elif not had_begun and code != ExitCode.INTERRUPTED:
            logger.error(in_one_line(error))
        return int(code)
    if code == ExitCode.BUG or "--debug" in arguments or os.environ.get("COMMITLOG_DEBUG"):
        import traceback

        _say("".join(traceback.format_exception(error)).rstrip("\n"))
    if code == ExitCode.BUG:
        _say("commitlog: this is a bug in commitlog; please report it")
    elif code == ExitCode.INTERRUPTED:
        if text := left_by(arguments):
            _say(text)
    elif not has_begun():
        _say(f"commitlog: {in_one_line(error)}")
    return int(code)


def _is_to_log_json(arguments: Sequence[str]) -> bool:
    """Return True for a part that was to log JSON and ended before it had begun to; it does now."""
    from consumers.runtime.log_lines import VARIABLE
    from consumers.runtime.process import configure_logging

    if os.environ.get(VARIABLE) != "json" or not arguments or arguments[0] not in PARTS:
        return False
    configure_logging(arguments[0], None)
    return True


def _load() -> None:
    """Import the commands; a Ctrl-C ends the process at once, since it has begun nothing."""
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not under nohup
    if is_heard:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    with contextlib.suppress(ModuleNotFoundError):  # which `main` reports
        import consumers.commands.app  # noqa: F401
    if is_heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def run() -> None:
    """Run and exit: the console script."""
    from consumers.commands.interrupted import say_when_stopped

    _open_closed_descriptors()
    _load()
    _prepare_output()
    say_when_stopped(sys.argv[1:])
    code = main()
    if threading.active_count() > 1:
        # Threads deep in C++ (DuckDB, Arrow, Kafka) abort the process when the interpreter is
        # taken apart around them; what had to be closed is closed.
        logging.shutdown()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    run()
