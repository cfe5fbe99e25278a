"""Which code a command ends with, and what it says of an error of the system."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest

from commitlog import errors
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import MemoryCluster
from commitlog.errors import CommitLogError
from consumers.commands.exit_codes import ExitCode, exit_code, in_one_line, is_final
from consumers.runtime import places


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.NoSuchTable("x"), ExitCode.REFUSED),
        (errors.OutcomeUnknown("x", "id"), ExitCode.UNKNOWN),
        (errors.Overloaded("x", 1.0), ExitCode.UNAVAILABLE),
        (errors.CorruptLog("x"), ExitCode.STOP),
        (errors.WrongLog("x"), ExitCode.STOP),
        (MemoryError(), ExitCode.UNAVAILABLE),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
        (RuntimeError("Query interrupted"), ExitCode.INTERRUPTED),
        (ZeroDivisionError(), ExitCode.BUG),
    ],
)
def test_errors_have_exit_codes(error: BaseException, code: ExitCode) -> None:
    assert exit_code(error) is code


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (OSError("Generic S3 error: error sending request"), ExitCode.UNAVAILABLE),
        (OSError(errno.ESTALE, os.strerror(errno.ESTALE), "x"), ExitCode.UNAVAILABLE),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES), "x"), ExitCode.MACHINE),
    ],
)
def test_a_part_is_started_again_if_the_store_of_the_tables_was_away(
    failure: OSError, code: ExitCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Mock(size=Mock(side_effect=failure), names=Mock(side_effect=failure))
    monkeypatch.setattr(places, "store_for", lambda root: store)
    with closing(MemoryLog(MemoryCluster())) as log:
        log.create(tables_root="s3://bucket/tables")
        with pytest.raises(CommitLogError) as looked:
            places.is_in_place(log)
    with pytest.raises(CommitLogError) as noted:
        places.noted_logs("s3://bucket/tables")
    for refused in (looked.value, noted.value):
        assert exit_code(refused) is code
        assert is_final(code) is (code is ExitCode.MACHINE)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EACCES, ExitCode.MACHINE),
        (errno.EIO, ExitCode.MACHINE),
        (errno.ENOTEMPTY, ExitCode.MACHINE),
        (errno.EXDEV, ExitCode.MACHINE),
        (errno.EBUSY, ExitCode.MACHINE),
        (errno.EMLINK, ExitCode.MACHINE),
        (errno.EFBIG, ExitCode.MACHINE),
        (errno.ESTALE, ExitCode.UNAVAILABLE),
        (errno.ENOTCONN, ExitCode.UNAVAILABLE),
        (errno.ETIMEDOUT, ExitCode.UNAVAILABLE),
        (errno.EHOSTDOWN, ExitCode.UNAVAILABLE),
    ],
)
def test_what_the_system_says_of_a_file_is_no_bug(number: int, code: ExitCode) -> None:
    error = OSError(number, os.strerror(number), "/tables/a", None, "/tables/b")
    assert exit_code(error) is code
    # A part that waits for its files is started again.
    assert is_final(code) is (code is ExitCode.MACHINE)
    assert in_one_line(error).startswith(f"/tables/a -> /tables/b: {os.strerror(number)}")
    assert ("mount" in in_one_line(error)) is (code is ExitCode.UNAVAILABLE)
    assert exit_code(OSError(errno.EBADF, os.strerror(errno.EBADF))) is ExitCode.BUG


@pytest.mark.parametrize("error", [MemoryError(), pa.ArrowMemoryError("malloc of 9\nfailed")])
def test_memory_that_ran_out_is_told_with_what_to_do(error: MemoryError) -> None:
    said = in_one_line(error)
    assert said.startswith("memory ran out")
    assert said.endswith("free some, give this process more, or ask for less at once")
    assert ("(malloc of 9 failed)" in said) is bool(str(error))
    assert not is_final(exit_code(error)), "`up` starts such a part again"


def test_the_system_names_both_files_of_a_rename(tmp_path: Path) -> None:
    with pytest.raises(OSError) as raised:  # noqa: PT011
        (tmp_path / "a").rename(tmp_path / "b")
    assert in_one_line(raised.value).startswith(f"{tmp_path}/a -> {tmp_path}/b: No such file")
