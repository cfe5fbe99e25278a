"""Relations about what is in tables: fragments and files, schemas, indices, Iceberg's snapshots.

Each row says what one committed operation left of one thing; what was there before is an earlier
row of the same thing. So a commit writes as many rows as it changes things, whatever the table's
size, and the views find what existed at a version.
"""

from __future__ import annotations

from consumers.views.version_index.relation import OF_TABLE, PLACE, TABLE_ORDER, Relation, columns

FRAGMENT_CHANGES = Relation(
    "fragment_changes",
    "What a version made of a fragment: added it, changed it, or removed it.",
    columns(
        PLACE
        + OF_TABLE
        + """
version             BIGINT     the version
fragment_id         BIGINT     the fragment
removed             BOOLEAN    whether it is gone from this version on
physical_rows       BIGINT     its rows, deleted ones included; NULL if as before
deleted_rows        BIGINT     how many of them are deleted
bytes               BIGINT     size of its data files, where known; NULL if as before
files               VARCHAR[]  its data files, relative to the data folder; NULL if as before
deletion_file       VARCHAR    which rows are deleted, relative to the table; NULL if none
made_from           BIGINT[]   fragments before it whose rows it took over; NULL if none or many
"""
    ),
    TABLE_ORDER,
)

REFUSED_FILES = Relation(
    "refused_files",
    "Data files that refused attempts had written already.",
    columns(
        PLACE
        + OF_TABLE
        + """
status              VARCHAR    what became of the attempt
transaction_id      VARCHAR    its transaction
path                VARCHAR    relative to the table's data folder
"""
    ),
    TABLE_ORDER,
)

FIELDS = Relation(
    "field_changes",
    "The fields of a table's schema, whenever an operation wrote the schema again.",
    columns(
        PLACE
        + OF_TABLE
        + """
version             BIGINT     the version that has the schema; NULL for Iceberg
field_id            INTEGER    the field
parent_id           INTEGER    the field that it is in; NULL at the top
position            INTEGER    its place among all fields, from 0
name                VARCHAR    its name behind its parents', which are cut to 1,000 characters
type                VARCHAR    its type, in the format's words
nullable            BOOLEAN    whether it may be null
"""
    ),
    TABLE_ORDER,
)

INDEX_CHANGES = Relation(
    "index_changes",
    "All indices of a table, whenever an operation changed one of them.",
    columns(
        PLACE
        + OF_TABLE
        + """
version             BIGINT     the version
name                VARCHAR    the index; NULL if the table has none from here on
uuid                VARCHAR    this build of it: its folder below _indices
field_ids           BIGINT[]   the fields it is over
built_on            BIGINT     the version whose rows it has
fragments           BIGINT     how many fragments it covers; NULL if it doesn't say
bytes               BIGINT     size of its files, where known
"""
    ),
    TABLE_ORDER,
)

SNAPSHOTS = Relation(
    "snapshots",
    "Iceberg snapshots, refused ones included.",
    columns(
        PLACE
        + OF_TABLE
        + """
status              VARCHAR    what became of the operation
transaction_id      VARCHAR    its transaction
principal           VARCHAR    who submitted it
snapshot_id         BIGINT     the snapshot
parent_id           BIGINT     the snapshot before it; NULL for a first one
sequence_number     BIGINT     Iceberg's own number, as the client sent it
operation           VARCHAR    append, replace, overwrite or delete
manifest_list       VARCHAR    its file
summary             VARCHAR    what the client says of it, as a JSON object
"""
    ),
    TABLE_ORDER,
)

REF_CHANGES = Relation(
    "ref_changes",
    "Where an Iceberg table's branches and tags were set, and that they were removed.",
    columns(
        PLACE
        + OF_TABLE
        + """
transaction_id      VARCHAR    its transaction
principal           VARCHAR    who submitted it
name                VARCHAR    the branch or tag
kind                VARCHAR    branch or tag; NULL if removed
snapshot_id         BIGINT     the snapshot it names from here on; NULL if removed
"""
    ),
    TABLE_ORDER,
)

FAILED_REQUIREMENTS = Relation(
    "failed_requirements",
    "What a refused Iceberg transaction required and didn't find, in the request's order.",
    columns(
        PLACE
        + """
ordinal             INTEGER    place among the failed ones, from 0
table_name          VARCHAR    the table
transaction_id      VARCHAR    the transaction
principal           VARCHAR    who submitted it
requirement         VARCHAR    as the client sent it, JSON
actual              VARCHAR    what the table has instead, JSON
"""
    ),
    ("partition", "sequence", "ordinal"),
)

CONTENTS = (
    FRAGMENT_CHANGES,
    REFUSED_FILES,
    FIELDS,
    INDEX_CHANGES,
    SNAPSHOTS,
    REF_CHANGES,
    FAILED_REQUIREMENTS,
)
