"""Every bound of the system, with its unit and its reason."""

from __future__ import annotations

from dataclasses import dataclass

RECORD_BYTES_MAX = 16 * 1024 * 1024
"""A transaction or outcome record; topics and clients are set so."""

GRACE_DAYS = 7.0
"""How long unneeded files stay. Ids of transactions are remembered as long, so that no late
commit names a file that was removed."""

RECORD_OVERHEAD_BYTES = 64 * 1024
"""What Kafka adds to a record (batch header, key, headers) before it compares with its limit."""

OUTCOME_INLINE_BYTES_MAX = 256 * 1024
"""A recorded manifest delta above this goes to a content-addressed object, not into the outcome."""

OUTCOME_INLINE_SUM_MAX = 4 * 1024 * 1024
"""The recorded deltas in one outcome together; the rest are objects, however small they are."""

OUTCOME_HEAD_BYTES_MAX = 32 * 1024
"""What surrounds a decision in its record: the leader's address and the chain."""

OPERATIONS_PER_TRANSACTION_MAX = 1_000
"""A record's operations; multi-table commits of a hundred tables fit ten times."""

INT64_MAX = 2**63 - 1
"""The most that a BIGINT of the version index holds; clients may name more rows and bytes."""

TIME_MS_MAX = 253_402_300_799_999
"""The end of the year 9999, in ms since 1970: the last time that calendars show."""


def writers_time_us(time_ms: int) -> int | None:
    """Return what a writer's clock said, in microseconds; None of what no calendar shows."""
    return time_ms * 1000 if 0 < time_ms <= TIME_MS_MAX else None


DIGITS_MAX = 4_300
"""Python reads no number of more digits, and writes none: no record with one was ever decided."""

ARGUMENT_CHARACTERS_MAX = 512
"""A text in a reason; a longer one is cut to `CUT_CHARACTERS`, with its length and digest."""

CUT_CHARACTERS = 120
"""What is left of a text that is cut, and the most of one that is an item of a list."""

ARGUMENT_ITEMS_MAX = 20
"""Items of a list in a reason; of a longer one, its length is kept."""

FAILED_REQUIREMENTS_MAX = 100
"""Requirements of Iceberg in an outcome, of those that didn't hold."""


LANCE_RELEASE_AT_FIRST = "14.0.2"
"""The release of Lance that manifests name as their writer until a log's rules name another."""

LANCE_RELEASE_LENGTH_MAX = 64
"""The name of a release."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a ProtocolVersion record puts in force: the numbers that decisions depend on."""

    protocol: int = 1
    id_horizon_ms: int = 7 * 24 * 3600 * 1000
    """How long, in log time, an id is remembered; older ones are refused as too old to know."""
    history_versions: int = 100_000
    """How many versions back a read version may be; older is `retryable`."""
    operations_max: int = OPERATIONS_PER_TRANSACTION_MAX
    lance_releases: tuple[tuple[int, str], ...] = ()
    """Releases of Lance that were put in force, each by the outcome of this sequence."""

    @property
    def lance_release(self) -> str:
        """The release of Lance that manifests name as their writer."""
        return self.lance_releases[-1][1] if self.lance_releases else LANCE_RELEASE_AT_FIRST

    def lance_release_at(self, sequence: int) -> str:
        """Return the release by which the outcome of a sequence was decided."""
        before = [release for since, release in self.lance_releases if since < sequence]
        return before[-1] if before else LANCE_RELEASE_AT_FIRST


PROTOCOL_SUPPORTED = 10
"""The newest ProtocolVersion that this program decides by, and what new logs begin with."""

UPDATES_BUILT_HERE_SINCE = 2
"""The protocol under which an Update that moves rows is built without pylance: an older program
that follows the log would look for pylance's build in its outcome."""

REWRITES_BUILT_HERE_SINCE = 6
"""The protocol under which a Rewrite is built without pylance, which opened the table for it."""

TABLES_IN_CHUNKS_SINCE = 6
"""The protocol under which the state's hash is taken over chunks of tables, so that a change costs
its own size."""

NESTING_SINCE = 6
"""The protocol under which a schema has `NESTING_MAX` levels at most."""

NESTING_MAX = 63
"""Levels of a schema, lists of fixed size among them: Arrow hands no more over from Lance to
Python, and Lance's native code ends its process at thousands."""

SHARED_FILES_SINCE = 10
"""The protocol under which an Overwrite or a Restore that keeps files may give an id to a field of
another type, if no file that stays has a column of that id. Before, it might do so to none."""

HEADERS_BOUNDED_SINCE = 10
"""The protocol under which `HEADERS_BYTES_MAX` bounds what a record's operations make."""

HEADERS_BYTES_MAX = 256 * 1024 * 1024
"""The schemas, config and base paths of all versions that one record makes. Each version has all of
them, so that a thousand changes of a table with 16 MB of config would take 16 GB of memory. The
manifests that it registers count too: it may register one file, and end its table, many times."""

MANIFESTS_BYTES_MAX = 256 * 1024 * 1024
"""The manifests that a record of several operations names, together: the leader holds all of them.
Since `HEADERS_BOUNDED_SINCE`, too."""

READ_BYTES_MAX = 1024 * 1024 * 1024
"""No larger file is read whole, such as a manifest or a deletion file that a record names: a few
kilobytes of a disk can seem to be terabytes."""

BASES_KEPT_SINCE = 10
"""The protocol under which no version is without a base path of files that stay, or has another
place under its id, and a version may bring files at a base that it brings. Before, only the
fragments that changed were looked at, and their deletions only at bases that the head had."""

BLOBS_RENEWED_SINCE = 10
"""The protocol under which a version may make a column of blobs one of the second kind, as Lance
does when the first file of format 2.2 comes, if no file that stays has a column of it."""

IDS_PACKED_SINCE = 10
"""The protocol under which a checkpoint's ids are compressed on the disk: older programs couldn't
read them, and refuse the log anyway. It changes no hash of the state."""

NAME_PARTS_SINCE = 10
"""The protocol under which a new name has `NAME_PARTS_MAX` parts at most."""

NAME_PARTS_MAX = 100
"""Parts of the name of a new table or namespace. Each part but the last is a namespace that the
state names in full, so that a name of n parts is n * n / 2 parts of it. Nessie takes 20."""

UNTRAINED_INDICES_SINCE = 6
"""The protocol under which a vector index may cover no fragment and have no file, as Lance makes it
of too few rows to learn it from."""

LAST_VERSIONS_SINCE = 7
"""The protocol under which a table that ended comes back at its newest version or a newer one: from
an older one it would give the same numbers to other versions."""

FIELD_IDS_SINCE = 7
"""The protocol under which files are refused if a column of theirs was dropped since the version
that was read, and a newer column has its id: Lance would read the one as the other."""

PLACES_SORTED_SINCE = 7
"""The protocol under which a location that contains several tables is refused for the first of them
in sorted order. Before, it was the one that was made first, which a checkpoint doesn't tell: a
leader that was restarted could give another reason than one that wasn't."""

OLD_FRAGMENTS_KNOWN_SINCE = 7
"""The protocol under which a Rewrite is carried only over the removal of fragments that were there.
Before, a fragment that never was counted as removed."""

INCARNATION_OF_ONE_SINCE = 6
"""The protocol under which no two tables have one incarnation: checkpoints keep tables by it."""

INCARNATIONS_SINCE = 6
"""The protocol under which a record that deletes versions may say of which incarnation."""

BRANCHES_SINCE = 2
"""The protocol under which a Clone may make a branch of a table: older programs refused it."""

OVERLAYS_BY_ROW_SINCE = 3
"""The protocol under which overlays and moved rows are compared row by row, not by fragment."""

ICEBERG_LOOKS_TOGETHER_SINCE = 4
"""The protocol under which all new Iceberg tables of a record are looked at in one round."""

REWRITES_CARRIED_SINCE = 4
"""The protocol under which a Rewrite that keeps the order of rows is carried over deletions."""

FRAGMENT_REUSE_SINCE = 3
"""The protocol under which a new index goes with a compaction that deferred its indices."""

BOUNDED_CLOCK_SINCE = 4
"""The protocol under which one append time moves the log's clock by no more than a step, and an id
is too old only if one from its time may have been forgotten."""

CONFIRMED_CLOCK_SINCE = 9
"""The protocol under which ids are forgotten by a clock that a broker's can't put ahead: it makes a
step only toward what the record's writer confirms, and else goes as the broker's clock goes."""

CLOCK_STEP_MS = 3600 * 1000
"""How far an append time moves the log's clock beyond what the writer's clock confirms. Brokers'
and writers' clocks differ by less, or somebody should know."""

REMOVALS_CONFLICT_SINCE = 4
"""The protocol under which a field or fragment that somebody removed since an operation read the
table makes it lose against that version; before, it was called wrong as it stands."""

NAMES_CHECKED_SINCE = 4
"""The protocol under which names, schemas and indices that Lance can't open are refused."""

COLUMNS_AWAITED_SINCE = 5
"""The protocol under which a Merge may be completed by its writer when its turn has come, and a
Project that forbids nulls checked by its writer."""

COLUMN_BYTES_MAX = 4 * 1024
"""A column's name. Lance would take a megabyte, in each error, plan and listing."""

KEY_BYTES_MAX = 4 * 1024
"""A key of metadata, config or properties, and the name of a tag or an index."""

LOCATION_PART_BYTES_MAX = 255
"""What file systems take for one name."""

LOCATION_BYTES_MAX = 2_000
"""A location: Linux takes 4,096 for a path, and a table's files are below."""

BASES_CHECKED_SINCE = 4
"""The protocol under which a new base path is refused unless it is the location of a table of the
log, or the leader's policy allows it."""

HOLDS_SINCE = 4
"""The protocol under which versions that a property of their table holds aren't deleted."""

LANCE_RELEASE_SINCE = 4
"""The protocol under which a ProtocolVersion may put another release of Lance in force; earlier
programs don't know the schema of such a record and refuse it."""

INLINE_SUM_SINCE = 4
"""The protocol under which `OUTCOME_INLINE_SUM_MAX` bounds the deltas in an outcome."""

REASONS_SINCE = 4
"""The protocol under which an outcome holds a reason with typed arguments, and no words."""

TRANSACTION_FILES_SINCE = 4
"""The protocol under which a record may have its versions' transaction files named by the version:
a client that takes for lost what it staged removes the file that it wrote itself."""

ROWS_SINCE = 4
"""The protocol under which a record may write rows; earlier programs don't know its schema."""

ROWS_EXPIRED_SINCE = 5
"""The protocol under which a table's property can't say that rows expired which aren't applied, nor
take back that some did."""

ROWS_COLUMNS_SINCE = 5
"""The protocol under which accepted rows aren't applied once a column of theirs was dropped, though
a new column may have its field id."""

ROWS_INLINE_BYTES_MAX = 1024 * 1024
"""Rows in a record; more are a file that the writer puts, since records are read by everybody."""

ROWS_UNPACKED_BYTES_MAX = 64 * 1024 * 1024
"""Rows of one write that were compressed: a few kilobytes could come to gigabytes."""

ROWS_PENDING_MAX = 100_000
"""Transactions whose rows wait for a row writer, in one table; each is a line of the state."""

ROWS_PENDING_BYTES_MAX = 1024 * 1024 * 1024
"""Rows that wait for a row writer, in one table: a fresh read has to hold them in memory."""

ROWS_APPLICATIONS_KEPT = 4_096
"""Ranges of applied writes that are remembered with their version, for late requests."""

ROWS_ANSWERS_KEPT = 20_000
"""Applied writes of a table whose counts are in memory; those of others are read from the log."""

JSON_VALUES_MAX = 500_000
"""Values of one body or record, names of fields left out: a thousand operations have twenty
thousand, and a hundred query vectors of 1,536 dimensions have 153,600."""

ICEBERG_BOUNDS_SINCE = 4
"""The protocol under which the log itself bounds the updates and values of Iceberg changes, so that
one limit holds by every way in."""

ICEBERG_UPDATES_MAX = 1_000
"""Updates of one Iceberg table in a record, as the transaction document has it."""

ICEBERG_REFERENCES_SINCE = 4
"""The protocol under which a record may name a metadata file by its digest, and not hold it."""

ICEBERG_METADATA_BYTES_MAX = 256 * 1024 * 1024
"""A metadata file, decompressed: one of a hundred thousand snapshots has less."""

ICEBERG_METADATA_VALUES_MAX = 5_000_000
"""Values of a metadata file: 200,000 snapshots; what is parsed takes 350 MB at most."""

ICEBERG_REBASE_SINCE = 4
"""The protocol under which Iceberg snapshots are rebased over those that their client missed."""

ICEBERG_PLACES_SINCE = 4
"""The protocol under which an Iceberg table shares neither its place nor its uuid with another."""

ICEBERG_COPIES_ELSEWHERE_SINCE = 6
"""The protocol under which it may share its uuid with one at another place, as a copy does."""

ICEBERG_READ_ONLY_SINCE = 4
"""The protocol under which metadata may be registered under a second name, read only."""

ICEBERG_VIEWS_SINCE = 4
"""The protocol under which a record may make and change Iceberg views."""

ICEBERG_POSITION_SINCE = 4
"""The protocol under which an Iceberg table's metadata says by which position it was committed."""

LOG_TAGS_SINCE = 4
"""The protocol under which the log itself, the root of its namespaces, has properties: its tags."""

ICEBERG_NAMED_PLACES_SINCE = 5
"""The protocol under which snapshots, statistics and properties of an Iceberg table name no place
outside of the tables root unless the leader's policy allows it."""

ICEBERG_NUMBERS_SINCE = 5
"""The protocol under which an Iceberg snapshot that begins a branch, or is only staged, gets new
numbers where others took them; under which no snapshot of a table with row ids is put over one
without, and none gets a time before the branch's own history."""

ICEBERG_FIRST_NUMBER_SINCE = 6
"""The protocol under which the first snapshot of a table may leave out its sequence number, though
its list can't be read: nobody took a number from it."""

ICEBERG_LAYOUTS_SINCE = 8
"""The protocol under which all partition specs fit the current schema, and defaults their types, as
Iceberg's Java library asks of a table that it opens. Before, the default spec alone had to fit."""

ICEBERG_COPIES_SINCE = 5
"""The protocol under which a metadata file that a log wrote has one name, even before the first
commit since it was registered: after an undrop for example."""

ICEBERG_MERGES_SINCE = 5
"""The protocol under which an append that may come of a MERGE isn't put over rows that the MERGE
didn't read."""

NAMED_ROOTS_SINCE = 5
"""The protocol under which a property of the log binds a prefix of places to a named root."""

ICEBERG_OVERTAKEN_MAX = 10_000
"""How many snapshots a rebase looks back for the one that the client saw."""

ICEBERG_LIST_BYTES_MAX = 16 * 1024 * 1024
"""A manifest list that a rebase reads or writes: about 60,000 manifests."""
