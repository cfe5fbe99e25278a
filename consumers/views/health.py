"""Is the log's service whole: cluster, leader and index, each with what to do if not.

A check never raises: its finding is a value, for `/readyz`, `commitlog doctor` and `commitlog up`
alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import Any

from commitlog.client.leader.connection import LeaderConnection
from commitlog.client.leader.moved import where_moved
from commitlog.errors import CommitLogError
from commitlog.ports import Log
from consumers.partition.mailbox import PendingReply, Reply

LEADER_TIMEOUT_SECONDS = 2.0
UNDECIDED_MAX = 20_000
"""More than this waiting at the leader is some seconds of work."""
LAG_SECONDS_MAX = 30.0
"""A transaction that waits longer for its decision is waiting for somebody to look."""
FILES_SECONDS_MAX = 30.0
"""Files that are later than this are waiting for somebody to look at their store."""
NAMED_MAX = 10
SILENCE_SECONDS_MAX = 10.0
"""The leader's deciding thread comes by at least every second; then it hangs."""
SETTINGS_SECONDS = 3600.0
SETTINGS_RETRY_SECONDS = 10.0
INDEX_LAG_SECONDS = 5.0
"""The index is fresh if it has what the leader had decided so long ago."""
CLUSTER_SECONDS = 10.0
"""So often the cluster is asked though its leaders get on: this process needs it as well."""
INTERVAL_SECONDS = 1.0
QUIET_SECONDS = 5.0
"""How often it looks without being asked while all is well."""
FRESH_SECONDS = 2.0
"""How long who asks waits for a look."""
STALE_SECONDS = 10.0
CLOSE_SECONDS = 2.0
COUNTED = ("outcomes", "measures")
"""What a leader says of itself that is still true once it is silent."""


class Level(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding, and what to do about it."""

    name: str
    level: Level
    message: str
    advice: str = ""

    def to_json(self) -> dict[str, str]:
        """Return it as a JSON object."""
        return asdict(self)


def finding(name: str, look: Callable[[], Check | str], advice: str = "") -> Check:
    """Look; what an error says is the finding too."""
    try:
        found = look()
    except (CommitLogError, OSError) as error:
        return Check(name, Level.FAIL, str(error), advice)
    return Check(name, Level.OK, found) if isinstance(found, str) else found


class Health:
    """Checks one log again and again, and remembers what it found last."""

    def __init__(self, log: Log, root: Path | None, token: str = "", server: str = "") -> None:
        """Look at the log, and at the index under `root` if there is one.

        An HTTP `server` gives a name of its own, by which the leaders count them.
        """
        self._asked = {"measures": True, **({"server": server} if server else {})}
        self._log = log
        self._root = root
        genesis = log.genesis()
        self._connections = [
            LeaderConnection(
                log,
                name=log.name,
                log_id=genesis.log_id,
                partition=partition,
                token=token,
                home=log.home(),
            )
            for partition in range(log.partitions())
        ]
        self.sequences: dict[int, int] = {}
        """What each partition's leader had decided at the last check."""
        self.statuses: dict[int, dict[str, Any]] = {}
        """What each partition's leader said of itself last."""
        self._published: tuple[object, dict[int, int]] = (None, {})
        """What the index had, by partition, and which file that was read from."""
        self._decided: deque[tuple[float, dict[int, int]]] = deque(maxlen=1000)
        self._acknowledged: dict[int, int] = {}
        """How many acknowledged outcomes each leader had counted at the last check."""
        self._cluster: Check | None = None
        """What the cluster said last, when it was asked and answered."""
        self._cluster_due = float("-inf")
        self._topics: Check | None = None
        self._topics_due = float("-inf")
        self._found: tuple[Check, ...] = ()
        self._found_at = self._heard_at = float("-inf")
        self._closed = threading.Event()
        self._wanted = threading.Event()
        self._asking: list[Reply[None]] = []
        """Who waits for the end of a look."""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Look every while, on a thread."""
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop looking."""
        self._closed.set()
        self._wanted.set()
        for connection in self._connections:
            connection.close()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    async def fresh(self) -> tuple[Check, ...]:
        """Return what is found now, or what was found a moment ago."""
        if time.monotonic() - self._found_at > INTERVAL_SECONDS and self._thread is not None:
            pending = PendingReply[None]()
            self._asking.append(pending.reply)
            self._wanted.set()
            with contextlib.suppress(asyncio.TimeoutError):
                await pending.result(FRESH_SECONDS)
        return self.found()

    def found(self) -> tuple[Check, ...]:
        """Return what was found last; a failure if that is too long ago."""
        age = time.monotonic() - self._found_at
        if age > STALE_SECONDS:
            known = f"for {age:.0f} s" if isfinite(age) else "yet"
            advice = "see that Kafka and this machine's disk answer: a check waits for one of them"
            return (Check("health", Level.FAIL, f"no check has come to its end {known}", advice),)
        return self._found

    def leaders(self) -> dict[int, dict[str, Any]]:
        """Return by partition what its leader said; only what it counted if it is silent now."""
        # Kafka may hang the rest of a look: what a leader said before that is old by then.
        is_stale = self._thread is not None and time.monotonic() - self._heard_at > STALE_SECONDS
        heard = {} if is_stale else self.sequences
        return {
            partition: status
            if partition in heard
            else {"ready": False, **{name: status[name] for name in COUNTED if name in status}}
            for partition in range(len(self._connections))
            for status in (self.statuses.get(partition, {}),)
        }

    def is_alone(self) -> bool:
        """Return True if each leader said last that no other HTTP server asks it."""
        said = [self.statuses.get(partition) for partition in range(len(self._connections))]
        return all(one is not None and one.get("http_servers", 1) == 1 for one in said)

    def is_alone_now(self) -> bool:
        """Return True if each leader says so again: another server may have begun since then."""
        with contextlib.suppress(CommitLogError):
            return self.is_alone() and all(
                one.request("http_servers", self._asked, LEADER_TIMEOUT_SECONDS) == 1
                for one in self._connections
            )
        return False

    def problem(self) -> str:
        """Return what commits and reads wait for: what was found wrong with leaders or Kafka."""
        wrong = (one for one in self.found() if one.level is Level.FAIL and one.name != "index")
        return "; ".join(f"{one.name}: {one.message}" for one in wrong)

    def index_lags(self) -> dict[int, int]:
        """Return by partition how many outcomes the published index lacked at the last check."""
        published = self._published[1]
        return {
            partition: max(0, sequence - published.get(partition, 0))
            for partition, sequence in self.sequences.items()
            if self._root is not None
        }

    def index_steps(self) -> dict[str, Any]:
        """Return how late the index showed transactions, {} if there is none here."""
        from consumers.views.version_index.lateness import noted_lateness

        return noted_lateness(self._root) if self._root is not None else {}

    def check(self) -> tuple[Check, ...]:
        """Look now."""
        sequences: dict[int, int] = {}
        leaders = [self._leader(number, sequences) for number in range(len(self._connections))]
        self.sequences, self._heard_at = sequences, time.monotonic()
        checks = [self._broker(), *leaders]
        if not is_whole(tuple(checks)) and (moved := where_moved(self._log)) is not None:
            advice = f"start this again with --bootstrap-servers {moved.bootstrap_servers}"
            checks.append(Check("log", Level.FAIL, str(moved), advice))
        checks.append(self._settings())
        if self._root is not None:
            checks.append(self._index(self._root, sequences))
        return tuple(checks)

    def _run(self) -> None:
        while not self._closed.is_set():
            self._found, self._found_at = self.check(), time.monotonic()
            self._wanted.clear()
            asking, self._asking = self._asking, []
            for reply in asking:
                reply.give(None)
            if not self._closed.wait(INTERVAL_SECONDS) and is_whole(self._found):
                self._wanted.wait(QUIET_SECONDS - INTERVAL_SECONDS)

    def _broker(self) -> Check:
        """Ask the cluster for the log, unless what a leader counts shows that it is there.

        Where a leader counts more acknowledged outcomes than at the last look, Kafka took records
        of this log meanwhile: to ask as well would cost both sides more than it tells.
        """
        before, statuses = self._acknowledged, self.statuses.items()
        self._acknowledged = {each: sum(one.get("outcomes", {}).values()) for each, one in statuses}
        has_grown = any(n > before.get(each, n) for each, n in self._acknowledged.items())
        now = time.monotonic()
        if self._cluster is None or not has_grown or now >= self._cluster_due:

            def look() -> str:
                identity = self._log.identity()
                return f"log {identity.log!r} on cluster {identity.cluster_id}"

            found = finding("broker", look, "see that Kafka runs and can be reached")
            if found.level is not Level.OK:
                return found
            self._cluster, self._cluster_due = found, now + CLUSTER_SECONDS
        return self._cluster

    def _settings(self) -> Check:
        """Look at the topics' settings each hour, and again soon while they are wrong."""
        now = time.monotonic()
        if self._topics is None or now >= self._topics_due:

            def look() -> str:
                self._log.check_settings()
                return "no setting would lose or reorder records"

            self._topics = finding("topics", look, "correct them; the leader waits until they are")
            is_right = self._topics.level is Level.OK
            self._topics_due = now + (SETTINGS_SECONDS if is_right else SETTINGS_RETRY_SECONDS)
        return self._topics

    def _leader(self, partition: int, sequences: dict[int, int]) -> Check:
        name = "leader" if len(self._connections) == 1 else f"leader {partition}"

        def look() -> Check | str:
            status = self._connections[partition].request(
                "status", self._asked, LEADER_TIMEOUT_SECONDS
            )
            return self._judge(name, status, partition, sequences)

        return finding(name, look, "see that `commitlog committer` runs, and its log")

    def _judge(
        self, name: str, status: dict[str, Any], partition: int, sequences: dict[int, int]
    ) -> Check | str:
        self.statuses[partition] = status
        sequences[partition] = int(status["sequence"])
        where = f"{status['node']} leads in epoch {status['epoch']}"
        waiting = int(status.get("undecided", 0))
        if not status.get("ready", True):
            return Check(name, Level.FAIL, f"{where}, and is not ready yet", "wait a moment")
        if waiting > UNDECIDED_MAX:
            advice = "let writers pause; see the committer's log for what holds it up"
            return Check(name, Level.FAIL, f"{where}; {waiting} transactions wait", advice)
        lag = float(status.get("decision_lag_seconds", 0))
        silence = float(status.get("deciding_silence_seconds", 0))
        if lag > LAG_SECONDS_MAX or silence > SILENCE_SECONDS_MAX:
            late = f"a transaction has been waiting for {lag:.0f} s"
            hung = f"its deciding thread has been silent for {silence:.0f} s"
            found = f"{where}; {hung if silence > SILENCE_SECONDS_MAX else late}"
            advice = "see the committer's log for what holds it up: a store, or a build"
            return Check(name, Level.FAIL, found, advice)
        unheard = float(status.get("acknowledge_lag_seconds", 0))
        if unheard > LAG_SECONDS_MAX:
            found = f"{where}; Kafka has acknowledged no outcome for {unheard:.0f} s"
            return Check(name, Level.FAIL, found, "see that Kafka takes what is appended")
        failing = status.get("failing_tables") or []
        files_lag = float(status.get("files_lag_seconds", 0))
        full, advice = _named(status.get("full_tables") or []), "see the committer's log"
        goes_on = f"{full} get no more until their files follow" if full else "commits go on"
        behind = f"versions that wait: {status.get('unwritten_versions', 0):,}; {goes_on}"
        if files_lag > FILES_SECONDS_MAX:
            tables = _named(failing) or "some tables"
            found = f"{where}; manifests of {tables} have not been written for {files_lag:.0f} s"
            advice = f"{advice} for what their stores say; {behind}"
            return Check(name, Level.FAIL, found, advice)
        if failing or full:
            found = f"{where}; manifests of {_named(failing) or full} cannot be written"
            return Check(name, Level.WARN, found, f"{advice}; {behind}")
        rows_lag = float(status.get("rows_lag_seconds", 0))
        if rows_lag > LAG_SECONDS_MAX:
            found = f"{where}; a write of rows has been waiting for {rows_lag:.0f} s"
            return Check(name, Level.WARN, found, "see that `commitlog rows` runs, and its log")
        return f"{where}; {sequences[partition]} decided, {waiting} waiting"

    def _index(self, root: Path, sequences: dict[int, int]) -> Check:
        now = time.monotonic()
        self._decided.append((now, sequences))
        due: dict[int, int] = {}
        while self._decided and self._decided[0][0] <= now - INDEX_LAG_SECONDS:
            due = self._decided.popleft()[1]
        if due:
            self._decided.appendleft((now - INDEX_LAG_SECONDS, due))
        return index_check(root, due, self.has)

    def has(self, root: Path) -> dict[int, int]:
        """Return what the index has; opened again only once another one was published.

        Raises WrongLog if it is another log's.
        """
        with contextlib.suppress(OSError):
            found = (root / "index.duckdb").stat()
            file = (found.st_ino, found.st_mtime_ns, found.st_size)
            if file != self._published[0]:
                self._published = (file, self._ask(root))
            return self._published[1]
        return self._ask(root)

    def _ask(self, root: Path) -> dict[int, int]:
        from consumers.views.version_index.comparison import check_index_of
        from consumers.views.version_index.layout import noted_counts

        log_id = self._log.genesis().log_id
        if noted := noted_counts(root, log_id):
            return noted  # under writes there is another index each second
        check_index_of(root, self._log.name, log_id)
        return published(root)


def published(root: Path) -> dict[int, int]:
    """Return how many outcomes the published index has, by partition."""
    # DuckDB is loaded here: not everybody who checks has an index to look at.
    from consumers import history

    rows = history.status(root)
    return {_number(row["partition"]): _number(row["sequence"]) for row in rows}


def index_check(
    root: Path, due: dict[int, int], ask: Callable[[Path], dict[int, int]] = published
) -> Check:
    """See that the published index has what is due, per partition."""
    from consumers.views.version_index.layout import last_failure

    advice = "check that `commitlog index` is running, and its log"

    def look() -> Check | str:
        has = ask(root)
        late = [partition for partition, least in due.items() if has.get(partition, 0) < least]
        if late:
            found = f"it has {has.get(late[0], 0)} of {due[late[0]]} outcomes"
            failure = last_failure(root)
            said = f"; its keeper ended last with: {failure}" if failure else ""
            return Check("index", Level.FAIL, found + said, advice)
        return f"{sum(has.values())} outcomes"

    return finding("index", look, advice)


def _named(tables: list[str]) -> str:
    more = len(tables) - NAMED_MAX
    return ", ".join(map(str, tables[:NAMED_MAX])) + (f" and {more:,} more" if more > 0 else "")


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def is_whole(checks: tuple[Check, ...]) -> bool:
    """Return True if nothing failed."""
    return bool(checks) and all(check.level is not Level.FAIL for check in checks)
