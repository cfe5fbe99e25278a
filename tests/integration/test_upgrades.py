"""Leaders of a former release beside ours, on a real cluster. COMMITLOG_TEST_FORMER names it.

It is a commit of this repository, or the folder of another checkout; without it nothing runs here.
"""

import os
from pathlib import Path

import pytest

from tests.upgrades.trial import run

FORMER = os.environ.get("COMMITLOG_TEST_FORMER", "")

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.mark.skipif(not FORMER, reason="COMMITLOG_TEST_FORMER names no former release")
def test_both_programs_lead_in_turn_and_the_log_is_upgraded(tmp_path: Path) -> None:
    run(FORMER, tmp_path)
