"""A version index built from the log while it is walked, and compared with the published one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from commitlog.core.log.replica import Decided, Replica
from commitlog.errors import CommitLogError, Unavailable
from commitlog.model.records import LeaderStarted
from consumers.tools.verify.findings import Problem, ProblemKind
from consumers.views.version_index import IndexPosition, Term, VersionIndex, comparison
from consumers.views.version_index.contents import Recordings

BATCH_OUTCOMES = 5_000


class RebuiltIndex:
    """One partition on its way into an index of its own."""

    def __init__(
        self,
        root: Path,
        partition: int,
        sequence: int,
        recordings: Recordings,
        identity: Mapping[str, str] | None = None,
    ) -> None:
        """Continue at `root`, where an index must hold all outcomes up to `sequence`.

        `recordings` reads what an outcome recorded outside itself. Raises Unavailable if it doesn't
        hold them, WrongLog if it is another log's than `identity` says.
        """
        self.root = root
        self._partition, self._recordings = partition, recordings
        self._pending: list[Decided] = []
        self._terms: list[Term] = []
        self.rows_compared = 0
        self._index = VersionIndex(root)
        try:
            if self._index.position(partition).sequence < sequence:
                raise Unavailable(f"the index at {root} ends before outcome {sequence}")
            if identity is not None:
                self._index.bind(identity)
        except CommitLogError:
            self._index.close()
            raise

    @classmethod
    def anew(cls, root: Path, partition: int, recordings: Recordings) -> RebuiltIndex:
        """Begin with an empty one."""
        shutil.rmtree(root, ignore_errors=True)
        return cls(root, partition, 0, recordings)

    def take(
        self, batch: Sequence[Decided], terms: Sequence[tuple[LeaderStarted, int]], replica: Replica
    ) -> None:
        """Take decided transactions and terms; `replica` stands right after them."""
        self._pending.extend(batch)
        self._terms.extend(Term(leader, offset) for leader, offset in terms)
        if len(self._pending) >= BATCH_OUTCOMES:
            self.flush(replica)

    def flush(self, replica: Replica) -> None:
        """Write what was taken; what a run before this one wrote already is left out."""
        before = self._index.position(self._partition)
        pending = [d for d in self._pending if d.outcome.sequence > before.sequence]
        terms = [term for term in self._terms if term.leader.epoch > before.epoch]
        self._pending, self._terms = [], []
        if not pending and not terms:
            return
        last = pending[-1] if pending else None
        first, beyond = replica.resume_point()
        self._index.apply(
            pending,
            IndexPosition(
                partition=self._partition,
                sequence=pending[-1].outcome.sequence if pending else before.sequence,
                outcomes_offset=replica.outcomes_position,
                transactions_offset=first,
                decided_beyond=tuple(beyond),
                last_outcome_offset=last.answered_offset if last else before.last_outcome_offset,
                hash=last.outcome.hash if last else before.hash,
                epoch=max([before.epoch, *(term.leader.epoch for term in terms)]),
                end_offset=replica.outcomes_position,
                changed_at_ms=last.outcome.time_ms if last else before.changed_at_ms,
            ),
            recordings=self._recordings,
            terms=terms,
        )

    def publish(self, replica: Replica) -> None:
        """Write what was taken and show it."""
        self.flush(replica)
        self._index.settle()
        self._index.publish()

    def compare(self, published: Path, replica: Replica) -> Iterator[Problem]:
        """Compare with the index that a root publishes, as far as both go."""
        self.publish(replica)
        try:
            for one in comparison.compare(published, self.root, self._partition):
                self.rows_compared += one.rows
                if one.first_difference is not None:
                    text = (
                        f"{one.relation} of the version index of {published} has other rows than "
                        f"the log makes, first at outcome {one.first_difference}; stop `commitlog "
                        "index`, delete the index, and it is built again"
                    )
                    yield Problem(ProblemKind.INDEX, text, one.first_difference)
        except Unavailable as error:
            yield Problem(ProblemKind.INDEX, str(error))

    def remove(self) -> None:
        """Remove its files, which nobody continues with; it is still to be closed."""
        shutil.rmtree(self.root, ignore_errors=True)

    def close(self) -> None:
        """Close the index; what is pending is not written."""
        self._index.close()
