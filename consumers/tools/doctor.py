"""Looks at everything that the service rests on, and says of each what to do if it isn't right."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from importlib.metadata import version as package_version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commitlog.adapters.places import bound, use_named
from commitlog.adapters.storage import local_path, store_for
from commitlog.adapters.storage_options import read_storage_file
from commitlog.codecs.lanes import NATIVE, lane
from commitlog.errors import CommitLogError, LogMoved, Unavailable, UnsupportedFormat
from consumers.broker.errors import BrokerError
from consumers.broker.jars import cache_root
from consumers.broker.java import find_java
from consumers.broker.pins import kafka_version, mismatches, read_pins
from consumers.partition.checkpoints.table_places import check_tables, find_roots
from consumers.runtime.certificate import Tls, validity_of
from consumers.runtime.config import Config, unknown_variables
from consumers.runtime.endpoints import noted_roots
from consumers.runtime.patience import told_if_slow, waiting_for
from consumers.runtime.places import check_own_place, has_transactions, is_in_place, noted_logs
from consumers.tools.archive.log import with_archive
from consumers.tools.clocks import brokers_clock, ids, leader_clock, log_clock
from consumers.tools.rules import rules_in
from consumers.views.health import INDEX_LAG_SECONDS, Check, Health, Level, finding, index_check

if TYPE_CHECKING:
    from commitlog.adapters.kafka import KafkaLog

PYTHON_MINIMUM = (3, 11)
DISK_FREE_MINIMUM = 1024**3
DISK_FULL = 64 * 1024**2
"""Below it, the next commits or segments of the broker find no space."""
CONNECT_SECONDS = 10.0
PROBE = "_commitlog/probe"
STORE_ADVICE = (
    "the leader must be able to write there; for a store that ignores If-None-Match, set the"
    " option conditional_put, or AWS_CONDITIONAL_PUT, to disabled for everything that writes there"
)


PLACES_ADVICE = "start nothing before this is right"
TLS_ADVICE = "renew it and replace the file; HTTP servers read it again within a second"
ACCESS_ADVICE = "docs/deployment.md says which settings and rights each role needs on Kafka"
RIGHTS_ADVICE = "run this as the user that the service has"


def doctor(config: Config, say: Callable[[str], None] = lambda text: None) -> Iterator[Check]:
    """Yield one finding after the other; nothing is changed. `say` hears what is waited for."""
    yield _python()
    yield _settings(config)
    yield _java()
    yield _jars()
    if config.root is not None:
        yield finding("disk", partial(_disk, "disk", config.root), RIGHTS_ADVICE)
    if config.tls_certificate:
        yield finding("certificate", partial(_certificate, config), TLS_ADVICE)
    yield from _stores(config)
    yield from _cluster(config, say)


def _python() -> Check:
    found = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < PYTHON_MINIMUM:
        return Check("python", Level.FAIL, found, "install Python 3.11 or newer")
    how = "in machine code" if lane() == NATIVE else "by Python alone"
    return Check("python", Level.OK, f"{found}; records are read and written {how}")


def _settings(config: Config) -> Check:
    given = [f"{name} from {where}" for name, where in config.sources.items() if where != "default"]
    if config.kafka:
        given.append("kafka " + ", ".join(sorted(config.kafka)))
    unknown = unknown_variables(os.environ)
    if unknown:
        return Check(
            "settings",
            Level.WARN,
            f"no setting is named {', '.join(unknown)}",
            "correct the names, or unset them: docs/configuration.md lists all",
        )
    return Check("settings", Level.OK, "; ".join(given) or "all defaults")


def _java() -> Check:
    try:
        java = find_java()
    except (BrokerError, CommitLogError) as error:
        return Check(
            "java", Level.WARN, str(error), "needed only for the embedded broker and Spark"
        )
    return Check("java", Level.OK, f"Java {java.version}, {java.path} ({java.source})")


def _jars() -> Check:
    pins = read_pins()
    version = kafka_version(pins)
    try:
        folders = sorted(cache_root().glob("jars-*"))
        if any(folder.is_dir() and not mismatches(folder, pins) for folder in folders):
            return Check("jars", Level.OK, f"Kafka {version} in {cache_root()}, all as pinned")
    except (BrokerError, OSError) as error:
        return Check("jars", Level.WARN, str(error), "needed only for the embedded broker")
    return Check(
        "jars",
        Level.WARN,
        f"Kafka {version} is not in {cache_root()} yet",
        "the first start of the embedded broker fetches it; `commitlog broker` does it now",
    )


def _disk(name: str, path: Path) -> Check:
    existing = next(one for one in (path, *path.parents) if one.exists())
    free = shutil.disk_usage(existing).free
    found = f"{free / 1024**3:.1f} GiB free at {existing}"
    if free < DISK_FULL:
        found = f"{free / 1024**2:.1f} MiB free at {existing}"
        return Check(name, Level.FAIL, found, "make room now: commits fail, and the broker stops")
    if free < DISK_FREE_MINIMUM:
        return Check(name, Level.WARN, found, "make room: a full disk stops the broker")
    return Check(name, Level.OK, found)


def _certificate(config: Config) -> Check:
    validity = validity_of(path := config.tls_certificate)
    if config.tls_key and (tls := Tls.of(config)):
        tls.context()  # a certificate that doesn't fit its key is never shown
    level = Level.OK if validity.is_renewed() else Level.WARN
    if not validity.is_valid():
        level = Level.FAIL
    return Check("certificate", level, f"{path} {validity}", TLS_ADVICE)


def _stores(config: Config) -> Iterator[Check]:
    """Try each store of the storage file."""
    for prefix in read_storage_file(config.storage_file).stores.by_prefix:
        if prefix:
            yield finding("store", partial(_probe, prefix), STORE_ADVICE)


def _cluster(config: Config, say: Callable[[str], None]) -> Iterator[Check]:
    from commitlog.adapters.kafka import KafkaLog
    from commitlog.adapters.kafka_settings import ClientSettings

    root = shlex.quote(str(config.root)) if config.root else "DIR"
    advice = f"start `commitlog up --root {root}`, or name a cluster that runs"
    try:
        servers = config.need_bootstrap_servers()
        settings = ClientSettings(servers, config.kafka)

        def waits() -> str:
            return waiting_for(servers, CONNECT_SECONDS, settings.trouble())

        try:
            with told_if_slow(say, waits):
                log = KafkaLog.reach(settings, config.log, CONNECT_SECONDS)
        finally:
            advice = ACCESS_ADVICE if settings.trouble() else advice
    except CommitLogError as error:
        yield Check("cluster", Level.FAIL, str(error), advice)
        if config.root is not None:
            yield finding("places", partial(_noted_places, config.root, config), PLACES_ADVICE)
        return
    with closing(log):
        yield Check("cluster", Level.OK, f"answers at {servers}")
        yield from _log(log, config)


def _log(log: KafkaLog, config: Config) -> Iterator[Check]:
    try:
        genesis = log.genesis()
        partitions = log.partitions()
    except LogMoved as error:
        advice = f"use --bootstrap-servers {error.bootstrap_servers}"
        yield Check("log", Level.FAIL, str(error), advice)
        return
    except CommitLogError as error:
        if isinstance(error, Unavailable):  # brokers are away, and the others know how many
            advice = ACCESS_ADVICE if log.trouble() else "see that all brokers run"
            yield Check("log", Level.FAIL, str(error), advice)
            yield _durability(log, config)
        else:
            yield Check("log", Level.FAIL, str(error), "")
        return
    parts = f"{partitions} partition{'s' if partitions > 1 else ''}"
    yield Check("log", Level.OK, f"{genesis.log} ({genesis.log_id}), {parts}")

    yield finding(
        "topics",
        partial(_topics, log, config),
        "correct the topic's settings; no leader starts before",
    )
    yield finding("durability", partial(_durability, log, config), RIGHTS_ADVICE)
    yield finding("clock", lambda: log_clock(log, time.time_ns() // 1_000_000))
    if genesis.tables_root:
        places = finding("places", lambda: _places(log, config), PLACES_ADVICE)
        yield places
        if places.level is not Level.FAIL:  # a probe would make the folder that isn't there
            yield finding("storage", lambda: _probe(genesis.tables_root), STORE_ADVICE)
        folder = local_path(genesis.tables_root)
        if folder is not None and (config.root is None or config.root not in folder.parents):
            yield finding("tables disk", partial(_disk, "tables disk", folder), RIGHTS_ADVICE)
    yield from _service(log, config)


def _topics(log: KafkaLog, config: Config) -> Check | str:
    """See that the topics lose nothing, and that their cleaner works as it should."""
    from commitlog.adapters.kafka_cleaning import is_cleaned_at_once

    log.check_settings()
    if is_cleaned_at_once(config.need_bootstrap_servers(), config.log, config.kafka):
        return Check(
            "topics",
            Level.WARN,
            "the cleaner of the transactions topic works at once, so the topic begins a file each"
            " second: `commitlog erase --now` runs, or was killed",
            "unless it runs, run `commitlog erase` for that table again, without --where",
        )
    return "no setting would lose or reorder records"


def _places(log: KafkaLog, config: Config) -> Check | str:
    """See whether the tables are where the log says."""
    find_roots(with_archive(log, config.root), config.root, needs_checkpoint=False)
    if config.root is not None:
        genesis, own = log.genesis(), config.need_tables_root()
        check_own_place(genesis.tables_root, genesis.log_id, own, config.root)
    where = bound(log.genesis().tables_root)
    if is_in_place(log):
        known = check_tables(log, config.root) if config.root is not None else 0
        seen = f", with the folders of {known} that the last checkpoint knows" if known else ""
        return f"the tables of the log are in {where}{seen}"
    if has_transactions(log):
        return Check(
            "places",
            Level.WARN,
            f"{where} has no mark of the log: another folder, or no leader of this release ran yet",
            "if its disk isn't mounted, mount it; a leader that starts leaves the mark",
        )
    return f"the tables of the log go to {where}"


def _noted_places(root: Path, config: Config) -> str:
    """See, without the log, whether a root is where its logs say; what they noted there tells."""
    own = config.need_tables_root()
    use_named(noted_roots(root), has_tables=True)
    noted = noted_logs(own)
    for log_id, recorded in noted:
        check_own_place(recorded, log_id, own, root)
    return f"{own} is where its log looks for it" if noted else f"{own} holds no log's tables yet"


def _durability(log: KafkaLog, config: Config) -> Check:
    """Say what an acknowledged commit survives, by what the cluster keeps now."""
    try:
        topics = log.copies()
    except CommitLogError as error:
        return Check("durability", Level.WARN, f"the copies are unknown: {error}", "grant Describe")
    copies = min(one.copies for one in topics)
    needed = min(one.needed for one in topics)
    if copies == 1:
        return _one_copy(config)
    late = [one for one in topics if one.in_step < one.copies]
    found = f"{copies} copies, and a commit is acknowledged once {min(needed, copies)} have it"
    if needed < 2:
        return Check(
            "durability",
            Level.WARN,
            f"{found}: what the leading broker alone has is lost with its disk",
            "set min.insync.replicas to 2 for both topics",
        )
    if late:
        topic = min(late, key=lambda one: one.in_step - one.needed)
        is_stopped = topic.in_step < topic.needed
        found += f"; {topic.in_step} of {topic.copies} copies of {topic.topic} are in step"
        found += ", so nothing is acknowledged now" if is_stopped else ""
        return Check(
            "durability",
            Level.FAIL if is_stopped else Level.WARN,
            found,
            "see that all brokers run: with fewer than "
            f"{topic.needed} in step, nothing is acknowledged",
        )
    return Check("durability", Level.OK, f"{found}; all are in step")


def _one_copy(config: Config) -> Check:
    properties = config.root / "kafka" / "server.properties" if config.root else None
    if properties is None or not properties.is_file():
        return Check(
            "durability",
            Level.WARN,
            "one copy: a commit is lost with the disk of the one broker that has it",
            "use topics with three copies, and min.insync.replicas=2",
        )
    if "log.flush.interval.messages=1" in properties.read_text(encoding="utf-8").splitlines():
        return Check(
            "durability",
            Level.OK,
            "one copy, on disk before it is acknowledged: it survives a power cut, not a lost disk",
        )
    return Check(
        "durability",
        Level.WARN,
        "one copy, in the system's memory when acknowledged: it survives the end of any process,"
        " not a power cut",
        "start with --fsync, or use a cluster of three brokers",
    )


def _probe(tables_root: str) -> str:
    """See whether a file can be made once and only once."""
    store = store_for(tables_root)
    path = f"{PROBE}-{uuid.uuid4()}"
    try:
        if not store.create(path, b"1") or store.create(path, b"2") or store.read(path) != b"1":
            raise OSError(f"put-if-absent does not hold in {tables_root}")
    finally:
        store.delete(path)
    if not store.has_put_if_absent:
        return (
            f"{tables_root} has no put-if-absent: names are looked at, then put, and only the "
            "log may write there"
        )
    return f"put-if-absent holds in {bound(tables_root)}"


def _service(log: KafkaLog, config: Config) -> Iterator[Check]:
    with closing(Health(log, config.root, config.token)) as health:
        leaders = [check for check in health.check() if check.name.startswith("leader")]
        yield from leaders
        clock = partial(leader_clock, now_ms=time.time_ns() // 1_000_000)
        for look in (lance_release, _version, clock, brokers_clock, ids):
            for number, status in health.statuses.items():
                yield numbered(look(status), number, len(leaders))
        if config.root is not None:
            yield finding("index", partial(_index, config.root, health), RIGHTS_ADVICE)


def numbered(found: Check, partition: int, partitions: int) -> Check:
    """Return a finding about a partition, named with its number if there are others."""
    return replace(found, name=f"{found.name} {partition}") if partitions > 1 else found


def lance_release(status: Mapping[str, Any]) -> Check:
    """Compare the release of pylance that a leader has with the one that the rules name."""
    try:
        has, named = str(status.get("pylance", "")), rules_in(status).lance_release
    except UnsupportedFormat as error:
        return Check("lance", Level.WARN, str(error), "see docs/upgrades.md")
    if not has or has == named:
        return Check("lance", Level.OK, f"manifests name Lance {named} as their writer")
    return Check(
        "lance",
        Level.WARN,
        f"the leader has pylance {has}, and manifests name Lance {named} as their writer",
        f"once all programs that follow the log are new, run `commitlog rules --upgrade "
        f"--lance-release {has}`; or install pylance {named}",
    )


def _version(status: Mapping[str, Any]) -> Check:
    """Compare this program with the leader's."""
    ours, theirs = package_version("lance-commitlog"), str(status.get("version", ""))
    if theirs in ("", ours):
        return Check("version", Level.OK, f"this program and the leader's are {ours}")
    return Check(
        "version",
        Level.WARN,
        f"this program is {ours}, and the leader's is {theirs}",
        "both work together; docs/upgrades.md says in which order to replace them",
    )


def _index(root: Path, health: Health) -> Check:
    """Give the index the time it is allowed to get what the leader has now."""
    if not any((root / name).exists() for name in ("index.duckdb", "index")):
        text = f"no version index is kept in {root}, as in the root of a committer alone"
        return Check("index", Level.WARN, text, "name the root that `commitlog index` has")
    deadline = time.monotonic() + INDEX_LAG_SECONDS
    while True:
        found = index_check(root, health.sequences, health.has)
        if found.level is Level.OK or time.monotonic() > deadline:
            return found
        time.sleep(0.2)
