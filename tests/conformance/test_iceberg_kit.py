"""Does Iceberg's own REST Compatibility Kit pass against `commitlog up`?

`python -m infra.iceberg_kit` fetches its jars, 97 MB, and runs it; here it runs if they are there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from consumers.broker.pins import mismatches
from consumers.runtime.places import MARKS
from infra import iceberg_kit, maven_jars
from tests.integration.test_up import NO_ROW_PROCESSES, log_on, service
from tests.older_java import skip_on_new_java

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PASSES = 146
"""As many as pass against Iceberg's own server; the others need what is optional."""


def test_the_kit_passes_over_the_log(broker: Any, tmp_path: Path) -> None:
    skip_on_new_java("Iceberg's Compatibility Kit")
    jars = maven_jars.fetch(iceberg_kit.PINS)
    root = tmp_path / "root"
    place = ("--tables-root", str(iceberg_kit.TABLES_ROOT))
    with service(root, *log_on(broker), *place, *NO_ROW_PROCESSES) as running:
        result = iceberg_kit.run(f"http://127.0.0.1:{running.port}", jars)
    for mark in (iceberg_kit.TABLES_ROOT / MARKS).glob("*.json"):
        if running.log in mark.read_text():  # or files below would be left to that log for ever
            mark.unlink()
    print(result)
    assert set(result.failures) <= {iceberg_kit.JAVA_ONLY}
    assert result.counts["successful"] >= PASSES


def test_a_jar_that_differs_is_not_taken(tmp_path: Path) -> None:
    jars = maven_jars.pinned(iceberg_kit.PINS)[:1]
    assert mismatches(tmp_path, jars)
    (tmp_path / jars[0].file_name).write_bytes(b"something else")
    assert mismatches(tmp_path, jars)
