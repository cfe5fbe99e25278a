"""The relations of the version index: every column with its type and its meaning.

Event relations only grow: a row is written once, with the outcome that caused it, and later moves
from `hot` to a Parquet segment unchanged. `tables`, `positions` and the bookkeeping relations
change in place and stay small.
"""

from __future__ import annotations

from consumers.views.version_index.relation import TABLE_ORDER, about_table, event, state

TRANSACTIONS = event(
    "transactions",
    "Every decided record of the log, refused ones included: one row per outcome.",
    """
status              VARCHAR    committed, retryable, incompatible, rejected or superseded
code                VARCHAR    why it was refused; NULL for a commit
transaction_id      VARCHAR    its id; an id is decided once per attempt and commits at most once
attempt             INTEGER    0, or higher after a refusal
principal           VARCHAR    who submitted it; empty if it didn't say
kind                VARCHAR    transaction, protocol (a change of rules) or malformed
operations          VARCHAR[]  the operations' names, in order
tables              VARCHAR[]  the operations' tables, in order
versions            BIGINT[]   the versions made, in order; NULL where none was made
message             VARCHAR    the reason in words, if refused
answers             BIGINT     for a repeated request: the sequence of the commit it is answered by
submitted_at        TIMESTAMP  the writer's clock, UTC
application_id      VARCHAR    a stream's own name for itself
application_sequence BIGINT    the stream's own number for this transaction
application_run     VARCHAR    what tells two runs of one stream apart
properties          VARCHAR    the transaction's properties as a JSON object; NULL if none
transaction_offset  BIGINT     Kafka offset in the transactions topic
outcome_offset      BIGINT     Kafka offset in the outcomes topic
epoch               INTEGER    the leader's term that decided
node                VARCHAR    the leader's address
payload_hash        BLOB       sha256 of the transaction's content
hash                BLOB       the outcome's hash: head of the chain up to here
""",
    ("partition", "sequence"),
)

OPERATIONS = event(
    "operations",
    "One row per operation of each transaction, refused ones included.",
    """
ordinal             INTEGER    place in the transaction, from 0
table_name          VARCHAR    the table (or namespace), parts joined by $
incarnation         VARCHAR    uuid of this life of the table; NULL if refused without naming one
operation           VARCHAR    Append, Delete, Update, CreateTable, …; Iceberg: append, …
status              VARCHAR    as in transactions; `repeated` where an earlier commit answered
code                VARCHAR    why it was refused
message             VARCHAR    in words: why it was refused, or what rows it wrote
principal           VARCHAR    who submitted it
transaction_id      VARCHAR    its transaction
read_version        BIGINT     the version it was written against; NULL if it names none
version             BIGINT     the version it made; NULL if none
built_on            BIGINT     the version it finally built on
rebased_over        BIGINT     versions committed between its read version and itself
rebased             BOOLEAN    whether its content had to change for that
rows_added          BIGINT     rows it added; a compaction adds none
rows_removed        BIGINT     rows it removed
bytes_added         BIGINT     bytes of data files it added
fragments_added     BIGINT     fragments it added
fragments_updated   BIGINT     fragments it changed
fragments_removed   BIGINT     fragments it removed
first_fragment_id   BIGINT     id of its first new fragment
first_row_id        BIGINT     its first new stable row id
branch              VARCHAR    branch; NULL for main
is_table            BOOLEAN    false for operations on namespaces
name_after          VARCHAR    the table's name after it; NULL if it ended the table
location            VARCHAR    where the table lies, if the operation made or ended it
snapshot_id         BIGINT     an Iceberg table's snapshot after it; NULL for Lance, or if none
metadata_location   VARCHAR    an Iceberg table's metadata file after it
outcome_offset      BIGINT     Kafka offset in the outcomes topic
""",
    TABLE_ORDER,
)

COLLISIONS = event(
    "collisions",
    "Who lost to whom: one row per refused transaction that met a conflict (see view conflicts).",
    """
table_name          VARCHAR    where they met
incarnation         VARCHAR    uuid of that life of the table; NULL if the loser named none
transaction_id      VARCHAR    the loser
principal           VARCHAR    the loser's writer
operation           VARCHAR    the loser's operation
read_version        BIGINT     the version that the loser had read
status              VARCHAR    retryable or incompatible
rule                VARCHAR    the rule that decided
fragments           BIGINT[]   fragments both touched
keys                VARCHAR[]  keys both touched
winner_transaction_id VARCHAR  the winner
winner_version      BIGINT     the version that the winner made
winner_operation    VARCHAR    the winner's operation
advice              VARCHAR    what the loser does next
message             VARCHAR    the reason in words
""",
    ("table_name", "partition", "sequence"),
)

EXPECTATIONS = event(
    "expectations",
    "Preconditions that transactions carried.",
    """
ordinal             INTEGER    place in the transaction, from 0
transaction_id      VARCHAR    its transaction
status              VARCHAR    what became of the transaction
kind                VARCHAR    TableVersionIs, TableAbsent, KeyAbsent or PredicateUnchanged
table_name          VARCHAR    the table it is about
version             BIGINT     the version it names
detail              VARCHAR    the predicate, or the key's hash in hex
""",
    ("partition", "sequence", "ordinal"),
)

PROPERTIES = event(
    "properties",
    "Changes of what tables and namespaces say of themselves: properties, and Lance's config and"
    " metadata.",
    """
ordinal             INTEGER    the operation's place in the transaction
table_name          VARCHAR    the table or namespace
is_table            BOOLEAN    false for a namespace
scope               VARCHAR    properties, config, table_metadata or schema_metadata
transaction_id      VARCHAR    its transaction
key                 VARCHAR    the property; NULL: all that is not set again is removed
value               VARCHAR    its new value; NULL if removed
""",
    TABLE_ORDER,
)

EXPIRIES = about_table(
    "expiries",
    "Versions that records deleted: one row per range, with who did it and when.",
    """
first_version       BIGINT     the first version that was deleted
last_version        BIGINT     the last one
principal           VARCHAR    who deleted them
transaction_id      VARCHAR    its transaction
""",
)

APPLIED_ROWS = about_table(
    "applied_rows",
    "Which small writes were applied when: one row per range of positions.",
    """
after               BIGINT     the position through which writes were applied before
through             BIGINT     the position through which they are applied from here on
version             BIGINT     the version that has them; NULL if there was nothing to do
writes              BIGINT     writes that were applied
refused             BIGINT     writes that were refused
inserted            BIGINT     rows that they inserted
updated             BIGINT     rows that they updated
deleted             BIGINT     rows that they deleted
transaction_id      VARCHAR    its transaction
""",
)

# What is in tables: each row says what one committed operation left of one thing; what was there
# before is an earlier row of the same thing. So a commit writes as many rows as it changes things,
# whatever the table's size, and the views find what existed at a version.

FRAGMENT_CHANGES = about_table(
    "fragment_changes",
    "What a version made of a fragment: added it, changed it, or removed it.",
    """
version             BIGINT     the version
fragment_id         BIGINT     the fragment
removed             BOOLEAN    whether it is gone from this version on
physical_rows       BIGINT     its rows, deleted ones included; NULL if as before
deleted_rows        BIGINT     how many of them are deleted
bytes               BIGINT     size of its data files, where known; NULL if as before
files               VARCHAR[]  its data files, relative to the data folder; NULL if as before
deletion_file       VARCHAR    which rows are deleted, relative to the table; NULL if none
made_from           BIGINT[]   fragments before it whose rows it took over; NULL if none or many
""",
)

REFUSED_FILES = about_table(
    "refused_files",
    "Data files that refused attempts had written already.",
    """
status              VARCHAR    what became of the attempt
transaction_id      VARCHAR    its transaction
path                VARCHAR    relative to the table's data folder
""",
)

FIELDS = about_table(
    "field_changes",
    "The fields of a table's schema, whenever an operation wrote the schema again.",
    """
version             BIGINT     the version that has the schema; NULL for Iceberg
field_id            INTEGER    the field
parent_id           INTEGER    the field that it is in; NULL at the top
position            INTEGER    its place among all fields, from 0
name                VARCHAR    its name behind its parents', which are cut to 1,000 characters
type                VARCHAR    its type, in the format's words
nullable            BOOLEAN    whether it may be null
""",
)

INDEX_CHANGES = about_table(
    "index_changes",
    "All indices of a table, whenever an operation changed one of them.",
    """
version             BIGINT     the version
name                VARCHAR    the index; NULL if the table has none from here on
uuid                VARCHAR    this build of it: its folder below _indices
field_ids           BIGINT[]   the fields it is over
built_on            BIGINT     the version whose rows it has
fragments           BIGINT     how many fragments it covers; NULL if it doesn't say
bytes               BIGINT     size of its files, where known
""",
)

SNAPSHOTS = about_table(
    "snapshots",
    "Iceberg snapshots, refused ones included.",
    """
status              VARCHAR    what became of the operation
transaction_id      VARCHAR    its transaction
principal           VARCHAR    who submitted it
snapshot_id         BIGINT     the snapshot
parent_id           BIGINT     the snapshot before it; NULL for a first one
sequence_number     BIGINT     Iceberg's own number, as the client sent it
operation           VARCHAR    append, replace, overwrite or delete
manifest_list       VARCHAR    its file
summary             VARCHAR    what the client says of it, as a JSON object
""",
)

REF_CHANGES = about_table(
    "ref_changes",
    "Where an Iceberg table's branches and tags were set, and that they were removed.",
    """
transaction_id      VARCHAR    its transaction
principal           VARCHAR    who submitted it
name                VARCHAR    the branch or tag
kind                VARCHAR    branch or tag; NULL if removed
snapshot_id         BIGINT     the snapshot it names from here on; NULL if removed
""",
)

FAILED_REQUIREMENTS = event(
    "failed_requirements",
    "What a refused Iceberg transaction required and didn't find, in the request's order.",
    """
ordinal             INTEGER    place among the failed ones, from 0
table_name          VARCHAR    the table
transaction_id      VARCHAR    the transaction
principal           VARCHAR    who submitted it
requirement         VARCHAR    as the client sent it, JSON
actual              VARCHAR    what the table has instead, JSON
""",
    ("partition", "sequence", "ordinal"),
)

EVENTS = (
    *(TRANSACTIONS, OPERATIONS, COLLISIONS, EXPECTATIONS, PROPERTIES, EXPIRIES, APPLIED_ROWS),
    *(FRAGMENT_CHANGES, REFUSED_FILES, FIELDS, INDEX_CHANGES, SNAPSHOTS, REF_CHANGES),
    FAILED_REQUIREMENTS,
)
"""Relations that only grow: hot rows plus segments behind a view of the same name."""

LEADERS = state(
    "leaders",
    "Terms: who decided for a partition, from which position on.",
    """
partition           INTEGER    Kafka partition
epoch               INTEGER    the term's number, from 1
node                VARCHAR    the leader's address
leader_id           VARCHAR    uuid of this attempt to lead
sequence            BIGINT     the last sequence before the term
started_at          TIMESTAMP  the leader's clock, UTC
program_version     VARCHAR    the program that led
outcome_offset      BIGINT     Kafka offset in the outcomes topic
previous_hash       BLOB       head of the chain when it started
state_digest        BLOB       digest of the state that it started from
""",
)

TABLES = state(
    "tables",
    "One row per life of a table: those that exist, and those that have ended.",
    """
incarnation         VARCHAR    uuid of this life of the table
table_name          VARCHAR    its name now, or when it ended
format              VARCHAR    lance or iceberg
partition           INTEGER    Kafka partition that decides for it
location            VARCHAR    where it lies
policy              VARCHAR    which versions get a manifest file: every or latest
primary_key         VARCHAR[]  columns of its key
stable_row_ids      BOOLEAN    whether rows keep their ids; NULL if unknown (registered)
version             BIGINT     its newest version; NULL if it has none yet (Iceberg has snapshots)
snapshot_id         BIGINT     an Iceberg table's current snapshot
metadata_location   VARCHAR    an Iceberg table's metadata file
sequence            BIGINT     position of its last change
changed_at          TIMESTAMP  time of its last change, UTC
changed_by          VARCHAR    who changed it last
created_sequence    BIGINT     position of its creation
created_at          TIMESTAMP  time of its creation, UTC
created_by          VARCHAR    who made it
commits             BIGINT     operations committed to it
rows_added          BIGINT     rows added by them in all
rows_removed        BIGINT     rows removed by them in all
bytes_added         BIGINT     bytes of data files added by them in all
former_names        VARCHAR[]  names it had before
ended_by            VARCHAR    DropTable, DeregisterTable, …; NULL while it stands
ended_sequence      BIGINT     position of its end
ended_at            TIMESTAMP  time of its end, UTC
""",
)

POSITIONS = state(
    "positions",
    "How far the index has followed each partition; written together with the rows.",
    """
partition           INTEGER    Kafka partition
sequence            BIGINT     the last outcome in the index
outcomes_offset     BIGINT     next Kafka offset to read from the outcomes topic
transactions_offset BIGINT     next Kafka offset to read from the transactions topic
decided_beyond      BIGINT[]   offsets from there on that are decided already
last_outcome_offset BIGINT     Kafka offset of the last outcome in the index; -1 if none
hash                BLOB       head of the chain
epoch               INTEGER    the current leader's term
end_offset          BIGINT     end of the outcomes topic when last looked
changed_at          TIMESTAMP  log time of the last outcome, UTC
""",
)

META = state(
    "meta",
    "What this file is: the log it follows and how.",
    """
key                 VARCHAR    name
value               VARCHAR    value
""",
)

SEGMENTS = state(
    "segments",
    "Immutable Parquet files that hold older rows.",
    """
relation            VARCHAR    whose rows it holds
path                VARCHAR    relative to the index folder
level               INTEGER    0: sealed from hot rows; higher: merged
rows                BIGINT     how many rows
bytes               BIGINT     how many bytes
""",
)

OBSOLETE = state(
    "obsolete",
    "Merged segments that a published snapshot may still name.",
    """
path                VARCHAR    relative to the index folder
published_at        TIMESTAMP  when the first snapshot without it was published, UTC; or NULL
""",
)

DOCUMENTATION = state(
    "help",
    "Start here: what can be asked, with an example each.",
    """
name                VARCHAR    view, macro or relation
kind                VARCHAR    what it is
example             VARCHAR    a query to try
meaning             VARCHAR    what it answers
""",
)

STATE = (LEADERS, TABLES, POSITIONS, META, SEGMENTS, OBSOLETE, DOCUMENTATION)
"""Relations that are small and stay in the file."""
