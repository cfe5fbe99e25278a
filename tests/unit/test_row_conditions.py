"""Does a condition that ends its process cost the row writer nothing but that condition?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from commitlog.client.accepted.row_shapes import NotForTheLog
from commitlog.client.accepted.row_writes import settings_of
from commitlog.client.rows.merging import MergeOptions
from commitlog.client.rows.row_groups import RowsUnusable
from commitlog.model.operations import RowsMode
from consumers.tools.rows import conditions as row_conditions
from consumers.tools.rows.conditions import ConditionLost, Conditions

TARGET, SOURCE = pa.table({"id": [1, 2]}), pa.table({"id": [2, 2]})


@pytest.fixture
def conditions() -> Iterator[Conditions]:
    made = Conditions()
    yield made
    made.close()


@pytest.mark.slow
def test_conditions_hold_or_not_or_are_refused(conditions: Conditions) -> None:
    assert conditions.fulfilling(TARGET, SOURCE, "target.id = source.id") == [1]
    with pytest.raises(RowsUnusable, match="can't be evaluated") as refused:
        conditions.fulfilling(TARGET, SOURCE, "nothing = 1")
    assert refused.value.code == "ROWS_REFUSED"
    assert conditions.fulfilling(TARGET, SOURCE, "true") == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "deadly",
    [
        "target.id > " + "+".join(["source.id"] * 3_000),
        "array_length(array_repeat(1, target.id * 100000000000)) > 1",
    ],
    ids=["deep", "large"],
)
def test_a_condition_that_ends_its_process_is_lost_alone(
    conditions: Conditions, deadly: str
) -> None:
    with pytest.raises(ConditionLost, match="ended the process"):
        conditions.fulfilling(TARGET, SOURCE, deadly)
    assert conditions.fulfilling(TARGET, SOURCE, "true") == [0, 1]


@pytest.mark.slow
def test_a_condition_without_an_end_is_lost(
    conditions: Conditions, monkeypatch: pytest.MonkeyPatch
) -> None:
    conditions.fulfilling(TARGET, SOURCE, "true")
    monkeypatch.setattr(row_conditions, "SECONDS_MAX", 0.1)
    endless = "COALESCE(" * 40 + "target.id" + ",1)" * 40 + " > 0"
    with pytest.raises(ConditionLost):
        conditions.fulfilling(TARGET, SOURCE, endless)


def test_a_child_at_work_when_the_writer_ends_does_not_stay(
    conditions: Conditions, monkeypatch: pytest.MonkeyPatch
) -> None:
    children: list[Mock] = []

    def ends_meanwhile(work: Any) -> tuple[list[int], None]:
        conditions.close()
        return [1], None

    def made() -> Mock:
        children.append(Mock(**{"ask.side_effect": ends_meanwhile}))
        return children[-1]

    monkeypatch.setattr(row_conditions, "_Child", made)
    for count in (1, 2):  # also of one that was started after the end
        assert conditions.fulfilling(TARGET, SOURCE, "true") == [1]
        assert [child.end.call_count for child in children] == [1] * count


def test_a_child_whose_question_cannot_be_sent_does_not_stay(
    conditions: Conditions, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = Mock(**{"ask.side_effect": KeyboardInterrupt})
    monkeypatch.setattr(row_conditions, "_Child", lambda: child)
    with pytest.raises(KeyboardInterrupt):
        conditions.fulfilling(TARGET, SOURCE, "true")
    child.end.assert_called_once_with()


@pytest.mark.parametrize(
    ("condition", "asked"),
    [
        ("source.ts > now()", "now"),
        ("source.ts > `now` ( )", "now"),
        ("source.ts > NOW/* */--'\n()", "now"),
        ("source.d >= Current_Date", "current_date"),
        ("source.d <> today() AND source.v = 'x'", "today"),
        ("random() < 0.5", "random"),
        ("source.v = uuid()", "uuid"),
    ],
)
def test_a_condition_is_not_accepted_if_it_holds_at_times(condition: str, asked: str) -> None:
    """Rows are applied again: by another row writer, for a fresh view, to verify them."""
    with pytest.raises(NotForTheLog, match=rf"asks for {asked}\(\)") as refused:
        settings_of(RowsMode.UPSERT, MergeOptions(when_matched_update_all_filt=condition))
    assert refused.value.field == "when_matched_update_all_filt"


@pytest.mark.parametrize(
    "condition",
    [
        "source.v = 'now()'",
        "source.v = 'it''s now()'",
        'source.v = "random()"',
        "source.now > target.now -- now()",
        "source.current_date > target.`current_date`",
        "source.`it's` > 0 AND source.`random` > (1)",
        "date_trunc('day', source.ts) > target.ts",
    ],
)
def test_a_condition_may_have_such_words(condition: str) -> None:
    made = settings_of(RowsMode.UPSERT, MergeOptions(when_matched_update_all_filt=condition))
    assert made["update_if"] == condition
