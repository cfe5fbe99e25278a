"""What people see of an outcome: one line, and a small table in a notebook."""

from commitlog.model.records import Code, Outcome, Status


def test_it_is_one_line_however_long_its_message_is() -> None:
    outcome = Outcome(
        7, "id-1", 0, Status.REJECTED, code=Code.WRONG_SCHEMA, message="no\ncolumn " * 1000
    )
    shown = repr(outcome)
    assert shown.startswith("<Outcome rejected id-1 sequence=7 WRONG_SCHEMA 'no column")
    assert "\n" not in shown
    assert len(shown) < 250


def test_a_notebook_shows_text_that_cannot_act() -> None:
    outcome = Outcome(7, "id-1", 0, Status.REJECTED, message="<script>alert(1)</script>")
    shown = outcome._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert shown.count("<tr>") == 4
