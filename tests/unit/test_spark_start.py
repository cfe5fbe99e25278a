"""Is an archive of Spark's classes made once, also where making it fails?"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from tests import spark_start


@pytest.mark.slow  # PySpark is imported
@pytest.mark.parametrize("is_made", [True, False], ids=["made", "failed"])
def test_an_archive_is_tried_once_in_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_made: bool
) -> None:
    tries: list[Path] = []

    def archive(scratch: Path, classes: Path) -> None:
        tries.append(classes)
        if is_made:
            classes.touch()

    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(spark_start, "_archive", archive)
    monkeypatch.setattr(spark_start, "_serve_workers", lambda: None)
    for name in ("SPARK_HOME", "SPARK_SUBMIT_OPTS"):
        monkeypatch.setenv(name, "")
    for _ in range(3):
        spark_start._prepare.__wrapped__()
    assert len(tries) == 1
    assert bool(os.environ["SPARK_SUBMIT_OPTS"]) is is_made
    if not is_made:
        long_ago = time.time() - 2 * spark_start.AGAIN_SECONDS
        os.utime(tries[0].with_name("failed"), (long_ago, long_ago))
        spark_start._prepare.__wrapped__()
        assert len(tries) == 2
