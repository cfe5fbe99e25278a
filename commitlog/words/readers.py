"""Words for readers, where they differ from the frozen ones or a reason is newer than those."""

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
    "versions_deleted_already": (
        "versions {ranges!j} of {table} cannot be deleted: {deleted!j} are deleted already; name "
        "versions that exist"
    ),
    "base_path_invalid": "base path of {table}: {problem}",
    "base_path_not_allowed": (
        "base path {path} of {table} is neither a table of this log nor a place that its leader "
        "allows; name one below the tables root, or have the operator add it to allowed_locations"
    ),
    "body_too_large": "body is larger than {bytes_max} bytes",
    "header_not_a_uuid": "header {header} is {value!r}, which is not a UUID",
}
"""Templates by the name of the reason, as in `FROZEN`; those in short need no library's words."""

ADVICE: dict[str, str] = {}
"""What whoever lost does next, where it differs from `FROZEN_ADVICE`."""
