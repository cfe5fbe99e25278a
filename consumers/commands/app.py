"""The tree of commands, with what the help says around it."""

from __future__ import annotations

import inspect

from cyclopts import App, ArgumentCollection, CoercionError, Group

from consumers.commands import (
    acl,
    ask,
    backups,
    care,
    erase,
    jobs,
    look,
    places,
    properties,
    prove,
    rows,
    run,
    undo,
    upkeep,
)
from consumers.commands.bench import bench
from consumers.commands.bench_maintenance import bench_maintain, bench_rag, bench_soak
from consumers.commands.examples import shown
from consumers.commands.exit_codes import MEANING, ExitCode

_RUN = Group("Run", sort_key=1)
_ASK = Group("Query", sort_key=2)
_CARE = Group("Operate", sort_key=3)
_JOBS = Group("Try", sort_key=4)
_SHELL = Group("Shell", sort_key=5)


def _exit_codes() -> str:
    codes = "; ".join(f"{int(code)} {MEANING[code]}" for code in ExitCode)
    return f"Exit codes: {codes}; 143 stopped by SIGTERM (`up` and the other parts: 0)."


def _refuse_fractions(_: App, __: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Refuse 1.9 for a whole number, which cyclopts rounds: a log would have two partitions."""
    for argument in arguments:
        if argument.hint in (int, int | None, tuple[int, ...]):
            for token in argument.tokens:
                if "." in token.value:
                    raise CoercionError(argument=argument, token=token, target_type=int)


app = App(
    name="commitlog",
    config=_refuse_fractions,
    help="An event-sourced commit log on Kafka for Lance and Iceberg tables.",
    help_epilogue=_exit_codes(),
    help_format="plaintext",
    version_flags=["--version"],
    version=lambda: _version(),
    suppress_keyboard_interrupt=False,
)
app["--help"].group = _SHELL
app["--version"].group = _SHELL

for _group, _commands in (
    (_RUN, (run.up, run.broker, run.init, run.committer, run.index, run.server)),
    (_RUN, (upkeep.maintain, rows.rows)),
    (_ASK, (ask.history, ask.tables, ask.conflicts, ask.show, ask.explain, ask.log)),
    (_ASK, (look.diff, look.blame, look.sql, look.plot, look.top)),
    (_CARE, (care.doctor, prove.verify, prove.replay, prove.archive)),
    (_CARE, (backups.backup, backups.restore, backups.move)),
    (_CARE, (erase.erase, properties.properties, undo.tag, undo.undrop, undo.rollback)),
    (_CARE, (acl.acl, care.orphans, care.rules, care.upgrade, care.version)),
    (_JOBS, (jobs.demo,)),
):
    for _command in _commands:
        app.command(_command, group=_group, help_epilogue=shown(_command.__name__))
places.places.group = (_CARE,)
places.places.help_epilogue = shown("places")
places.places.version_flags = ()
app.command(places.places)
for _long in (bench_maintain, bench_soak, bench_rag):
    bench.command(_long, name=_long.__name__.removeprefix("bench_"), help_epilogue="")
bench.group = (_JOBS,)
app.command(bench)
app.register_install_completion_command(add_to_startup=False, group=_SHELL)


def _flow(commands: App) -> None:
    """Make each paragraph of the help one line, which breaks where the terminal ends."""
    if (command := commands.default_command) is not None:
        lines = [""]
        for line in inspect.cleandoc(command.__doc__ or "").splitlines():
            depths = {len(one) - len(one.lstrip()) for one in (lines[-1], line)}
            if line and lines[-1] and len(depths) == 1 and "--" not in (line[:2], lines[-1][:2]):
                lines[-1] += f" {line.lstrip()}"
            else:
                lines.append(line)
        command.__doc__ = "\n".join(lines).lstrip()
    for name in commands:
        if not name.startswith("-"):
            _flow(commands[name])


_flow(app)


def _version() -> str:
    from importlib.metadata import version

    return version("lance-commitlog")
