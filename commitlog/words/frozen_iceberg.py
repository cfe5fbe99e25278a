"""Words of refusals that logs of protocols 1 to 3 hash: of changes to Iceberg tables.

None may be changed or removed; the test of frozen words sees to it.
"""

from __future__ import annotations

TEMPLATES = {
    "iceberg_nothing_added": "-1 means the last added {what}, but this request has added none",
    "iceberg_no_current_schema": (
        "the table has no current schema yet; add one before what refers to it"
    ),
    "iceberg_format_version_text": "{place} is {version!r}; this server knows {known}",
    "iceberg_source_unknown": "{place} is {source}, which the schema doesn't have",
    "iceberg_no_such_namespace": "Namespace does not exist: {namespace}",
    "iceberg_default_spec_unknown": "the default partition spec {spec} is not a known spec",
    "iceberg_default_order_unknown": "the default sort order {order} is not a known order",
    "iceberg_snapshot_log_ends_elsewhere": (
        "the newest entry of the snapshot log would not be the current snapshot"
    ),
    "iceberg_snapshot_in_future": (
        "snapshot {snapshot} has the time {time}, more than a minute after now ({now})"
    ),
    "iceberg_snapshot_before_previous": (
        "snapshot {snapshot} has the time {time}, more than a minute before {previous}, the "
        "snapshot log's entry before it"
    ),
    "iceberg_property_not_a_number": "property {property} is {value!r}, not a number",
    "iceberg_field_ids_incomplete": (
        "{place} gives ids to some of its fields; give them to all or to none"
    ),
    "iceberg_field_ids_twice": "{place} gives one id to two fields",
    "iceberg_direction_invalid": "{place} must be 'asc' or 'desc'",
    "iceberg_null_order_invalid": "{place} must be 'nulls-first' or 'nulls-last'",
    "iceberg_partition_ids_not_dense": (
        "format version 1 needs the partition field ids {expected}, not {ids}"
    ),
    "iceberg_partition_name_of_column": (
        "partition field {name!r} has the name of a column that it is not made from"
    ),
    "iceberg_spec_is_default": "partition spec {spec} is the default: set another",
    "iceberg_partition_name_twice": "{place} uses the name {name!r} a second time",
    "iceberg_format_version": "{place} is {value}; this server knows {known}",
    "iceberg_current_schema_unlisted": "{place} is {value}, which is not among the schemas",
    "iceberg_default_spec_unlisted": "{place} is {value}, which is not among the partition specs",
    "iceberg_current_snapshot_not_main": (
        "{place} has the current snapshot {snapshot}, but main names {main}"
    ),
    "iceberg_ref_snapshot_unlisted": (
        "{place} has the ref {name} to snapshot {snapshot}, which isn't there"
    ),
    "iceberg_not_a_location": (
        "{what} is {location!r}; it must be an absolute path or URI without '..' in it"
    ),
    "iceberg_codec_unknown": "property {property} is {codec!r}; it must be 'none' or 'gzip'",
    "iceberg_not_uuid": "{place} is {value!r}, which is not a UUID",
    "iceberg_uuid_is_set": "the table has the uuid {uuid}; it cannot become {asked}",
    "iceberg_format_version_lower": "format version {current} cannot go back to {version}",
    "iceberg_nested_too_deep": "{what} is nested deeper than {levels} levels",
    "iceberg_not_an_object": "{place} must be an object, not {found}",
    "iceberg_not_an_array": "{place} must be an array, not {found}",
    "iceberg_not_a_string": "{place} must be a string, not {found}",
    "iceberg_empty": "{place} must not be empty",
    "iceberg_not_an_integer": "{place} must be an integer, not {found}",
    "iceberg_out_of_range": "{place} is {value}, which is not between {low} and {high}",
    "iceberg_not_a_boolean": "{place} must be a boolean, not {found}",
    "iceberg_not_unicode": "{place} is not Unicode text: it holds a lone surrogate",
    "iceberg_too_many_tables": "{place} has {count} tables; a transaction may change {count_max}",
    "iceberg_another_table": "{place} names another table than the address",
    "iceberg_too_many_updates": (
        "{place} has {count} updates; a table may have {count_max} in one transaction"
    ),
    "iceberg_table_twice": (
        "table-changes[{i}].identifier names {table}, which table-changes[{first}] names "
        "already: put all updates of a table in one item"
    ),
    "iceberg_requirement_of_new_table": (
        "{place} holds {requirement} and {other}, but a table that must not exist yet has "
        "nothing else to require"
    ),
    "iceberg_one_of": "{place} is {value!r}; it must be one of {known!j}",
    "iceberg_no_such_schema": "schema {schema} cannot be current: the table has no such schema",
    "iceberg_schema_is_current": "schema {schema} is the current one: set another",
    "iceberg_not_a_struct": "{place} must be 'struct'",
    "iceberg_nested_type_unknown": (
        "{place} is {value!r}; a nested type is a struct, a list or a map"
    ),
    "iceberg_identifier_unknown": "{place} names field {value}, which the schema doesn't have",
    "iceberg_identifier_type": "{place} names {name} of type {type}, which cannot identify a row",
    "iceberg_identifier_optional": (
        "{place} names {name}, which is optional; an identifier field is required"
    ),
    "iceberg_field_id_twice": "{place} gives id {field_id} to {name}, which {owner} has",
    "iceberg_field_name_twice": "{place} names two fields {name}",
    "iceberg_type_needs_version_3": (
        "field {name} has the type {type}, which needs format version 3; the table has "
        "{format_version}"
    ),
    "iceberg_default_needs_version_3": (
        "field {name} has an initial default, which needs format version 3; the table has "
        "{format_version}"
    ),
    "iceberg_type_unknown": "{place} is {value!r}, which is not a type",
    "iceberg_identifier_nested": (
        "{place} names {name}, which lies in {above}: not a required struct"
    ),
    "iceberg_added_rows_missing": "{place} has a first-row-id but no added-rows",
    "iceberg_snapshot_exists": "snapshot {snapshot} is in the table already",
    "iceberg_first_row_id_missing": (
        "snapshot {snapshot} has no first-row-id, which format version {format_version} needs"
    ),
    "iceberg_first_row_id_stale": (
        "snapshot {snapshot} has the first-row-id {first}, but the table's next-row-id is "
        "{next_row_id}: read the table again"
    ),
    "iceberg_row_ids_exhausted": "snapshot {snapshot} has row ids up to {following}",
    "iceberg_ref_type_unknown": "{place} is {value!r}; it must be 'branch' or 'tag'",
    "iceberg_main_not_a_branch": "{place} is 'tag', but main must be a branch",
    "iceberg_no_such_snapshot": "{name} cannot name snapshot {snapshot}: the table has none such",
    "iceberg_snapshot_too_early": "a snapshot cannot be added before a {what}",
    "iceberg_sequence_number_in_version_1": (
        "snapshot {snapshot} has the sequence number {number}; format version 1 has none"
    ),
    "iceberg_sequence_number_stale": (
        "snapshot {snapshot} has the sequence number {number}, but the table's last one is "
        "{last}: read the table again and use a higher one"
    ),
    "iceberg_not_for_tags": "{place} is not for tags",
    "iceberg_sequence_number_lower": (
        "snapshot {snapshot} has the sequence number {number}, below the table's last one, {last}"
    ),
    "iceberg_transform_unknown": (
        "{place} is {value!r}, which is not a transform that this server knows"
    ),
    "iceberg_source_column_unknown": (
        "{what} needs column {source_id}, which the current schema doesn't have"
    ),
    "iceberg_transform_type": "{what} cannot apply {transform} to {name} of type {type}",
    "iceberg_width_invalid": "{place} is {value!r}; the width must be between 1 and {width_max}",
    "iceberg_action_unknown": (
        "{place} is {value!r}, which this server cannot apply; it knows {known!j}"
    ),
    "iceberg_register_not_alone": "{action} must be the only update",
    "iceberg_location_taken": (
        "table {table}: {location} is, contains or lies in the location of table {owner}; "
        "choose another one"
    ),
    "iceberg_metadata_behind_file": (
        "table {table}: its metadata would go to {root}/{path}, but {root}/{folder} is a file; "
        "choose another location"
    ),
    "iceberg_table_replaced": (
        "table {table} is now {uuid}, not {expected}: it was dropped and made again"
    ),
    "iceberg_an_object": "an object",
    "iceberg_an_array": "an array",
    "iceberg_a_string": "a string",
    "iceberg_a_boolean": "a boolean",
    "iceberg_null_value": "null",
    "iceberg_a_number": "the number {number}",
    "iceberg_add_schema": "a schema (add-schema)",
    "iceberg_set_current_schema": "a current schema (set-current-schema)",
    "iceberg_add_spec": "a partition spec (add-spec)",
    "iceberg_add_sort_order": "a sort order (add-sort-order)",
    "iceberg_set_location": "a location (set-location)",
    "iceberg_outside_root": "is not below the log's tables root {root}",
    "iceberg_uri_character": "has a character that means another one in a URI; use a plain path",
    "iceberg_part_too_long": "has a part longer than {bytes_max} bytes",
    "iceberg_location_too_long": "is longer than {bytes_max} bytes",
    "iceberg_place_refused": "{problem}",
    "iceberg_location_not_allowed": "table {table}: the location {location} {problem}",
    "iceberg_no_such_table": "Table does not exist: {table}",
    "iceberg_not_an_iceberg_table": "Table is not an Iceberg table: {table}",
    "iceberg_requirement_failed": "Transaction failed: requirement not met for table {tables!j}",
    "iceberg_requirements_failed": "Transaction failed: requirement not met for tables {tables!j}",
    "iceberg_in_table": "table {table}: {problem}",
    "iceberg_not_json": "{what} is not JSON: {error}",
    "iceberg_null": "{place} must not be null",
    "iceberg_missing": "{place} is missing",
    "iceberg_name_unusable": "{place} is not usable: {error}",
    "iceberg_update_missing": "a new table needs {what} among its updates",
    "iceberg_partition_field": "partition field {part!r}",
    "iceberg_sort_field": "a sort field",
}
