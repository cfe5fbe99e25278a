"""What the generic parts ask of an operation of Lance's.

An operation is a class with one instance, listed in `registry`. The defaults here are what most
operations have in common; what is particular to one of them is in its own module. `body` is the
operation's own message, `transaction` the whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from commitlog.core.conflicts.candidate import Candidate
from commitlog.core.conflicts.history import WriteSet
from commitlog.core.conflicts.write_sets import (
    KINDS,
    NOTHING,
    Keys,
    Writes,
    explicit_keys,
    key_aspects,
)
from commitlog.core.draft import Draft, Parsed, View
from commitlog.core.manifest.header import ManifestHeader
from commitlog.core.manifest.manifest_state import ManifestDelta, ManifestState
from commitlog.core.operations.references import References
from commitlog.core.rebase.deletions import NOT_NEEDED, Rebased
from commitlog.core.rebase.late import Late
from commitlog.lancepb.table_pb2 import DataFile, DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.limits import Rules
from commitlog.model.names import NameProblem
from commitlog.model.operations import KeyHashes, LanceCommit
from commitlog.model.records import FragmentImage

Body = TypeVar("Body")

SCHEMA = frozenset({"fields", "schema_metadata"})
CONFIG = frozenset({"config", "table_metadata"})
BASES = frozenset({"base_paths"})
FORMAT = frozenset({"data_format"})
"""Parts of a manifest's header, by the names of its fields."""


class ManifestChange(NamedTuple):
    """What an operation changes in a manifest; None: it stays as it was."""

    removed: tuple[int, ...] = ()
    fragments: tuple[tuple[int, bytes], ...] = ()
    features: int | None = None
    is_mixed: bool = False
    max_fragment_id: int | None = None
    next_row_id: int | None = None
    header: ManifestHeader | None = None
    index_section: bytes | None = None


class Claims(NamedTuple):
    """The fragments that an operation may change, and those that it may remove."""

    changed: frozenset[int] = frozenset()
    removed: frozenset[int] = frozenset()


class LanceOperation(Generic[Body]):
    """One kind of operation."""

    field: ClassVar[str]
    """Its field in `lance.table.Transaction`."""

    makes_table: ClassVar[bool] = False
    """Whether it makes a new table of another one."""
    only_adds: ClassVar[bool] = False
    """Whether all that it changes is that fragments are added."""
    keeps_rows: ClassVar[bool] = False
    """Whether every row reads as before."""
    read_at_head: ClassVar[bool] = False
    """Whether Lance records it as read at the version that it was built on."""
    returns_to_version: ClassVar[bool] = False
    """Whether it makes a version that the log has had before."""
    replaces_fragments: ClassVar[bool] = False
    """Whether it leaves nothing of the fragments that were there."""
    changes_all_fragments: ClassVar[bool] = False
    """Whether it lists every fragment as it is to be."""
    renumbers_fields: ClassVar[bool] = False
    """Whether a field's id may mean another field afterwards."""
    keeps_indices: ClassVar[bool] = False
    """Whether the list of indices stays as it was."""
    reserves_ids: ClassVar[bool] = False
    """Whether it takes ids of fragments for later."""
    header_parts: ClassVar[frozenset[str]] = frozenset()
    """The parts of the header that it may change."""
    built_here_since: ClassVar[int | None] = None
    """The protocol from which on its manifest is built without pylance; None: it never is."""
    is_recorded: ClassVar[bool] = False
    """Whether an outcome has what it made of the manifest, also where it is built here: what became
    of indices can't be told from the operation alone."""
    is_carried: ClassVar[bool] = False
    """Whether pylance's Python has no object for it: an empty UpdateConfig carries it."""

    def __init__(self) -> None:
        self.name = KINDS[self.field]
        """Its name, as records, the grid and the history have it."""
        self.body: Callable[[Transaction], Body] = attrgetter(self.field)
        """Returns the operation's own message."""

    # What is wrong with it as it stands.

    def problem(self, body: Body) -> NameProblem | None:
        """Return what it brings that Lance couldn't open, None if nothing."""
        return None

    def named_fragments(self, body: Body) -> list[int]:
        """Return the ids of fragments that it may name once each."""
        return []

    # What it touches: the write set, and what rules ask of a candidate.

    def writes(self, body: Body, before: ManifestState) -> Writes:
        """Return what it touches on top of `before`, in the words that the history keeps."""
        return NOTHING

    def keys(self, body: Body, explicit: KeyHashes | None) -> Keys | None:
        """Return the keys of the rows that it adds, None if it adds none.

        `explicit` are those that the record names, None if it doesn't say.
        """
        return explicit_keys(explicit) if explicit is not None else None

    def write_set(
        self, body: Body, explicit: KeyHashes | None, before: ManifestState, *, has_keys: bool
    ) -> WriteSet:
        """Return what it touches, keys included.

        `has_keys` says that the history holds an operation of this kind with keys.
        """
        writes, keys = self.writes(body, before), self.keys(body, explicit)
        if keys is None:
            return WriteSet(self.name, *writes)
        aspects = (*writes.aspects, *key_aspects(self.name, keys))
        return WriteSet(self.name, aspects, writes.notes, writes.deletion_files)

    def candidate(self, transaction: Transaction, **known: Any) -> Candidate:
        """Return it as the conflict rules see it; `known` is what else is known of it."""
        return Candidate(self.name, transaction, changed=self.changed_fragments, **known)

    def changed_fragments(self, body: Body) -> Iterable[int]:
        """Return the fragments that it changes or removes."""
        return ()

    def fragments_with_known_rows(self, body: Body, late: Late) -> frozenset[int]:
        """Return the fragments whose changed rows are known or can be derived."""
        return frozenset()

    def keeps_row_order(self, transaction: Transaction, rules: Rules) -> bool:
        """Return True if its writer vouches for the order of its rows."""
        return False

    def awaits_columns(self, transaction: Transaction, rules: Rules) -> bool:
        """Return True if its writer completes it when its turn has come."""
        return False

    def reused_fragments(
        self, draft: Draft, view: View, read_version: int
    ) -> tuple[frozenset[int], ...]:
        """Return replaced fragments that its index still finds, by what replaced them together."""
        return ()

    # The files that it brings.

    def new_fragments(self, body: Body) -> Iterable[DataFragment]:
        """Return the fragments that it adds."""
        return ()

    def images(self, body: Body) -> Sequence[DataFragment]:
        """Return the fragments that it lists as they are to be, with or without new files."""
        return ()

    def brought_files(self, body: Body) -> Iterable[DataFile]:
        """Return the data files that it brings, besides those of `images`."""
        return [file for fragment in self.new_fragments(body) for file in fragment.files]

    def less_rows(self, body: Body) -> Sequence[DataFragment]:
        """Return fragments as they are to be after rows of theirs were deleted."""
        return ()

    # Whether it fits the head, and what has to change for that.

    def check_overlaid_rows(self, late: Late, candidate: Candidate) -> None:
        """Refuse it if overlays and rows that moved meanwhile have rows in common."""

    def rebase(self, late: Late, candidate: Candidate) -> Rebased:
        """Return what it has to change on top of the head; refuse conflicts on rows."""
        return NOT_NEEDED

    def check_references(self, references: References, transaction: Transaction) -> None:
        """Refuse it if it names what the head doesn't have."""

    def put_images(self, body: Body, images: Sequence[FragmentImage]) -> None:
        """Put fragments as rebased in the place of its own."""
        raise AssertionError(f"{self.name} is never rebased")

    # The manifest that follows.

    def build(self, state: ManifestState, transaction: Transaction) -> ManifestChange:
        """Return what it makes of a version; raises `DeltaRefused`, and `NotDirect`."""
        raise AssertionError(f"{self.name} is built by pylance")

    def for_pylance(
        self, draft: Draft, view: View, transaction: Transaction, read_version: int
    ) -> Transaction:
        """Return the transaction that pylance builds on the head."""
        return transaction

    def adjusted(
        self, delta: ManifestDelta, head: ManifestState, transaction: Transaction, rules: Rules
    ) -> ManifestDelta:
        """Return what pylance built, with what it gets wrong put right."""
        return delta

    def as_built(
        self, transaction: Transaction, before: bytes | None, after: bytes | None
    ) -> Transaction:
        """Return it as it shows in the index section that was made of the one before."""
        return transaction

    # What pylance's Python has no words for.

    def leave_unsaid(self, body: Body) -> bool:
        """Take out of it what pylance's Python cannot say; return False if that is nothing."""
        return False

    def schema_metadata(self, body: Body) -> Mapping[str, bytes]:
        """Return the schema's own metadata, where Lance itself doesn't look."""
        return {}

    def complete(self, built: ManifestState, transaction: Transaction) -> None:
        """Put into a manifest what pylance wasn't asked for; raises `DeltaRefused`."""

    # The first version of a table, of an operation that makes one.

    def first_version(
        self, draft: Draft, index: int, operation: LanceCommit, parsed: Parsed, view: View
    ) -> ManifestDelta:
        """Return the first version of a declared table, as a change of nothing; or refuse."""
        raise AssertionError(f"{self.name} makes no table")

    # What a staged manifest may differ in from the head.

    def claims(self, body: Body) -> Claims:
        """Return the fragments that it may change and remove."""
        return Claims()

    def reserved_fragments(self, body: Body) -> Iterable[int]:
        """Return the ids that were reserved for it before (ReserveFragments), and that it uses."""
        return ()
