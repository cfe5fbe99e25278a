"""The archive under simulation: the product's own writer on a real folder, killed at its files.

It copies what is decided, gives it up in the topic, and Kafka's cleaner takes that away, while
nodes start from nothing, look into the past and read behind. At the end the archive and the topics
together hold every record that the log ever had, to the byte.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from commitlog.adapters.memory_cluster import Stored
from commitlog.core.log.chain import Chain
from commitlog.core.log.replica import Replica
from commitlog.errors import CommitLogError, CorruptLog, Unavailable
from commitlog.ports import RawRecord
from consumers.partition.files.folders import DiskFolder
from consumers.tools.archive.files import check_segment, read_file, write_file
from consumers.tools.archive.proof import Archive, ArchivedFile
from consumers.tools.archive.writer import ArchiveRun, archive, give_up
from consumers.tools.verify.retention import GivenUp
from consumers.tools.verify.walk import Walk
from tests.simulation.log import SimulatedLog
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

ARCHIVED_EVERY = 33
"""One seed in so many has an archive."""
RUNS_PER_SECOND = 0.7
GIVEN_UP = 0.6
CLEANED = 0.7
KILLED = 0.05
"""How often the archivist dies at a file, per point."""


def has_archive(seed: int) -> bool:
    """Say whether a seed's log is archived."""
    return seed % ARCHIVED_EVERY == 0


class Archivist:
    """A process that archives now and then, again after each death."""

    def __init__(self, world: World, folder: Path) -> None:
        """Archive into a folder."""
        self._world, self._folder = world, folder
        # Its own chance: what it does must not say what all others do.
        self._random = random.Random(f"archive {world.seed}")
        self._boots = 0
        self._next_at = 0.0
        self._kept: dict[str, dict[int, Stored]] = {topic: {} for topic in world.topics}
        """Every record that a topic had before it was cleaned."""
        self._clean = world.cluster.compact
        world.cluster.compact = self._compact  # type: ignore[method-assign]
        self.boot()

    def boot(self) -> None:
        """Start a process."""
        world = self._world
        self._boots += 1
        self.process = Process(f"archive{self._boots}")
        self._next_at = world.scheduler.now + self._random.expovariate(RUNS_PER_SECOND)
        world.scheduler.add(self.process, "archive", self._step)

    def finish(self) -> None:
        """Archive and give up all that can be, when nothing goes wrong any more."""
        world, expect = self._world, self._world.auditor.expect
        log = self._log(world.auditor.process)
        # Behind the last outcome something may stand that only a later one will tell to be void.
        through = world.auditor.machine.sequence - 1
        result = archive(log, 0, self._folder, through=through)
        expect(result.through >= through, f"I18 the archive ends at {result.through} of {through}")
        give_up(log, 0, self._folder, result)
        world.cluster.compact(world.topics[0])

    def check(self) -> None:
        """I18: archive and topic together hold what the log ever had, and what it says of it."""
        expect, kept = self._world.auditor.expect, self._archive()
        self._note()
        archived: dict[int, RawRecord] = {}
        outcomes: list[RawRecord] = []
        for segment in kept.segments:
            try:
                check_segment(kept.folder, segment)
            except CorruptLog as error:
                expect(False, f"I18 {error}")
            found = list(read_file(kept.folder, segment.transactions))
            archived |= {raw.offset: raw for raw in found}
            outcomes += read_file(kept.folder, segment.outcomes)
        end = kept.end.outcomes_offset
        self._expect_kept(1, outcomes, [o for o in self._kept[self._world.topics[1]] if o < end])
        self._expect_kept(0, list(archived.values()), [])
        there = {record.offset for record in self._records(0)}
        gone = {o for o, r in self._kept[self._world.topics[0]].items() if r.value is not None}
        lost = gone - there - archived.keys()
        expect(not lost, f"I18 the transactions at {sorted(lost)[:5]} are nowhere")
        self._check_said(kept)

    def files(self) -> list[Path]:
        """Return the files of transactions that the topic gave up."""
        kept = self._archive()
        return [kept.folder / s.transactions.name for s in kept.segments if s.given_up]

    def check_files(self) -> None:
        """Raise CorruptLog if a file isn't the one that was archived."""
        kept = self._archive()
        for segment in kept.segments:
            check_segment(kept.folder, segment)

    def _archive(self) -> Archive:
        return Archive.open(self._folder, self._world.log.identity(), self._world.genesis)

    def _expect_kept(self, topic: int, found: list[RawRecord], wanted: list[int]) -> None:
        """Expect archived records to be those of a topic, all `wanted` ones among them."""
        expect, name = self._world.auditor.expect, self._world.topics[topic]
        was = self._kept[name]
        for raw in found:
            had = was.get(raw.offset)
            same = had is not None and (had.time_ms, had.key, had.value) == tuple(raw)[1:]
            expect(same, f"I18 the archive has another record at {raw.offset} than {name} had")
        offsets = [raw.offset for raw in found]
        expect(len(set(offsets)) == len(offsets), f"I18 a record of {name} is archived twice")
        missing = set(wanted) - set(offsets)
        expect(not missing, f"I18 the archive lacks {sorted(missing)[:5]} of {name}")

    def _check_said(self, kept: Archive) -> None:
        """The whole log can be walked, and what it says of the archive is so."""
        world = self._world
        replica = Replica(Chain())
        walk = Walk(world.with_archive(self._log(world.auditor.process)), 0, replica)
        said = GivenUp()
        for _ in walk.batches():
            said.take(walk.retained)
        walk.close()
        world.auditor.expect(
            walk.sequence == world.auditor.machine.sequence, f"I18 no way on: {walk.problem}"
        )
        for problem in said.compare(kept):
            world.auditor.expect(False, f"I18 {problem.message}")

    def _step(self) -> bool:
        world = self._world
        if world.scheduler.now < self._next_at or world.faults.is_over:
            return False
        self._next_at = world.scheduler.now + self._random.expovariate(RUNS_PER_SECOND)
        log = self._log(self.process)
        with (
            mock.patch("consumers.tools.archive.writer.write_file", self._write_file),
            mock.patch("consumers.tools.archive.proof.DiskFolder", self._disk_folder),
        ):
            try:
                result = archive(log, 0, self._folder)
                world.count("segments archived", result.segments)
                if self._random.random() < GIVEN_UP:
                    self._give_up(log, result)
            except (Unavailable, CorruptLog) as error:
                # Until a later outcome tells, what is void may also be all that is left.
                is_void = not isinstance(error, CorruptLog) or "cannot be archived" in str(error)
                world.auditor.expect(is_void, f"I18 the archive ends: {error}")
                world.count("answer: nothing archived for now")
            except CommitLogError as error:
                world.auditor.expect(False, f"I18 the archive ends: {error!r}")
        return True

    def _give_up(self, log: Any, result: ArchiveRun) -> None:
        world = self._world
        give_up(log, 0, self._folder, result)
        world.count("transaction given up to the archive", result.given_up)
        if self._random.random() < CLEANED:
            world.cluster.compact(world.topics[0])

    def _log(self, process: Process) -> Any:
        world = self._world
        return SimulatedLog(
            world.log, world.auditor.decoders, world.scheduler, process, world.writer_of(process)
        )

    def _write_file(self, folder: Path, name: str, records: Any) -> ArchivedFile:
        self._point(f"archive {name}")
        written = write_file(folder, name, records)
        self._point(f"archived {name}")
        return written

    def _disk_folder(self, path: Path) -> DiskFolder:
        point = self._point

        class Folder(DiskFolder):
            def replace(self, name: str, data: bytes) -> None:
                point(f"prove {name}")
                super().replace(name, data)
                point(f"proved {name}")

        return Folder(path)

    def _point(self, what: str) -> None:
        world, process = self._world, self.process
        if self._random.random() < KILLED and process.is_alive and not world.faults.is_over:
            world.count("archivist killed at a file")
            world.scheduler.kill(process, what)
        world.scheduler.point(process, what)

    def _compact(self, topic: str) -> None:
        self._note()
        self._clean(topic)

    def _note(self) -> None:
        for number, topic in enumerate(self._world.topics):
            self._kept[topic] |= {record.offset: record for record in self._records(number)}

    def _records(self, topic: int) -> list[Stored]:
        return self._world.cluster.partition(self._world.topics[topic], 0).records
