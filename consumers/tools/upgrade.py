"""What has which version: log, leaders, who is connected to them, checkpoints and index.

Each finding that isn't of this program's version says what to do, in the order in which to do it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

from commitlog.errors import Unavailable, UnsupportedFormat
from commitlog.model.limits import PROTOCOL_SUPPORTED
from commitlog.ports import Log
from consumers.history import connect
from consumers.partition.checkpoints.checkpoint_heads import (
    FORMATS,
    advice_without,
    check_files,
    head_path,
)
from consumers.partition.files.folders import DiskFolder
from consumers.tools.doctor import lance_release, numbered
from consumers.tools.rules import rules_in
from consumers.views.health import Check, Health, Level, finding
from consumers.views.index_rows import SCHEMA_VERSION

UNKNOWN = "a program that doesn't say"


def check_upgrade(log: Log, root: Path | None, token: str = "") -> Iterator[Check]:
    """Yield one finding after the other, in the order of an upgrade's steps; nothing is changed."""
    ours = f"{package_version('lance-commitlog')}, protocol {PROTOCOL_SUPPORTED}"
    yield Check(
        "program", Level.OK, f"this one is {ours}, with pylance {package_version('pylance')}"
    )
    with closing(Health(log, None, token)) as health:
        found = health.check()
        yield from (one for one in found if one.name.startswith("leader") and _is_bad(one))
        statuses = sorted(health.statuses.items())
    old, partitions = False, log.partitions()
    for partition, status in statuses:
        programs = [_leader(status), *_connected(status)]
        old = old or any(_is_bad(one) for one in programs)
        yield from (numbered(one, partition, partitions) for one in programs)
    if root is not None:
        yield from _kept(root, partitions)
    for partition, status in statuses:
        yield numbered(_rules(status, old), partition, partitions)
        if not old:
            yield numbered(lance_release(status), partition, partitions)


def _is_bad(check: Check) -> bool:
    return check.level is not Level.OK


def _leader(status: Mapping[str, Any]) -> Check:
    knows = int(status.get("knows", 0))
    text = f"{status.get('version', UNKNOWN)}, {_protocol(knows)}, pylance {status.get('pylance')}"
    if knows < PROTOCOL_SUPPORTED:
        advice = "install this program where committers run, standbys first, and start them again"
        return Check("leader", Level.WARN, text, advice)
    return Check("leader", Level.OK, text)


def _connected(status: Mapping[str, Any]) -> Iterator[Check]:
    """Yield one finding for each kind of program that is connected to a leader."""
    for version, knows, count in status.get("programs", ()):
        text = f"{count} × {version or UNKNOWN}, {_protocol(knows)}"
        if knows < PROTOCOL_SUPPORTED:
            advice = "upgrade these writers, readers and servers before the log's protocol"
            yield Check("connected", Level.WARN, text, advice)
        else:
            yield Check("connected", Level.OK, text)


def _kept(root: Path, partitions: int) -> Iterator[Check]:
    """Yield what the root's checkpoints and index are; both can be made again from the log."""
    for partition in range(partitions):
        found = finding("checkpoint", partial(_checkpoint, root, partition))
        yield numbered(found, partition, partitions)
    yield finding("index", lambda: _index(root))


def _checkpoint(root: Path, partition: int) -> Check | str:
    path = head_path(root, partition)
    if not path.is_file():
        return f"none in {path.parent}: a committer of this root reads the log from its beginning"
    try:
        has = json.loads(DiskFolder(path.parent).read(path.name))["format"]
    except (ValueError, LookupError, TypeError):
        has = "unknown"
    reads = FORMATS[path.name]
    if has == reads:
        check_files(root, partition)
        return f"format {has}, which this program reads"
    text = f"{path}: format {has}; this program reads {reads}"
    advice = advice_without(path.name, os.listdir(path.parent))
    return Check("checkpoint", Level.WARN, text, advice)


def _index(root: Path) -> str:
    """Say what the index is; an old one isn't for anybody to worry about."""
    try:
        connect(root).close()
    except (Unavailable, UnsupportedFormat) as error:
        return str(error)
    return f"format {SCHEMA_VERSION}, which this program reads"


def _rules(status: Mapping[str, Any], old: bool) -> Check:
    try:
        protocol = rules_in(status).protocol
    except UnsupportedFormat as error:
        return Check("rules", Level.WARN, str(error), "then check again")
    if protocol == PROTOCOL_SUPPORTED:
        return Check("rules", Level.OK, f"protocol {protocol}, the newest that this program knows")
    text = f"protocol {protocol}; this program knows {PROTOCOL_SUPPORTED}"
    first = "once everything above is new, " if old else ""
    return Check(
        "rules", Level.WARN, text, f"{first}run `commitlog rules --upgrade`; it never goes back"
    )


def _protocol(knows: int) -> str:
    return f"knows protocol {knows}" if knows else "knows an older protocol"
