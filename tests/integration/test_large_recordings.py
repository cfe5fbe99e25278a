"""Is a manifest too large for its outcome proven and built again as every other one is?"""

from __future__ import annotations

from pathlib import Path

import lance
import pytest

from commitlog.adapters.recordings import RECORDINGS
from commitlog.model.limits import OUTCOME_INLINE_BYTES_MAX
from consumers.tools.replay.replay import ReplayOptions, replay
from consumers.tools.verify import VerifyOptions, verify
from tests.service import Service, rows, service
from tests.verified import index_whole

pytestmark = pytest.mark.usefixtures("nobody_writes")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Service:
    """A service that was stopped, with a table whose registered manifest is large."""
    with service(tmp_path_factory.mktemp("large")) as running:
        described = rows(1, 2).replace_schema_metadata({"about": "x" * OUTCOME_INLINE_BYTES_MAX})
        lance.write_dataset(described, str(running.root / "elsewhere"))
        running.client.register_table("taken", str(running.root / "elsewhere"))
        running.client.append("taken", rows(3))
        index_whole(running.log, running.root)
        assert len(list((running.root / "tables" / RECORDINGS).iterdir())) == 1
    return running


def test_it_is_verified_with_rows_and_index(made: Service, tmp_path: Path) -> None:
    options = VerifyOptions(root=made.root, contents=True, state=tmp_path)
    verdict = verify(made.log, 0, options)
    assert verdict.problems == []
    assert verdict.decided_again == verdict.outcomes == 3
    assert verdict.index_rows > 5


def test_it_is_built_again_with_the_index(made: Service, tmp_path: Path) -> None:
    result = replay(made.log, 0, ReplayOptions(tmp_path, against=made.root))
    assert result.problems == []
    assert result.is_equal
    assert result.index_rows > 5
