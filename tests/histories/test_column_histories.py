"""Random histories of columns; `python -m tests.histories.columns` lives through many more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumers.tools.verify import VerifyOptions, verify
from tests.histories.columns import ColumnHistory
from tests.service import Service, service


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("columns")) as made:
        yield made


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_columns_that_change_beside_others_hold_what_the_model_does(
    shared: Service, seed: int, tmp_path: Path
) -> None:
    tally: Counter[str] = Counter()
    ColumnHistory(shared, seed, tally).live()
    assert tally["compared"] == 20
    assert tally["beside a change of columns"] > 3
    verdict = verify(shared.log, 0, VerifyOptions(root=shared.root, contents=True))
    assert verdict.problems == []
