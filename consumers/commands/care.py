"""Commands that look after a log: is it whole, is all in place, which version is this."""

from __future__ import annotations

import platform
from importlib.metadata import version as package_version
from typing import Annotated

from cyclopts import Parameter

from consumers import output
from consumers.commands.options import HERE, AsJson, Where, connect
from consumers.exit_codes import ExitCode


def doctor(*, where: Where = HERE, as_json: AsJson = False) -> ExitCode:
    """Check what the service rests on; each line says what to do.

    Looks at Python, settings, Java, Kafka's jars, disk, cluster, topics, durability, storage,
    leader and index. Changes nothing.
    """
    from consumers.doctor import run
    from consumers.health import Check, is_whole

    def show(check: Check) -> None:
        if not as_json:
            output.print_check(check.name, check.level, check.message, check.advice)

    found = run(where.load(), show)
    if as_json:
        output.print_json([check.to_json() for check in found])
    return ExitCode.OK if is_whole(found) else ExitCode.REFUSED


def verify(*, where: Where = HERE, as_json: AsJson = False) -> ExitCode:
    """Read the whole log and check it: hashes, order, and that every answer has its transaction.

    Names the first bad sequence, if there is one.
    """
    from consumers import verify as check

    log = connect(where.load())
    try:
        verdicts = []
        for partition in range(log.partitions()):
            with output.progress(f"partition {partition}") as bar:
                verdicts.append(check.verify(log, partition, on_progress=bar))
    finally:
        log.close()
    if as_json:
        output.print_json([verdict.to_json() for verdict in verdicts])
    for verdict in verdicts if not as_json else ():
        name = f"partition {verdict.partition}"
        found = (
            f"{verdict.outcomes} outcomes in {verdict.terms} terms, {verdict.committed} committed,"
            f" {verdict.undecided} undecided, {verdict.voids} void; head {verdict.head[:16]}"
        )
        if verdict.is_whole:
            output.print_check(name, "ok", found)
        else:
            bad = f"sequence {verdict.first_bad_sequence} is bad: {verdict.problem}; {found}"
            output.print_check(
                name, "fail", bad, "stop the committers; keep the topics as they are"
            )
    return ExitCode.OK if all(v.is_whole for v in verdicts) else ExitCode.STOP


def version(
    *, as_json: Annotated[bool, Parameter(name="--json", negative="", show_default=False)] = False
) -> None:
    """Show the versions of this program and of what it rests on.

    Parameters
    ----------
    as_json
        Print a JSON object.
    """
    from commitlog.model.limits import PROTOCOL_SUPPORTED
    from consumers.broker.pins import kafka_version, read_pins

    facts = {
        "commitlog": package_version("lance-commitlog"),
        "protocol": PROTOCOL_SUPPORTED,
        "pylance": package_version("pylance"),
        "kafka": kafka_version(read_pins()),
        "duckdb": package_version("duckdb"),
        "python": platform.python_version(),
    }
    if as_json:
        output.print_json(facts)
    else:
        output.print_facts(list(facts.items()))
