"""Words of refusals that logs of protocols 1 to 3 hash: of ids, tables, places and expectations.

None may be changed or removed; the test of frozen words sees to it.
"""

from __future__ import annotations

TEMPLATES = {
    "no_such_namespace": "the log knows no namespace {namespace}; create it first",
    "iceberg_table_exists": "table {table} exists, as an Iceberg table; choose another name",
    "table_exists_at": "table {table} exists, at {location}; open it, or choose another name",
    "incarnation_missing": "table {table} has no incarnation; give it a UUID",
    "not_a_manifest_path": (
        "{path!r} doesn't name the manifest of version {version} under _versions"
    ),
    "manifest_missing": "there is no {path} in {location}; name a Lance dataset for {table}",
    "manifest_in_location_of_branch": "{path} in {location} belongs to a branch",
    "table_exists": "table {table} exists; choose another name",
    "rename_not_alone": "RenameTable stands alone; put it in a transaction of its own",
    "namespace_not_empty": "namespace {namespace} holds {names!j}; drop them first, or cascade",
    "location_of_log": "{location} holds the log's own files; choose a directory below {root}",
    "namespace_exists": "namespace {namespace} exists",
    "operation_unsupported": "{operation} is not supported by this version of the log",
    "clone_source_unknown": (
        "no table of this log lies at {ref_path!r}; name the location of one, or register it first"
    ),
    "clone_record_differs": (
        "the record of {table} says {operation!r} at version {read_version}, and its message "
        "another; let the encoder derive both"
    ),
    "branches_unsupported": (
        "{table} would be a branch of another table; clone into a table of its own"
    ),
    "branch_not_shallow": (
        "{table} would be a branch with files of its own; a branch is a shallow clone"
    ),
    "clone_ref_differs": (
        "{ref_path} is branch {branch!r}, and the Clone's ref_name is {ref_name!r}; name the "
        "branch that it is, or none for the main one"
    ),
    "branch_elsewhere": (
        "branch {branch!r} lies at {place}, and {table} at {location}; declare it there in the "
        "same transaction"
    ),
    "cannot_be_cloned": (
        "{field} {value!r}: cannot be cloned. Clone it with pylance and register the clone."
    ),
    "no_such_version": "{table} has no version {version}; its newest is {head}",
    "storage_version_unknown": "the storage version {version!r} is unknown; use one of {known!j}",
    "not_a_field": "a field is not a lance.file.Field",
    "not_a_lance_transaction": "the message for table {table} is not a Lance transaction",
    "table_replaced": (
        "table {table} is now incarnation {incarnation}, not {expected}: it was dropped and "
        "made again; open it again"
    ),
    "is_iceberg_table": "{table} is an Iceberg table; this is for Lance tables",
    "rules_cannot_follow": (
        "protocol {protocol} with the limits {limits} cannot follow protocol {current}; "
        "protocols only grow, and limits are positive"
    ),
    "expected_version_in_future": (
        "version {expected} of {table} is expected, and version {head} is the newest"
    ),
    "two_partitions": (
        "{table} is decided by partition {partition} and {other} by partition "
        "{other_partition}; a transaction has one partition"
    ),
    "wrong_partition": (
        "{table} is decided by partition {decided_by}, and the record is in partition "
        "{partition}; append it there"
    ),
    "table_exists_unexpectedly": "table {table} exists",
    "operations_count": "a transaction has 1 to {operations_max} operations, not {count}",
    "id_reused": (
        "{transaction_id} was decided with other content, as outcome {sequence} ({status}); "
        "use a new id for a new transaction"
    ),
    "id_too_old": (
        "{transaction_id} is from before the log's memory of ids; whether it committed stands "
        "in the version index: look there, then use a new id"
    ),
    "no_such_table": "the log knows no table {table}; create it, or correct its name",
    "not_a_location": "{location!r} is not a location: use an absolute path or a URI without '..'",
    "versions_deleted_already": (
        "some of the versions {ranges} of {table} are deleted already: {deleted}; name those "
        "that are there"
    ),
    "ranges_out_of_order": (
        "versions {first} to {last} of {table}: ranges are from 1 on, in order, and none holds "
        "a version of another"
    ),
    "newest_version_stays": (
        "versions {first} to {last} of {table} cannot be deleted: {newest} is the newest, and "
        "only older ones can; make a newer one first"
    ),
    "location_taken": (
        "{location} is, contains or lies in a location that table {owner} has (incarnation "
        "{incarnation}); choose another one"
    ),
    "location_was_taken": (
        "{location} is, contains or lies in a location that table {owner} had (incarnation "
        "{incarnation}); choose another one"
    ),
    "manifest_unusable": "{path} in {location} cannot be used: {error}",
    "manifest_of_another_version": "{path} in {location} cannot be used: it is of another version",
    "attempt_superseded": "attempt {attempt} comes after attempt {decided} was decided",
    "as_before": "as outcome {sequence} says",
    "sequence_of_other_tables": (
        "sequence {sequence} of application {application} committed to {table} and not to "
        "{other}; send each sequence with the same tables"
    ),
    "application_runs_twice": (
        "application {application} on {table} is at sequence {last} in run {run}, and run "
        "{other_run} sends sequence {sequence}: another stream uses the same id, or its "
        "checkpoint is new; give it an id of its own"
    ),
    "sequence_forgotten": (
        "application {application} on {table} is at sequence {last}; sequence {sequence} is no "
        "longer remembered; sequences only grow"
    ),
    "sequence_passed_over": (
        "application {application} on {table} is at sequence {last}; sequence {sequence} was "
        "passed over; sequences only grow"
    ),
    "record_undecodable": "the record cannot be decoded: {error}",
    "expected_version_differs": "table {table} is at version {head}, not {expected}.",
    "rows_may_have_changed": (
        "rows of {table} changed in version {version}, and those of {predicate!r} may be among "
        "them."
    ),
    "expected_version_pruned": "what happened to {table} before version {oldest} is forgotten.",
    "key_may_have_come": "key {key} of {table} may have come with version {version}.",
    "schema_invalid": "{problem}; correct the schema",
    "branch_name_invalid": "branch {branch!r} of {table}: {problem}",
    "branch_name_of_main": "that is what the table itself is called; choose another name",
    "branch_name_characters": (
        "its parts, between slashes, are of letters, digits, '.', '-' and '_', without '..'"
    ),
    "branch_name_of_lock": "it must not end with '.lock'",
    "clone_refused": "{table} cannot be a clone: {error}",
    "field_id_taken": "field {field!r} has the id {field_id}: ids are distinct, from 0",
    "field_before_parent": "field {field!r} comes before its parent {parent}",
    "field_name_twice": "two fields are called {field!r}, or one has no name",
    "primary_key_unknown": "the primary key {primary_key} names {unknown}",
    "primary_key_twice": "the primary key {primary_key} names a column twice",
    "outcome_too_large": (
        "its outcome would have {size} bytes, and a record has at most {size_max}; split the "
        "transaction, or use shorter names"
    ),
}

ADVICE = {
    "expected_version_differs": "Read version {head} and decide anew.",
    "rows_may_have_changed": "Read version {head} and decide anew.",
    "expected_version_pruned": "Read version {head} and decide anew.",
    "key_may_have_come": "Read version {head} and decide anew.",
}
