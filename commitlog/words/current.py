"""Words for readers of reasons that no log of protocols 1 to 3 has."""

from __future__ import annotations

WORDS: dict[str, str] = {
    "record_undecodable_in_short": "the record cannot be decoded: {problem}",
    "record_not_avro": "it does not begin with Avro's single-object marker",
    "record_of_unknown_schema": "the program that decided it does not know its schema",
    "record_broken": "its bytes do not fit its schema",
    "record_id_invalid": (
        "its id is empty, too long, or has characters other than printable ASCII without '/'"
    ),
    "record_key_differs": "its key names another transaction",
    "manifest_unusable_in_short": "{path} in {location} is not a manifest that can be read",
    "manifest_out_of_range": (
        "{path} in {location} is of version {version}, made {nanos} ns after 1970; versions begin "
        "with 1, and times are from 1970 to 2554"
    ),
    "features_unknown": (
        "{word} feature flags of the manifest include {features!j}, which this version does not "
        "support; upgrade it"
    ),
    "staged_manifest_unreadable_in_short": (
        "the staged manifest {path} is not a manifest that can be read"
    ),
    "deletion_file_missing_in_short": (
        "the deletion file {path} in {location} does not exist; write it before the transaction"
    ),
    "deletion_file_unreadable_in_short": (
        "the deletion file {path} in {location} cannot be read; write it before the transaction"
    ),
    "iceberg_not_json_in_short": "{what} is not JSON",
    "iceberg_metadata_not_gzip": "{what} is not gzip, as its name says",
    "iceberg_metadata_too_large": (
        "{what} has over {bytes_max} bytes, decompressed, or {values_max} values; expire snapshots"
    ),
    "iceberg_not_base64": "{place} is not base64",
    "iceberg_default_unfit": (
        "{place} is {value!r}, which is not a value of type {type} as Iceberg's metadata spells it"
    ),
    "iceberg_source_column_repeated": (
        "{what} is made from {name}, which is inside a list or a map: a row may have several values"
    ),
    "iceberg_digest_unusable": "{place} is {value!r}, not the 64 digits of a SHA-256",
    "iceberg_too_many_values": (
        "the changes have over {count_max} values; send them in several transactions"
    ),
    "iceberg_reference_differs": (
        "{table} cannot be registered: the file {location} has not the {size} bytes that the "
        "request names (its size is {found}); read it and ask again"
    ),
    "iceberg_reference_outside_root": (
        "{table} cannot be registered: {location} is not below the tables root {root}"
    ),
    "versions_exhausted": (
        "{table} is at version {version}, and there is no higher one. Copy it into a new table."
    ),
    "row_ids_exhausted": (
        "{field}: no row ids are left; the highest is {id_max}. Copy the table into a new one."
    ),
    "versions_held": (
        "versions {ranges!j} of {table} cannot be deleted: its properties hold {held!j}; release "
        "them first (log.release)"
    ),
    "lance_release_invalid": (
        "{release!r} is not a release of Lance; name one as 14.0.2 is named, of at most 64 "
        "characters"
    ),
    "base_path_invalid": "base path of {table}: {problem}",
    "base_path_not_allowed": (
        "base path {path} of {table} is neither a table of this log nor a place that its leader "
        "allows; name one below the tables root, or have the operator add it to allowed_locations"
    ),
    "iceberg_place_not_allowed": (
        "{table}: {location} is neither below the tables root nor a place that the log's leader "
        "allows; name one below the tables root, or have the operator add it to allowed_locations"
    ),
    "root_name_invalid": (
        "{root!r} is not a valid name of a root; begin with a small letter, and use at most 63 "
        "small letters, digits, '-' and '_'"
    ),
    "place_not_a_prefix": (
        "{place!r} is not a place as the log records it; give an absolute folder or URI, without "
        "a slash at its end"
    ),
    "place_without_tables": (
        "the log has no table below {place}; `commitlog places` shows what it has"
    ),
    "place_not_bound": (
        "{place} is not bound to a root; `commitlog places` shows which places are"
    ),
    "places_overlap": (
        "{place} overlaps {other}, which is bound to the root {root!r}; unbind that first"
    ),
    "root_taken": "the root {root!r} is that of {other} already; choose another name for {place}",
    "root_elsewhere": (
        "the leader does not have what is below {place} in a root {root!r}: it was started without "
        "this root, or with one at another place. Start it with --places {root}=WHERE, where the "
        "files of {place} are now (the root 'tables' is --tables-root, or ROOT/tables)"
    ),
    "incarnation_taken": (
        "{table} cannot have the incarnation {incarnation}, which is that of {owner}; give it one "
        "of its own, a new UUID"
    ),
    "version_below_newest": (
        "{table} cannot be registered at version {version}: the log committed its versions up to "
        "{newest}, and their numbers aren't given twice. Register version {newest} or a newer one, "
        "or a copy of the files at another place, as a new table"
    ),
    "place_not_there": (
        "the leader would look for the files of {place} there, but they are elsewhere. Start it "
        "with --places {place}=WHERE first, or move the files back"
    ),
    "operation_unusable": "{table}: {detail}",
    "name_unusable": "the {what} {name!r} {problem}",
    "name_nul": "holds a NUL character",
    "name_surrogate": "holds a lone surrogate, which isn't Unicode text",
    "name_too_long": "is longer than {bytes_max} bytes",
    "name_empty": "is empty",
    "name_dotted": "holds a dot or a backtick, so Lance can't read it; choose a name without them "
    "(fields of structs may have them)",
    "name_reserved": "is a name that Lance reserves",
    "name_of_dots": "is empty, '.' or '..'",
    "name_separated": "holds '/', '\\' or '$'",
    "name_control": "holds a control character",
    "name_too_deep": "has {parts} parts; a new name has {parts_max} at most",
    "part_too_long": "is longer than {characters_max} characters",
    "location_part_too_long": "has a part longer than {bytes_max} bytes",
    "schema_empty": "has no column",
    "column_name_twice": "has the name of another column",
    "column_id_unusable": "has the id {id}; ids are distinct, from 0 to 2**30",
    "column_before_parent": "comes before its parent {parent}",
    "column_too_deep": "is at level {level} of the schema; Lance reads {level_max} at most",
    "struct_empty": "is a struct without fields in another field",
    "struct_empty_before_others": "is a struct without fields before other columns, which Lance"
    " would read wrongly; put it last, or leave it out",
    "map_in_old_format": "is a map, which files of storage version {format} can't hold; use 2.2",
    "list_without_item": "has the type {kind} with other fields in it than its one item",
    "list_of_unsized": "has the type {kind}, and Lance writes lists of fixed size of numbers, times"
    " and bytes of one width only; use a list",
    "map_without_pair": "has the type map without a struct of a key and a value in it",
    "type_holds_no_fields": "has fields in it, and its type {kind} holds none",
    "type_unknown": "has the type {kind!r}, which Lance doesn't have",
    "extension_unfit": "is {extension} by its metadata and {kind} by its type",
    "extension_undescribed": "is {extension} without the metadata that this needs",
    "encoding_unknown": "has {value!r} for {key}, which is one of {known!j}",
    "encoded_otherwise": "does not hold {expected}; let Lance encode it",
    "index_uuid_unusable": "has a uuid of {bytes} bytes",
    "index_uuid_twice": "has the uuid of another index",
    "index_created_late": "was created at {time_ms} ms, after the year 9999",
    "index_bitmap_unreadable": "covers a set of fragments that is not a Roaring bitmap",
    "index_covers_others": "covers the fields {fields}, which are not among its own",
    "index_covers_all": "only covers its fields {fields}, and indexes none of them",
    "index_without_fields": "has no fields",
    "index_fields_missing": "is on the fields {fields}, which the schema doesn't have",
    "index_segments_differ": "has segments on different fields",
    "index_files_differ": "lists other files than before",
    "index_base_unknown": "names the base path {base}, which the table doesn't have",
    "index_details_empty": "has details without content",
    "index_details_missing": "has no {details}",
    "index_details_broken": "has {details} that cannot be decoded",
    "index_rows_unreadable": "lists moved rows in a form other than a Roaring treemap",
    "index_file_missing": (
        "the index file {path} in {location} does not exist; write it before the transaction"
    ),
    "index_file_cut": (
        "the index file {path} in {location} has {seen} bytes instead of {size}; write it "
        "completely before the transaction"
    ),
    "index_file_at_clone": (
        "the index file {path} is in {own}, and the manifest says that it is in {location}, where "
        "no reader finds it; compact a clone with log.compact"
    ),
    "index_file_unreadable": "the index file {path} in {location} cannot be decoded",
    "deletion_file_differs": (
        "the deletion file {path} in {location} holds {rows} rows, and its fragment of {of} rows "
        "says {said}"
    ),
    "field_id_mark_unusable": (
        "{table}: the manifest says that {value} was the last field id given; its fields go up to "
        "{lowest}, and ids end before {end}"
    ),
    "key_of_columns": "belongs to a column; Arrow would take the whole schema for such a type",
    "managed_blobs_unusable": "{table}: lance.blob.managed is {value!r}; use true or false",
    "table_format_unknown": "{table}: unknown file format {format!r}; use one of {known!j}",
    "headers_too_large": (
        "{table}: the schemas, config and base paths of this record's versions, and the manifests "
        "that it registers, take {bytes} bytes together, and {most} is the limit. Make several "
        "changes of one table's config one operation, or send several records"
    ),
    "manifests_too_large": (
        "{table}: the manifests that this record names have {bytes} bytes together, and {most} is "
        "the limit. Send several records"
    ),
    "base_path_moved": (
        "{field} {value!r}: the base path of this id would be {path!r}, where the file isn't. Keep "
        "the path of each base that files use; give another place an id of its own."
    ),
    "base_path_ids_twice": "{table}: two base paths have one id; give each its own",
    "field_of_another_type": (
        "field {field} of {table} would have another type or encoding than its files; give a "
        "changed column another id"
    ),
    "staged_counter_unusable": (
        "the version's {counter} would be {value}, outside of {lowest} to {highest}; make it "
        "again from the head"
    ),
    "lineage_missing": "{field} has no data file with its {value}",
    "lineage_unreadable": "{field} has {value} that cannot be decoded",
    "row_versions_missing": "{field} has {value} for {count} of its {rows} rows",
    "row_ids_missing": "{field} has {value} row ids for its {rows} rows",
    "rows_differ": "{field} has {rows} rows, not {value}",
    "row_ids_differ": "{field}: the rows of a fragment keep their ids",
    "fields_differ": "{field} holds the fields {holds}, not {value}",
    "file_differs": "{field} is not what it was",
    "rows_range_not_next": (
        "writes of rows to {table} after position {after} are applied already: through {applied}; "
        "another row writer is ahead"
    ),
    "rows_range_differs": (
        "{count} writes of rows to {table} are named after position {after} and through {through}, "
        "and the log accepted {accepted} others; read again what it accepted"
    ),
    "rows_stale": (
        "columns of the writes of rows to {table} at positions {positions!j} were dropped since; "
        "refuse these writes"
    ),
    "rows_expired_wrong": (
        "{key} of {table} can't be {value!r}: it goes from {after} up to {applied}, through which "
        "rows are applied; leave it to `commitlog archive --expire-rows`"
    ),
    "rows_applied_twice": "two operations apply rows to {table}; name one range",
    "rows_malformed": (
        "the write to {table} has impossible counts or hashes; let the client make the record"
    ),
    "rows_too_large": (
        "{size} bytes of rows for {table} are more than a record's {size_max}; put them into a "
        "file of their own"
    ),
    "rows_settings_wrong": "settings of an upsert don't fit the mode {mode} of a write to {table}",
    "rows_key_wrong": "the key {key!j} doesn't fit the mode {mode} of a write to {table}",
    "rows_key_missing": (
        "the rows for {table} lack the key's columns {key!j}; they have {columns!j}"
    ),
    "rows_keys_differ": (
        "one transaction writes rows to {table} by the key {key!j} and by {other!j}; split it"
    ),
    "rows_key_null": "the key's columns {key!j} hold nulls in rows for {table}; give them values",
    "rows_columns_unknown": (
        "rows for {table} have columns that it doesn't have: {columns!j}; open it again"
    ),
    "rows_schema_differs": (
        "rows for {table} are of other types than its columns are now; open it again"
    ),
    "rows_nulls": "columns {columns!j} of {table} may not be null, and the rows have no value",
    "rows_backlog_full": (
        "{count} writes of {size} bytes wait to be applied to {table}; try again later, and make "
        "sure that a row writer runs"
    ),
    "rows_path_wrong": "{path!r} is not a file in the folder {folder} of {table}",
    "iceberg_warehouse_not_a_position": (
        "{value!r} is not a position of the log; use `at:` and a sequence, one for each partition "
        "with commas between, or `at:now`"
    ),
    "iceberg_uuid_taken": (
        "{table} would have the uuid {uuid} of {owner}, and each would change the other's files; "
        "rename or deregister {owner}"
    ),
    "iceberg_not_rebased": "{failed}; it could not be rebased: {problem}",
    "iceberg_rebase_off": (
        "the table's property {property} is {value!r}; 'append' and 'serializable' rebase"
    ),
    "iceberg_changes_more_than_rows": "it also asks for {actions!j}",
    "iceberg_snapshots_not_a_chain": "snapshot {snapshot} does not follow the one before it",
    "iceberg_snapshot_not_rebasable": "snapshot {snapshot} cannot be put over another",
    "iceberg_checked_by_its_client": (
        "snapshot {snapshot} publishes what another snapshot may have published since; only its "
        "client can check that"
    ),
    "iceberg_numbers_taken": (
        "others took the sequence number or row ids that a snapshot was to have, and it could not"
        " be rebased: {problem}; read the table again"
    ),
    "iceberg_head_without_row_ids": (
        "the rows of snapshot {snapshot}, which is from before the table had format version 3, get"
        " their row ids from the next commit that has read it"
    ),
    "iceberg_format_changed_since": (
        "snapshot {snapshot} was written before the table had format version {format_version}"
    ),
    "iceberg_schema_changed_since": (
        "snapshot {snapshot} was written with another schema than the table has now"
    ),
    "iceberg_spec_changed_since": (
        "manifest {path} was written with partition spec {spec}, not the table's default"
    ),
    "iceberg_read_elsewhere": (
        "what it read is not an ancestor of the branch's head, so it is unknown what its "
        "{operation} missed"
    ),
    "iceberg_overtakes": (
        "its operation {operation} would overtake {overtaken!j} that it had not read"
    ),
    "iceberg_merge_overtakes": (
        "a MERGE may have added its rows because it had not read {overtaken!j}; read again, or set "
        "write.merge.isolation-level to snapshot"
    ),
    "iceberg_list_outside_root": "{path} is not below the tables root",
    "iceberg_list_missing": "{path} does not exist",
    "iceberg_list_unusable": (
        "{path} is not a manifest list or manifest of at most {bytes_max} bytes that this server "
        "can rewrite"
    ),
    "iceberg_manifest_rewritten": "manifest {path} was replaced by another writer",
    "iceberg_files_removed_since": "manifest {path} deletes rows or files that it had not read of",
    "iceberg_manifest_encrypted": "manifest {path} is encrypted",
    "iceberg_append_removes": "manifest {path} removes files, and its operation is append",
    "iceberg_no_such_view": "View does not exist: {view}",
    "iceberg_view_twice": "{view} is changed twice",
    "iceberg_view_schema_unknown": (
        "a view version has the schema {schema}, which the view doesn't have"
    ),
    "iceberg_view_dialect_twice": "a view version has two representations in {dialect!r}",
    "iceberg_view_version_unknown": "the view has no version {version}",
    "iceberg_view_not_whole": "{view} needs a location, and a version that is current",
    "iceberg_read_only": (
        "{table} is a second name of a table, which is read only; commit to the table by its first"
        " name, or deregister {table}"
    ),
    "json_field_twice": "the {what} has the field {name!r} twice; give it once",
    "header_not_a_uuid": "header {header} is {value!r}, which is not a UUID",
}
"""Templates by the name of the reason, as in `FROZEN`; those in short need no library's words."""

_REDO = "Read version {head} and redo the operation."
_DECIDE = "Read version {head} and decide again."
ADVICE: dict[str, str] = {
    "conflict": _REDO,
    "read_version_pruned": _REDO,
    "conflict_incompatible": (
        "Check version {head} before you redo the operation: it may mean something else now."
    ),
    "version_taken": "Read version {head} and stage it again.",
    "expected_version_differs": _DECIDE,
    "rows_may_have_changed": _DECIDE,
    "expected_version_pruned": _DECIDE,
    "key_may_have_come": _DECIDE,
}
"""What the losing writer does next, where it differs from `FROZEN_ADVICE`."""
