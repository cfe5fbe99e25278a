"""Some programs of others run on no new Java; a machine may have no older one."""

from __future__ import annotations

import pytest

from commitlog.java import find_java
from commitlog.spark.session import NO_SUBJECT_FROM


def skip_on_new_java(what: str) -> None:
    """Skip a test of what has an older Hadoop in it."""
    java = find_java()
    if java.version >= NO_SUBJECT_FROM:
        pytest.skip(f"{what} needs Java 17 to {NO_SUBJECT_FROM - 1}; {java.path} is {java.version}")
