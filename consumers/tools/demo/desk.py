"""One desk: a writer process that does its steps in order, each exactly once.

    python -m consumers.tools.demo.desk --desk 3 --folder DIR --seed UUID --bootstrap-servers H:P

Each step is one transaction under (application id, sequence) = (this desk of this run, step), so a
step that is asked for again after a crash answers the first commit, whatever files the second
attempt wrote. Acknowledged steps go to a journal; after a crash the desk continues behind it.

The desks meet before steps that touch the same fragments, so that all read one version and then
commit over each other: that is what makes the rebases and refusals which the demo is about.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from commitlog.errors import OutcomeUnknown, RetryableConflict, Unavailable
from commitlog.model.records import Application, Outcome
from consumers.tools.demo.children import end_with_parent
from consumers.tools.demo.desks import (
    AIRPORTS,
    CORRECTION,
    DESK_COUNT,
    WEATHER,
    WEATHER_KEY,
    DeskStep,
    StepKind,
    plan,
    read_observations,
    weather_table,
)

if TYPE_CHECKING:
    from commitlog import CommitLog

STEP_SECONDS = 120.0
"""How long a step is tried: longer than a leader, a broker or a machine takes to come back."""
MEETING_SECONDS = 2.0
POLL_SECONDS = 0.005
RETRY_SECONDS = 0.2
READING_SECONDS = 0.03
"""How long a desk looks at the counters before it writes them back."""


@dataclass(frozen=True)
class JournalEntry:
    """A step in the journal: what was acknowledged."""

    step: int
    kind: str
    transaction_id: str
    sequence: int
    versions: dict[str, int]
    seconds: float


class Desk:
    """Does the steps of one desk."""

    def __init__(self, log: CommitLog, *, number: int, folder: Path, seed: str) -> None:
        """Keep the journal and the meetings in `folder`."""
        self.log = log
        self.number = number
        self.folder = folder
        self.seed = seed
        self.journal = folder / f"desk-{number}.jsonl"

    def run(self, steps: list[DeskStep], say: Callable[[JournalEntry], None]) -> None:
        """Do every step that the journal doesn't have."""
        done = read_journal(self.journal)
        assert [entry.step for entry in done] == list(range(len(done))), "a hole in the journal"
        for step in steps[len(done) :]:
            if step.kind in (StepKind.PUBLISH, StepKind.CORRECT, StepKind.DELETE):
                self._meet(step.number)
            started = time.monotonic()
            outcome = self._patiently(step)
            entry = JournalEntry(
                step=step.number,
                kind=step.kind,
                transaction_id=outcome.transaction_id,
                sequence=outcome.sequence,
                versions=outcome.versions(),
                seconds=round(time.monotonic() - started, 4),
            )
            append_entry(self.journal, entry)
            say(entry)

    def _patiently(self, step: DeskStep) -> Outcome:
        """Ask until there is an answer: the step's number makes asking again harmless."""
        deadline = time.monotonic() + STEP_SECONDS
        while True:
            try:
                return self._do(step).raise_for_conflict()
            except (OutcomeUnknown, Unavailable, RetryableConflict):
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_SECONDS)

    def _do(self, step: DeskStep) -> Outcome:
        log, application = self.log, self._application(step)
        if step.kind is StepKind.APPEND:
            return log.append(WEATHER, weather_table(step.rows), application=application)
        if step.kind is StepKind.CORRECT:
            return log.update(WEATHER, CORRECTION, step.where(), application=application)
        if step.kind is StepKind.DELETE:
            return log.delete(WEATHER, step.where(), application=application)
        if step.kind is StepKind.UPSERT:
            rows = weather_table(step.rows)
            return log.merge_insert(WEATHER, rows, on=WEATHER_KEY, application=application)
        return self._publish(step, application)

    def _publish(self, step: DeskStep, application: Application) -> Outcome:
        counters = {"reports": "reports + 1", "observations": f"observations + {len(step.rows)}"}
        with self.log.transact(application=application) as transaction:
            transaction.append(WEATHER, weather_table(step.rows))
            transaction.update(AIRPORTS, counters, f"faa = '{step.station}'")
            time.sleep(READING_SECONDS)
        assert transaction.outcome is not None
        return transaction.outcome

    def _application(self, step: DeskStep) -> Application:
        return Application(application_id(self.seed, self.number), step.number, self.seed)

    def _meet(self, step: int) -> None:
        """Wait until every desk is at this step, but not long: one may be dead or behind."""
        place = self.folder / "meetings" / str(step)
        place.mkdir(parents=True, exist_ok=True)
        (place / str(self.number)).touch()
        deadline = time.monotonic() + MEETING_SECONDS
        while time.monotonic() < deadline and len(os.listdir(place)) < DESK_COUNT:
            time.sleep(POLL_SECONDS)


def application_id(seed: str, desk: int) -> str:
    """Return the name under which a desk of a run commits."""
    return f"demo-{seed}-desk-{desk}"


def read_journal(path: Path) -> list[JournalEntry]:
    """Return the acknowledged steps; a last line that was cut off is none."""
    if not path.exists():
        return []
    *lines, rest = path.read_text().split("\n")
    if rest:
        path.write_text("".join(line + "\n" for line in lines))
    return [JournalEntry(**json.loads(line)) for line in lines]


def append_entry(path: Path, entry: JournalEntry) -> None:
    """Add an acknowledged step."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(entry)) + "\n")


def main() -> None:
    """Run one desk to the end of its steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--desk", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--log", default="commitlog")
    arguments = parser.parse_args()
    end_with_parent()
    from commitlog import CommitLog

    name = f"desk {arguments.desk}"
    log = CommitLog.connect(arguments.bootstrap_servers, log=arguments.log, principal=name)
    desk = Desk(log, number=arguments.desk, folder=arguments.folder, seed=arguments.seed)
    desk.run(plan(arguments.desk, read_observations()), _say)


def _say(entry: JournalEntry) -> None:
    print(json.dumps({"step": entry.step, "kind": entry.kind}), flush=True)


if __name__ == "__main__":
    main()
