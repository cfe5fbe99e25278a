"""How many transactions a second each principal may have decided: one bucket for each.

A bucket holds what its principal may do at once and fills at the principal's rate. What is decided
is taken out, afterwards, so a bucket can be in debt: then its principal is asked to send nothing
until the debt is paid, which makes the rate exact over time however many processes, sessions and
servers send in that name. A new term begins with full buckets.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from commitlog.model.records import Transaction
from consumers.partition.files.events import Event
from consumers.runtime.config import ConfigurationError

EVERYBODY_ELSE = "*"
BURST_SECONDS = 2.0
"""What a principal may have decided at once, in seconds of its rate."""
PAUSE_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Pause:
    """What a principal over its quota is told."""

    message: str
    seconds: float


class Quotas:
    """The buckets of one partition's leader. Owned by the loop."""

    def __init__(
        self, rates: Mapping[str, float], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Take transactions per second by principal; `*` is each one that isn't named."""
        self._rates = dict(rates)
        self._clock = clock
        self._decided: Counter[str] = Counter()
        self._debts: dict[str, float] = {}
        """By principal, what is missing in the bucket; who isn't here has a full one."""
        self._paid_at = clock()

    @classmethod
    def parse(cls, text: str) -> Quotas | None:
        """Read `NAME=RATE,...`; None if there is nothing in it, ConfigurationError if it is wrong.

        A name may have `=` in it, and no comma.
        """
        rates: dict[str, float] = {}
        for part in filter(None, map(str.strip, text.split(","))):
            name, equals, rate = part.rpartition("=")
            try:
                rates[name.strip()] = float(rate)
            except ValueError:
                equals = ""
            if not equals or not 0 < rates.get(name.strip(), 0) < float("inf"):
                raise ConfigurationError(
                    f"quotas: {part!r} is not a quota; write NAME=RATE,..., for example "
                    "etl=200,*=1000: transactions per second, above 0; * is every "
                    "principal that is not named"
                )
        return cls(rates) if rates else None

    def begin(self, told: Callable[[list[Event]], None]) -> Callable[[list[Event]], None]:
        """Fill all buckets; return what counts events before it tells of them."""
        self._decided.clear()
        self._debts.clear()
        self._paid_at = self._clock()

        def counted(events: list[Event]) -> None:
            self.take(events)
            told(events)

        return counted

    def take(self, events: Iterable[Event]) -> None:
        """Count what was decided."""
        records = (event.submitted.record for event in events)
        names = [record.principal for record in records if isinstance(record, Transaction)]
        self._decided.update(names)

    def pauses(self) -> dict[str, Pause]:
        """Return who is over its quota by now."""
        now = self._clock()
        decided, self._decided = self._decided, Counter()
        seconds, self._paid_at = now - self._paid_at, now
        debts = {}
        for name in self._debts.keys() | decided.keys():
            rate = self._rate(name)
            if rate is None:
                continue
            debt = max(0.0, self._debts.get(name, 0.0) - rate * seconds) + decided[name]
            if debt > 0:
                debts[name] = min(debt, rate * (BURST_SECONDS + PAUSE_SECONDS_MAX))
        self._debts = debts
        pauses = {}
        for name, debt in debts.items():
            rate = self._rate(name) or 0.0
            if debt > rate * BURST_SECONDS:
                who = f"principal {name!r}" if name else "writers without a principal"
                message = f"{who} exceeded its quota of {rate:g} transactions per second"
                pauses[name] = Pause(message, debt / rate - BURST_SECONDS)
        return pauses

    def _rate(self, name: str) -> float | None:
        return self._rates.get(name, self._rates.get(EVERYBODY_ELSE))
