"""What to do instead of setting an option that this format doesn't have.

A job that moves here brings options of Delta, Iceberg or Spark's Kafka connector along. For those,
the nearest name of ours is the wrong advice: `replaceWhere` is near `places`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from commitlog.adapters.kafka_file import is_secret

KAFKA_PREFIX = "kafka."
_OF_KAFKA = ("sasl.", "security.", "ssl.")

_COLUMNS = (
    "Leave it out. To change the table's columns, use `CommitLog.add_columns`, `alter_columns` or"
    " `drop_columns` first"
)
_NO_PARTITIONS = (
    "Leave it out: tables have no partitions, and mode 'overwrite' replaces all rows. To replace"
    " some, use `CommitLog.delete` and append, or `commitlog.spark.merge`"
)
_CHANGES = "Set read='changes' instead, with startingVersion or startingTimestamp"
_ALL_CHANGES = (
    "Leave it out: a stream of changes (read='changes') has deletes and updates as rows, by"
    " `_change_type`"
)
_WITHOUT = "Leave it out: it has no effect here"
_FIRST = "Set startingVersion of a table's changes, or startingPosition of the log's"

INSTEAD = {
    "mergeSchema": _COLUMNS,
    "merge-schema": _COLUMNS,
    "overwriteSchema": _COLUMNS,
    "replaceWhere": _NO_PARTITIONS,
    "replaceOn": _NO_PARTITIONS,
    "replaceUsing": _NO_PARTITIONS,
    "partitionOverwriteMode": _NO_PARTITIONS,
    "overwrite-mode": _NO_PARTITIONS,
    "maxRecordsPerFile": "Use rowsPerFile",
    "target-file-size-bytes": "Use bytesPerFile",
    "compression": _WITHOUT,
    "optimizeWrite": _WITHOUT,
    "dataChange": _WITHOUT,
    "fanout-enabled": _WITHOUT,
    "distribution-mode": _WITHOUT,
    "isolation-level": _WITHOUT,
    "readChangeFeed": _CHANGES,
    "readChangeData": _CHANGES,
    "start-snapshot-id": _CHANGES,
    "end-snapshot-id": "Use endingVersion",
    "endingTimestamp": "Use endingVersion",
    "stream-from-timestamp": "Use startingTimestamp",
    "ignoreDeletes": _ALL_CHANGES,
    "ignoreChanges": _ALL_CHANGES,
    "skipChangeCommits": _ALL_CHANGES,
    "streaming-skip-delete-snapshots": _ALL_CHANGES,
    "streaming-skip-overwrite-snapshots": _ALL_CHANGES,
    "streaming-max-files-per-micro-batch": "Use maxFilesPerTrigger",
    "streaming-max-rows-per-micro-batch": "Use maxRowsPerTrigger",
    "maxBytesPerTrigger": "Use maxRowsPerTrigger or maxFilesPerTrigger",
    "snapshot-id": "Use versionAsOf",
    "as-of-timestamp": "Use timestampAsOf",
    "branch": "Use tag, versionAsOf, timestampAsOf or positionAsOf",
    "split-size": "Use rowsPerPartition",
    "startingOffsets": _FIRST,
    "startingOffsetsByTimestamp": "Use startingTimestamp of a table's changes",
    "subscribe": "Use log, the log's name, or table",
    "maxOffsetsPerTrigger": "Use maxRowsPerTrigger",
    "failOnDataLoss": "Leave it out: a stream always fails rather than leave out rows",
}
"""The option as its format has it, and the advice."""
_BY_NAME = {name.lower(): advice for name, advice in INSTEAD.items()}


def advice_about(name: str, known: Mapping[str, str], shown: Sequence[str]) -> str:
    """Return what to do about an unknown option, in lower case.

    `known` has the options of this use by their names in lower case; `shown` are those to list.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    if name.startswith(_OF_KAFKA):
        if is_secret(name):
            return f"Put {name} into the properties file that option 'kafkaFile' names"
        return f"Did you mean {KAFKA_PREFIX + name!r}?"
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"Did you mean {known[near[0]]!r}?" if near else f"Known are {', '.join(shown)}"
