"""Today's words for reasons that logs of protocols 1 to 3 hold in their frozen words.

Those logs keep what they hold; readers of any log see these words instead.
"""

from __future__ import annotations

WORDS: dict[str, str] = {
    # Iceberg.
    "iceberg_identifier_nested": (
        "{place} names {name}, which is nested in {above}, not a required struct"
    ),
    "iceberg_location_taken": (
        "table {table}: {location} overlaps the location of table {owner}; choose another one"
    ),
    "iceberg_table_replaced": (
        "table {table} is now {uuid}, not {expected}: it was dropped and created again"
    ),
    "iceberg_no_such_snapshot": (
        "{name} cannot refer to snapshot {snapshot}, which the table doesn't have"
    ),
    "iceberg_snapshot_in_future": (
        "snapshot {snapshot} has the time {time}, more than a minute after now ({now}); set the "
        "clock of the machine that made it by NTP"
    ),
    "iceberg_snapshot_before_previous": (
        "snapshot {snapshot} has the time {time}, more than a minute before {previous}, the "
        "snapshot log's entry before it; set the clocks of the machines that commit by NTP"
    ),
    # Tables, namespaces and places.
    "no_such_namespace": "namespace {namespace} does not exist; create it first",
    "namespace_exists": "namespace {namespace} already exists",
    "namespace_not_empty": (
        "namespace {namespace} is not empty: it holds {names!j}; drop them first, or cascade"
    ),
    "no_such_table": "table {table} does not exist; create it, or correct its name",
    "table_exists": "table {table} already exists; choose another name",
    "table_exists_at": (
        "table {table} already exists at {location}; open it, or choose another name"
    ),
    "table_exists_unexpectedly": "table {table} already exists",
    "iceberg_table_exists": "table {table} already exists as an Iceberg table; choose another name",
    "is_iceberg_table": "{table} is an Iceberg table; this operation needs a Lance table",
    "versions_deleted_already": (
        "versions {ranges!j} of {table} cannot be deleted: {deleted!j} are deleted already; name "
        "versions that exist"
    ),
    "table_replaced": (
        "table {table} was dropped and created again: its incarnation is {incarnation}, not "
        "{expected}; open it again"
    ),
    "manifest_missing": "{path} does not exist in {location}; name a Lance dataset for {table}",
    "rename_not_alone": (
        "RenameTable must be the only operation of its transaction; submit it by itself"
    ),
    "location_taken": (
        "{location} overlaps the location of table {owner} (incarnation {incarnation}); choose "
        "another one"
    ),
    "location_was_taken": (
        "{location} overlaps a location that belonged to table {owner} (incarnation "
        "{incarnation}); choose another one"
    ),
    "clone_source_unknown": (
        "{ref_path!r} is not the location of a table of this log; name one, or register it first"
    ),
    "clone_ref_differs": (
        "{ref_path} is branch {branch!r}, but the Clone's ref_name is {ref_name!r}; name the "
        "branch, or none for the main one"
    ),
    "branches_unsupported": (
        "{table} would be a branch of another table; clone it as a table of its own"
    ),
    "branch_elsewhere": (
        "branch {branch!r} belongs at {place}, but {table} is at {location}; declare it there in "
        "the same transaction"
    ),
    "clone_record_differs": (
        "the record of {table} names {operation!r} at version {read_version}, but its message "
        "differs; let the encoder derive both"
    ),
    "branch_name_invalid": "{branch!r} is not a valid branch name for {table}: {problem}",
    "branch_name_of_main": "it names the table itself; choose another name",
    "branch_name_characters": (
        "each part between slashes may hold letters, digits, '.', '-' and '_', but not '..'"
    ),
    "branch_unsupported": "branch {branch!r} of {table} is not supported here; use the main branch",
    "no_such_version": "version {version} of {table} does not exist; the newest is {head}",
    "ranges_out_of_order": (
        "versions {first} to {last} of {table} are not a valid range; ranges start at 1, ascend "
        "and do not overlap"
    ),
    "newest_version_stays": (
        "versions {first} to {last} of {table} cannot be deleted because {newest} is the newest "
        "version; commit a newer one first"
    ),
    "field_id_taken": (
        "field {field!r} has the id {field_id}, which is negative or already used; ids must be "
        "distinct, from 0 on"
    ),
    "field_name_twice": "the field name {field!r} is empty or used twice",
    # Transactions.
    "operations_count": "a transaction must have 1 to {operations_max} operations, not {count}",
    "id_reused": (
        "transaction id {transaction_id} was already decided with other content (outcome "
        "{sequence}, {status}); use a new id for a new transaction"
    ),
    "id_too_old": (
        "transaction id {transaction_id} is older than the ids that the log remembers; look up "
        "in the version index whether it committed, then use a new id; if it was new, set the "
        "clock of its writer's machine by NTP"
    ),
    "attempt_superseded": "attempt {attempt} arrived after attempt {decided} was decided",
    "two_partitions": (
        "{table} belongs to partition {partition} and {other} to partition {other_partition}; "
        "all tables of a transaction must belong to one partition"
    ),
    "wrong_partition": (
        "{table} belongs to partition {decided_by}, but the record is in partition {partition}; "
        "append it to partition {decided_by}"
    ),
    "sequence_of_other_tables": (
        "application {application} committed sequence {sequence} to {table} but not to {other}; "
        "send each sequence with the same tables"
    ),
    "application_runs_twice": (
        "application {application} is at sequence {last} of run {run} on {table}, but run "
        "{other_run} sent sequence {sequence}: another stream uses the same id, or a checkpoint "
        "was lost; give this stream an id of its own"
    ),
    "sequence_forgotten": (
        "sequence {sequence} of application {application} on {table} is no longer remembered; "
        "the newest is {last}, and sequences only grow"
    ),
    "sequence_passed_over": (
        "sequence {sequence} of application {application} on {table} was skipped; the newest is "
        "{last}, and sequences only grow"
    ),
    "expected_version_in_future": (
        "the expected version {expected} of {table} does not exist; the newest is {head}"
    ),
    "expected_version_pruned": (
        "changes of {table} before version {oldest} are no longer remembered."
    ),
    "rows_may_have_changed": (
        "version {version} of {table} changed rows, perhaps some of {predicate!r}."
    ),
    "key_may_have_come": "version {version} of {table} may have added the key {key}.",
    "outcome_too_large": (
        "its outcome would have {size} bytes, more than the {size_max} of a record; split the "
        "transaction, or use shorter names"
    ),
    "rules_cannot_follow": (
        "protocol {protocol} with the limits {limits} cannot follow protocol {current}; "
        "protocols only grow, and limits must be positive"
    ),
    # Operations.
    "conflicts_within_transaction": (
        "{kind} of {table} conflicts with an earlier {first} of the same transaction ({rule}); "
        "combine them, or use two transactions"
    ),
    "built_not_first": (
        "{kind} must be the first operation on {table} in its transaction, and the only one of "
        "its kind; put it first, or in a transaction of its own"
    ),
    "operation_unknown": (
        "{what} of {table} is not an operation of Lance 14.0.2; use one of {known!j}"
    ),
    "record_operation_differs": (
        "the record names the operation {operation!r}, but its message holds {kind!r}; let the "
        "encoder derive it"
    ),
    "record_read_version_differs": (
        "the record has read version {read_version}, but its message has {of_message}; let the "
        "encoder derive it"
    ),
    "read_version_in_future": (
        "{kind} of {table} has read version {read_version}, but the newest version is {head}; "
        "read the table again"
    ),
    "read_version_missing": (
        "{kind} of {table} has read version {read_version}; name the version that it was made from"
    ),
    "read_version_pruned": (
        "{kind} of {table} has read version {read_version}; changes before version {oldest} are "
        "no longer remembered."
    ),
    "restore_version_unknown": (
        "{kind} of {table}: version {version} does not exist; versions are 1 to {head}"
    ),
    "restore_version_deleted": (
        "{kind} of {table}: version {version} was deleted; choose another one"
    ),
    "fragments_unknown": (
        "{kind} names the fragments {fragments}, which do not exist in version {version} of "
        "{table}; read it again"
    ),
    "field_ids_unknown": (
        "{what} has the field ids {fields}, which are not in the schema of {table}; its fields "
        "are {known}"
    ),
    "fragment_id_taken": (
        "{kind} of {table} gives a new fragment the id {fragment}, which is already used or was "
        "not reserved; use 0 to be given one, or ReserveFragments"
    ),
    "clone_of_existing_table": (
        "Clone creates a new table, but {table} already exists; choose another name"
    ),
    "physical_rows_missing": (
        "{field} {value!r}: no physical_rows. Say how many rows the fragment has."
    ),
    "path_escapes": (
        "{field} {value!r}: outside of the table's data directory. Name the file relative to it, "
        "without '..'."
    ),
    "rows_come_back": (
        "{field} {value!r}: deleted rows would come back. {num_deleted_rows} rows are deleted "
        "already; keep them deleted."
    ),
    "updated_and_deleted": (
        "{field} {value!r}: both updated and deleted. Name the fragment in one of the two lists."
    ),
    "mixed_forms": (
        "{field} {value!r}: older and newer fields are mixed. Use one of the two forms."
    ),
    "base_id_exists": (
        "{field} {value!r}: the base id is already used. Leave it 0 to be given one."
    ),
    "base_path_exists": (
        "{field} {value!r}: base path {base} already has this name or path. Choose another one."
    ),
    "primary_key_is_set": "{field} {value!r}: the primary key is already set. Don't change it.",
    "clustering_key_is_set": (
        "{field} {value!r}: the clustering key is already set. Don't change it."
    ),
    "inserted_keys_malformed": "inserted_keys must be hashes of {hash_bytes} bytes",
    "bad_uuid": "{field} {value!r}: not a UUID. Use a UUID: it names the transaction's file.",
    "bad_shard": "{field} {value!r}: not the id of a shard. Use a UUID.",
    "shard_twice": "{field} {value!r}: named twice. Name each shard once.",
    "field_twice": "{field} {value!r}: named twice. Name each field once.",
    "duplicate_fragment": "{field} {value!r}: named twice. Name each fragment once.",
    "no_mem_wal": "{field} {value!r}: the table has no index {index}. Initialize its MemWAL first.",
    "stale_generation": (
        "{field} {value!r}: shard {shard} is already compacted up to generation {recorded}."
    ),
    "fragment_ids_exhausted": (
        "{field} {value!r}: no fragment ids are left; the highest is {id_max}. Copy the table "
        "into a new one."
    ),
    "bad_value": "{field} {value!r}: not a valid value. Use true or false.",
    # Manifests and files.
    "staged_manifest_missing": "the staged manifest {path} does not exist",
    "staged_manifest_differs": (
        "the staged manifest {path} does not have the size or hash of its record"
    ),
    "staged_manifest_version": (
        "the staged manifest {path} has version {version}, not the one of its record"
    ),
    "staged_transaction_differs": (
        "the staged manifest {path} holds another transaction than its record"
    ),
    "staged_operation_unknown": (
        "the staged manifest of {table} holds no operation that Lance 14 knows; commit it with "
        "this version of Lance"
    ),
    "staged_read_version_in_future": (
        "the staged {kind} has read version {read_version}, but the newest version is {head}; "
        "read the table again"
    ),
    "not_a_staged_path": (
        "{path!r} is not the path of a staged manifest of version {version}; use "
        "`_versions/<name of the version>.manifest-<uuid>`"
    ),
    "not_a_manifest_path": (
        "{path!r} is not the path of a manifest of version {version} under _versions"
    ),
    "staged_effect_differs": (
        "the staged manifest is not the head with the effect of its {kind}: {what} {how}; stage "
        "it again from the head"
    ),
    "version_taken": "version {version} of {table} was staged, but the next version is {next}.",
    "data_file_missing": (
        "the data file {path} in {location} does not exist; write it before the transaction, or "
        "correct its path"
    ),
}
"""Templates by the name of the reason, as in `FROZEN`."""
