"""The relations of the version index: every column with its type and its meaning.

Event relations only grow: a row is written once, with the outcome that caused it, and later moves
from `hot` to a Parquet segment unchanged. `tables`, `positions` and the bookkeeping relations
change in place and stay small.
"""

from __future__ import annotations

from consumers.views.version_index.contents_schema import CONTENTS
from consumers.views.version_index.relation import OF_TABLE, PLACE, TABLE_ORDER, Relation, columns

TRANSACTIONS = Relation(
    "transactions",
    "Every decided record of the log, refused ones included: one row per outcome.",
    columns(
        PLACE
        + """
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
"""
    ),
    ("partition", "sequence"),
)

OPERATIONS = Relation(
    "operations",
    "One row per operation of each transaction, refused ones included.",
    columns(
        PLACE
        + """
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
"""
    ),
    TABLE_ORDER,
)

COLLISIONS = Relation(
    "collisions",
    "Who lost to whom: one row per refused transaction that met a conflict (see view conflicts).",
    columns(
        PLACE
        + """
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
"""
    ),
    ("table_name", "partition", "sequence"),
)

EXPECTATIONS = Relation(
    "expectations",
    "Preconditions that transactions carried.",
    columns(
        PLACE
        + """
ordinal             INTEGER    place in the transaction, from 0
transaction_id      VARCHAR    its transaction
status              VARCHAR    what became of the transaction
kind                VARCHAR    TableVersionIs, TableAbsent, KeyAbsent or PredicateUnchanged
table_name          VARCHAR    the table it is about
version             BIGINT     the version it names
detail              VARCHAR    the predicate, or the key's hash in hex
"""
    ),
    ("partition", "sequence", "ordinal"),
)

PROPERTIES = Relation(
    "properties",
    "Changes of what tables and namespaces say of themselves: properties, and Lance's config and"
    " metadata.",
    columns(
        PLACE
        + """
ordinal             INTEGER    the operation's place in the transaction
table_name          VARCHAR    the table or namespace
is_table            BOOLEAN    false for a namespace
scope               VARCHAR    properties, config, table_metadata or schema_metadata
transaction_id      VARCHAR    its transaction
key                 VARCHAR    the property; NULL: all that is not set again is removed
value               VARCHAR    its new value; NULL if removed
"""
    ),
    TABLE_ORDER,
)

EXPIRIES = Relation(
    "expiries",
    "Versions that records deleted: one row per range, with who did it and when.",
    columns(
        PLACE
        + OF_TABLE
        + """
first_version       BIGINT     the first version that was deleted
last_version        BIGINT     the last one
principal           VARCHAR    who deleted them
transaction_id      VARCHAR    its transaction
"""
    ),
    TABLE_ORDER,
)

APPLIED_ROWS = Relation(
    "applied_rows",
    "Which small writes were applied when: one row per range of positions.",
    columns(
        PLACE
        + OF_TABLE
        + """
after               BIGINT     the position through which writes were applied before
through             BIGINT     the position through which they are applied from here on
version             BIGINT     the version that has them; NULL if there was nothing to do
writes              BIGINT     writes that were applied
refused             BIGINT     writes that were refused
inserted            BIGINT     rows that they inserted
updated             BIGINT     rows that they updated
deleted             BIGINT     rows that they deleted
transaction_id      VARCHAR    its transaction
"""
    ),
    TABLE_ORDER,
)

_LOG = (TRANSACTIONS, OPERATIONS, COLLISIONS, EXPECTATIONS, PROPERTIES, EXPIRIES, APPLIED_ROWS)
EVENTS = (*_LOG, *CONTENTS)
"""Relations that only grow: hot rows plus segments behind a view of the same name."""

LEADERS = Relation(
    "leaders",
    "Terms: who decided for a partition, from which position on.",
    columns(
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
"""
    ),
)

TABLES = Relation(
    "tables",
    "One row per life of a table: those that exist, and those that have ended.",
    columns(
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
"""
    ),
)

POSITIONS = Relation(
    "positions",
    "How far the index has followed each partition; written together with the rows.",
    columns(
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
"""
    ),
)

META = Relation(
    "meta",
    "What this file is: the log it follows and how.",
    columns(
        """
key                 VARCHAR    name
value               VARCHAR    value
"""
    ),
)

SEGMENTS = Relation(
    "segments",
    "Immutable Parquet files that hold older rows.",
    columns(
        """
relation            VARCHAR    whose rows it holds
path                VARCHAR    relative to the index folder
level               INTEGER    0: sealed from hot rows; higher: merged
rows                BIGINT     how many rows
bytes               BIGINT     how many bytes
"""
    ),
)

OBSOLETE = Relation(
    "obsolete",
    "Merged segments that a published snapshot may still name.",
    columns(
        """
path                VARCHAR    relative to the index folder
published_at        TIMESTAMP  when the first snapshot without it was published, UTC; or NULL
"""
    ),
)

DOCUMENTATION = Relation(
    "help",
    "Start here: what can be asked, with an example each.",
    columns(
        """
name                VARCHAR    view, macro or relation
kind                VARCHAR    what it is
example             VARCHAR    a query to try
meaning             VARCHAR    what it answers
"""
    ),
)

STATE = (LEADERS, TABLES, POSITIONS, META, SEGMENTS, OBSOLETE, DOCUMENTATION)
"""Relations that are small and stay in the file."""
