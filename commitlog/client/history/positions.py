"""Names of positions: a sequence, a time, a tag of the log, an event's token, or now.

Every method that takes a position accepts all of them. A tag is a property of the log itself (of
the root of its namespaces). A record sets it, so replay and backups have it too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from commitlog.client.commits.catalogue import commit, log_properties
from commitlog.client.history.feed import check_not_behind, sequences
from commitlog.client.history.feed_events import token_starts
from commitlog.client.history.folds import Folds
from commitlog.client.leader.runtime import Runtime
from commitlog.client.rows.host import Host
from commitlog.errors import InvalidRequest, of_the_future
from commitlog.model.operations import AlterProperties
from commitlog.model.records import Outcome

When = int | str | date | Mapping[int, int] | None
"""A name of a position; None is now, a day its beginning in UTC."""

NOW = "now"
TAG = "commitlog.tag."
"""The prefix of the log's properties that hold tags."""
TIMEOUT_SECONDS = 60.0
_TAG = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")
_SEQUENCES = re.compile(r"[0-9]{1,18}(?:,[0-9]{1,18})*")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECONDS = re.compile(r"([0-9]{1,13})ms")
_TOKEN_LENGTH_MIN = 65
"""A token is longer than any tag."""


def positions_of(runtime: Runtime, folds: Folds, when: When, deadline: float) -> dict[int, int]:
    """Return the sequence in each partition at a named position.

    Raises InvalidRequest for what names none.
    """
    if isinstance(when, datetime):
        return _at_time(runtime, folds, when, deadline)
    if isinstance(when, date):
        when = when.isoformat()
    if isinstance(when, str) and when != NOW:
        return _of_text(runtime, folds, when, deadline)
    heads = _heads(runtime)
    if when is None or isinstance(when, str):
        return heads
    return _that_exist(runtime, _sequences(when, runtime.partitions))


def _of_text(runtime: Runtime, folds: Folds, text: str, deadline: float) -> dict[int, int]:
    found = text_sequences(text)
    if found is not None:
        return _that_exist(runtime, _sequences(found, runtime.partitions))
    if milliseconds := _MILLISECONDS.fullmatch(text):
        moment = datetime.fromtimestamp(int(milliseconds[1]) / 1000, UTC)
        return _at_time(runtime, folds, moment, deadline)
    if text[:1].isdigit():
        try:
            return _at_time(runtime, folds, datetime.fromisoformat(text), deadline)
        except ValueError:
            raise _no_position(text) from None
    if _TAG.fullmatch(text):
        known = tags_of(runtime)
        if text not in known:
            has = ", ".join(sorted(known)[:20]) or "none"
            raise InvalidRequest(
                f"the log has no tag {text!r}; its tags: {has}", field="position", value=text
            )
        return sequences(known[text], runtime.partitions)
    if len(text) < _TOKEN_LENGTH_MIN:
        raise _no_position(text)
    starts = token_starts(text, runtime.genesis.log_id, runtime.partitions)
    return _that_exist(runtime, {number: start.told for number, start in enumerate(starts)})


def _sequences(when: int | Mapping[int, int], partitions: int) -> dict[int, int]:
    try:
        return sequences(when, partitions)
    except InvalidRequest as error:
        named = ",".join(map(str, when.values())) if isinstance(when, Mapping) else str(when)
        parts = f", which has {partitions} partitions" if partitions > 1 else ""
        raise _no_position(named, parts) from error


def _no_position(text: str, parts: str = "") -> InvalidRequest:
    return InvalidRequest(
        f"{text!r} is not a position of the log{parts}",
        field="position",
        value=text,
        advice=(
            "Give a sequence (one for each partition, with commas between), a time as"
            " 2026-01-31T12:00:00Z or 1769860800000ms, a tag of the log, an event's token, or now"
        ),
    )


def _heads(runtime: Runtime) -> dict[int, int]:
    return {partition: int(status["sequence"]) for partition, status in _statuses(runtime).items()}


def _statuses(runtime: Runtime) -> dict[int, dict[str, Any]]:
    return {one: runtime.request(one, "status") for one in range(runtime.partitions)}


def _that_exist(runtime: Runtime, wanted: dict[int, int]) -> dict[int, int]:
    heads = _heads(runtime)
    for partition, sequence in wanted.items():
        if sequence > heads[partition]:
            check_not_behind(runtime, partition, sequence, heads[partition])
            raise InvalidRequest(
                f"position {sequence} is beyond the end: partition {partition} has"
                f" {heads[partition]} outcomes",
                field="position",
                value=sequence,
                advice="Give a position that exists",
            )
    return wanted


def _at_time(runtime: Runtime, folds: Folds, moment: datetime, deadline: float) -> dict[int, int]:
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    time_ms = milliseconds_of(aware)
    found, now_ms = {}, time.time_ns() // 1_000_000
    for partition, status in _statuses(runtime).items():
        folds.at(runtime, partition, int(status["sequence"]), deadline)
        found[partition] = folds.at_time(partition, time_ms)
        # This machine's clock may be behind the leader's, and both behind the log's time.
        now_ms = max(now_ms, int(status.get("clock_ms", 0)), folds.newest_ms(partition))
    if time_ms > now_ms:
        raise of_the_future(aware.isoformat(), "position")
    if not any(found.values()):
        raise InvalidRequest(
            f"the log had no commits at {aware.isoformat()}",
            field="position",
            value=aware.isoformat(),
            advice="Give a later time",
        )
    return found


def milliseconds_of(moment: datetime) -> int:
    """Return a time as milliseconds since 1970; without a zone it is UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    # Not by `timestamp()`, a float: some of its milliseconds are one less. For such a reason
    # pylance's `versions()` shows every third version a microsecond early. The last microsecond of
    # a second is left alone: 23:59:59.999999 is how one writes the end of a day.
    early = timedelta(microseconds=1 if aware.microsecond < 999_999 else 0)
    return (aware - _EPOCH + early) // timedelta(milliseconds=1)


def sequences_text(found: Mapping[int, int]) -> str:
    """Return sequences by partition as text, with commas between."""
    return ",".join(str(found[partition]) for partition in sorted(found))


def text_sequences(text: str) -> dict[int, int] | None:
    """Return the sequences by partition that a text lists; None: it doesn't."""
    if not _SEQUENCES.fullmatch(text):
        return None
    return dict(enumerate(int(one) for one in text.split(",")))


def tags_of(runtime: Runtime) -> dict[str, dict[int, int]]:
    """Return the log's tags by name, each with its sequences by partition."""
    return {
        key.removeprefix(TAG): found
        for key, value in sorted(log_properties(runtime).items())
        if key.startswith(TAG) and (found := text_sequences(value)) is not None
    }


class NamesPositions(Host):
    """Adds to `CommitLog` positions by name, and tags that name them."""

    _folds: Folds | None = None

    def position(self, when: When = None, *, timeout: float = TIMEOUT_SECONDS) -> dict[int, int]:
        """Return the sequence in each partition at a position, however it is named.

        `when` is a sequence (of a log with one partition), sequences by partition or as text
        separated by commas, a `datetime`, a time as text (RFC 3339, or milliseconds since 1970 as
        `1769860800000ms`), a tag, or an event's token; None and "now" mean the current end of the
        log. A time includes everything that was committed up to it.

        Raises:
            InvalidRequest: it names no position, or one in the future; or
                there is no such tag, or nothing was committed by that time.
        """
        self._folds = self._folds or Folds()
        return positions_of(self.runtime(), self._folds, when, time.monotonic() + timeout)

    def tag(self, name: str, position: When = None, *, timeout: float = TIMEOUT_SECONDS) -> Outcome:
        """Name a position of the log, by a record; using the same name again moves the tag.

        A tag keeps no versions and no files; use `hold` for that.
        """
        if not _TAG.fullmatch(name) or name == NOW:
            raise InvalidRequest(
                f"{name!r} is not a valid tag name",
                field="name",
                value=name,
                advice="Begin with a letter; use at most 64 letters, digits, '.', '_' and '-'",
            )
        found = self.position(position, timeout=timeout)
        tag = TAG + name, sequences_text(found)
        return commit(self, [AlterProperties((), True, upserts=(tag,))], timeout, wait="committed")

    def tags(self) -> dict[str, dict[int, int]]:
        """Return the log's tags by name, each with its sequences by partition."""
        return tags_of(self.runtime())

    def untag(self, name: str, *, timeout: float = TIMEOUT_SECONDS) -> Outcome:
        """Remove a tag of the log; raise InvalidRequest if there is none."""
        if name not in self.tags():
            raise InvalidRequest(f"the log has no tag {name!r}", field="name", value=name)
        operation = AlterProperties((), True, removals=(TAG + name,))
        return commit(self, [operation], timeout, wait="committed")
