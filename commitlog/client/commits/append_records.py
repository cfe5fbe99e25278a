"""The record of an append of new files in one step of machine code: what most writers submit.

`submission.py` is the reference. It also does whatever isn't plain here, and says what is wrong.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import lance

from commitlog.client.commits.catalogue import now_ms
from commitlog.client.commits.submission import are_there
from commitlog.client.leader.tickets import Ticket
from commitlog.client.rows.host import Host, TableName
from commitlog.client.rows.lance_request import new_transaction_id
from commitlog.codecs.avro import encode_transaction
from commitlog.codecs.avro_compiled import write_bytes, write_long, write_text
from commitlog.codecs.lanes import ENCODE_APPEND_RECORD, Around
from commitlog.core.log.attribution import attributed
from commitlog.model.limits import RECORD_BYTES_MAX
from commitlog.model.operations import LanceCommit
from commitlog.model.records import Transaction
from commitlog.model.table import TableId, parse_table_id

_ID, _TIME, _VERSION, _MESSAGE = "f3a1c7e95b2d4860", 0x3A5C96E17B24D80F, 0x5E19, b"\xff9d27ae41"
"""Found again in the record of a sample, since nothing else in it has these bytes."""
_REST = write_long(0) * 8
"""The end of the sample: a summary of nothing, and no more operations."""


def submit_append(
    log: Host, table_id: TableName, operation: Any, read_version: int | None, principal: str
) -> Ticket | None:
    """Submit an append under a new id; None, and nothing is sent, if it isn't a plain one."""
    if ENCODE_APPEND_RECORD is None or type(operation) is not lance.LanceOperation.Append:
        return None
    table = parse_table_id(table_id)
    info = log.describe(table, fresh=False)
    version = read_version or 0
    if version > info.version:
        return None
    transaction_id = new_transaction_id()
    made = ENCODE_APPEND_RECORD(
        operation.fragments,
        version,
        transaction_id,
        now_ms(),
        around(table, info.incarnation, principal),
    )
    if made is None or len(made[0]) > RECORD_BYTES_MAX or not are_there(info, made[1]):
        return None
    return log.runtime().submit_record(table, transaction_id, made[0])


@lru_cache(maxsize=1024)
def around(table: TableId, incarnation: str, principal: str) -> Around:
    """Return what all records of a writer's appends to a table have in common."""
    commit = LanceCommit(table, "Append", _VERSION, _MESSAGE, incarnation=incarnation)
    sample = Transaction(_ID, (commit,), principal=principal, submitted_at_ms=_TIME)
    rest = encode_transaction(attributed(sample))
    before_id, _, rest = rest.partition(write_text(_ID))
    before_time, _, rest = rest.partition(write_long(_TIME))
    before_version, _, rest = rest.partition(write_long(_VERSION) + write_bytes(_MESSAGE))
    return before_id, before_time, before_version, rest.removesuffix(_REST)
