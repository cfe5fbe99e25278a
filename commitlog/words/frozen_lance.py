"""Words of refusals that logs of protocols 1 to 3 hash: of operations, fragments and manifests.

None may be changed or removed; the test of frozen words sees to it.
"""

from __future__ import annotations

TEMPLATES = {
    "conflicts_within_transaction": (
        "{kind} of {table} conflicts with the {first} before it in the same transaction "
        "({rule}); make one operation of both, or two transactions"
    ),
    "built_not_first": (
        "{kind} of {table} has to be its table's first operation in a transaction, and the "
        "only one of its kind; put it first, or in a transaction of its own"
    ),
    "physical_rows_missing": (
        "{field} {value!r}: physical rows missing. Say how many rows the fragment holds."
    ),
    "no_data_files": "{field} {value!r}: no data files. Name the data files of the fragment.",
    "path_escapes": (
        "{field} {value!r}: path escapes. Name the file relative to the table's data "
        "directory, without '..'."
    ),
    "unknown_base_path": (
        "{field} {value!r}: unknown base path. Register the base path first (UpdateBases)."
    ),
    "unknown_file_format": (
        "{field} {value!r}: unknown file format. Write it with Lance 14 or older."
    ),
    "storage_format_mismatch": (
        "{field} {value!r}: storage format mismatch. Write files of format {table_format}."
    ),
    "column_count_mismatch": "{field} {value!r}: column count mismatch. Give one column per field.",
    "required_field_missing": (
        "{field} {value!r}: required field missing. Write a value for every field that may not "
        "be null."
    ),
    "no_fields": "{field} {value!r}: no fields. Name the fields that the file holds.",
    "field_twice": "{field} {value!r}: field twice. Name each field once.",
    "unknown_field": "{field} {value!r}: unknown field. The table's fields are {known}.",
    "row_out_of_range": (
        "{field} {value!r}: row out of range. The fragment has {physical_rows} rows, counted "
        "from 0."
    ),
    "bad_uuid": "{field} {value!r}: bad uuid. Use a UUID: it names the transaction's file.",
    "table_without_version": "{table} is declared and has no version; create it first",
    "restore_version_unknown": (
        "{kind} of {table} to version {version}; its versions are 1 to {head}"
    ),
    "restore_version_deleted": (
        "{kind} of {table} to version {version}, which was deleted; choose another one"
    ),
    "fragments_twice": "{kind} of {table} names the fragments {fragments} twice",
    "fragments_unknown": (
        "{kind} names the fragments {fragments}, which {table} doesn't have at version "
        "{version}; read it again"
    ),
    "field_ids_unknown": (
        "{what} has the field ids {fields}, which the schema of {table} doesn't have; its "
        "fields are {known}"
    ),
    "fragment_id_taken": (
        "{kind} of {table} gives a new fragment the id {fragment}, which is taken or was not "
        "reserved; use 0 to be given one, or ReserveFragments"
    ),
    "fragment_ids_exhausted": (
        "{field} {value!r}: fragment ids exhausted. A table has ids up to {id_max}; copy it "
        "into a new one."
    ),
    "deletion_file_in_append": (
        "{field} {value!r}: deletion file in append. Append whole fragments: a deletion file "
        "belongs to the id that the commit gives."
    ),
    "unexpected_row_ids": "{field} {value!r}: unexpected row ids. The table has no stable row ids.",
    "rows_come_back": (
        "{field} {value!r}: rows come back. {num_deleted_rows} rows are deleted already; keep "
        "them so."
    ),
    "too_many_deleted_rows": (
        "{field} {value!r}: too many deleted rows. It has {physical_rows} rows."
    ),
    "unknown_fragment": (
        "{field} {value!r}: unknown fragment. Version {version} has no such fragment; read it "
        "again."
    ),
    "duplicate_fragment": "{field} {value!r}: duplicate fragment. Name each fragment once.",
    "updated_and_deleted": (
        "{field} {value!r}: duplicate fragment. A fragment is either updated or deleted."
    ),
    "no_mem_wal": (
        "{field} {value!r}: no mem wal. The table has no index {index}; initialize its MemWAL "
        "first."
    ),
    "bad_shard": "{field} {value!r}: bad shard. A shard's id is a UUID.",
    "shard_twice": "{field} {value!r}: shard twice. Name each shard once.",
    "stale_generation": (
        "{field} {value!r}: stale generation. Shard {shard} is compacted up to generation "
        "{recorded} already."
    ),
    "mixed_forms": "{field} {value!r}: mixed forms. Use either the older or the newer fields.",
    "primary_key_invalid": (
        "{field} {value!r}: primary key invalid. A key column is a leaf, and neither it nor "
        "its parents are nullable or lists."
    ),
    "base_id_exists": "{field} {value!r}: base id exists. Leave the id 0 to be given one.",
    "base_path_exists": (
        "{field} {value!r}: base path exists. Base path {base} has this name or path; give another."
    ),
    "overlay_not_a_bitmap": "the coverage of the overlay {path!r} is not a Roaring bitmap",
    "affected_rows_twice": "affected_rows names fragment {fragment} twice; name it once",
    "affected_rows_not_a_bitmap": "affected_rows of fragment {fragment} is not a Roaring bitmap",
    "record_operation_differs": (
        "the record says {operation!r} and its message {kind!r}; let the encoder derive it"
    ),
    "read_version_in_future": (
        "{kind} of {table} read version {read_version}, and version {head} is the newest; read "
        "the table again"
    ),
    "inserted_keys_malformed": "inserted_keys are not hashes of {hash_bytes} bytes",
    "clone_of_existing_table": (
        "Clone makes a new table, and {table} exists; submit it for a name that is free"
    ),
    "operation_unknown": (
        "{what} of {table} is no operation of Lance 14.0.2; commit it with an operation that "
        "is: {known!j}"
    ),
    "branch_unsupported": "branch {branch!r} of {table}: use the main one",
    "record_read_version_differs": (
        "the record read version {read_version}, its message {of_message}; let the encoder "
        "derive it"
    ),
    "read_version_missing": (
        "{kind} of {table} read version {read_version}; name the version that it was made from"
    ),
    "named_fragments_twice": "{kind} names the fragments {fragments} twice",
    "fragment_id_too_large": "{kind} names fragment {fragment}; ids are below {end}",
    "staged_operation_unknown": (
        "the staged manifest of {table} holds no operation that Lance 14 knows; commit it with "
        "this version of Lance"
    ),
    "staged_transaction_differs": "the manifest {path} holds another transaction than the record",
    "not_a_staged_path": (
        "{path!r} doesn't name a staged manifest of version {version}; it has to be "
        "`_versions/<name of the version>.manifest-<uuid>`"
    ),
    "staged_manifest_missing": "the staged manifest {path} is not there",
    "staged_manifest_differs": "the staged manifest {path} is not the one that was announced",
    "staged_manifest_version": "the manifest {path} is of version {version}",
    "staged_manifest_of_branch": "the manifest {path} belongs to a branch",
    "staged_read_version_in_future": (
        "the staged {kind} read version {read_version}, and version {head} is the newest; read "
        "the table again"
    ),
    "staged_keys_malformed": (
        "{property} holds no field ids and hashes of {hash_bytes} bytes; leave it out, or let "
        "the encoder write it"
    ),
    "no_operation": "a message without operation",
    "foreign_operation": "operation {number}",
    "the_index": "the index {name!r}",
    "the_data_file": "the data file {path!r}",
    "the_overlay": "the overlay {path!r}",
    "fragment_ids_go_back": "goes back; ids are never used twice",
    "row_ids_go_back": "goes back; row ids are never used twice",
    "they_differ_from_head": "differ from the head's",
    "differs_from_head": "differs from the head's",
    "fragments_gone": "{fragments} are gone",
    "fragment_reuses_id": "{fragment} uses an id that was used before",
    "fragment_changed": "{fragment} is changed",
    "fragment_used_before": "{fragment} was used before",
    "build_refused": "Lance refused {kind} of {table}: {error}",
    "nothing_built": "it built nothing",
    "another_version_built": "it built version {built} instead of {version}",
    "another_operation_built": (
        "it built another operation than was submitted, since it drops some fields"
    ),
    "column_missing": (
        "{field} {{{field_id}: {column}}}: column missing. Leaf, packed and blob fields have a "
        "column, other nested fields have -1."
    ),
    "column_unexpected": (
        "{field} {{{field_id}: {column}}}: column unexpected. Leaf, packed and blob fields "
        "have a column, other nested fields have -1."
    ),
    "bad_value": "{field} {value!r}: bad value. Use true or false.",
    "data_file_missing": (
        "the data file {path} in {location} is not there; write it completely before the "
        "transaction, or correct its path"
    ),
    "data_file_cut": (
        "the data file {path} in {location} has {size} bytes instead of {expected}; write it "
        "completely before the transaction, or correct its path"
    ),
    "staged_manifest_unreadable": "the staged manifest {path} cannot be read: {error}",
    "staged_effect_differs": (
        "the staged manifest is not the head plus the effect of its {kind}: {what} {how}; "
        "stage it again from the head"
    ),
    "version_taken": "version {version} of {table} was staged, and version {next} is the next one.",
    "read_version_pruned": (
        "{kind} of {table} read version {read_version}; what came before version {oldest} is "
        "no longer compared."
    ),
    "deletion_file_unreadable": (
        "the deletion file {path} in {location} cannot be read ({error}); write it before the "
        "transaction"
    ),
    "deletion_file_missing": (
        "the deletion file {path} in {location} cannot be read ({error}); write it before the "
        "transaction"
    ),
    "conflict_incompatible": (
        "{kind} of {table} read version {read_version}; version {version}, {winner} by "
        "{transaction}, came first{where}{what}: {rule}."
    ),
    "conflict": (
        "{kind} of {table} read version {read_version}; version {version}, {winner} by "
        "{transaction}, came first{where}{what}: {rule}."
    ),
    "on_fragments": " on fragments {fragments}",
    "of_keys": " ({keys!j})",
    "file_part": "files[{path!r}]{part}",
    "primary_key_is_set": "{field} {value!r}: primary key is set. Leave the key as it is.",
    "primary_key_value_invalid": (
        "{field} {value!r}: primary key invalid. Give 'true' or a position."
    ),
    "clustering_key_is_set": "{field} {value!r}: clustering key is set. Leave the key as it is.",
    "clustering_key_value_invalid": (
        "{field} {value!r}: clustering key invalid. Give 'true' or a position."
    ),
}

ADVICE = {
    "conflict": "Read version {head} and do it again.",
    "conflict_incompatible": (
        "Look at version {head} before doing it again: it may mean something else now."
    ),
    "read_version_pruned": "Read version {head} and do it again.",
    "version_taken": "Read version {head} and stage it anew.",
}
