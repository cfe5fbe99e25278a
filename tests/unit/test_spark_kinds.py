"""The documentation's table of Spark's types is the one that the tests of Spark hold."""

import pytest
from pyspark.sql import types
from pyspark.sql.types import StructField, StructType

from commitlog.errors import InvalidTransaction
from commitlog.spark.arrow import arrow_schema
from tests.spark_kinds import WRITTEN, document


def test_the_documentation_has_the_table_that_the_suite_holds() -> None:
    assert WRITTEN.read() == document()


@pytest.mark.parametrize(
    "refused",
    [
        types.CalendarIntervalType(),
        types.YearMonthIntervalType(),
        types.CharType(3),
        types.VarcharType(3),
    ],
)
def test_a_type_that_no_column_holds_is_refused_by_name(refused: types.DataType) -> None:
    schema = StructType([StructField("c", refused)])
    with pytest.raises(InvalidTransaction, match=r"column 'c' is .*, which tables cannot hold"):
        arrow_schema(schema, "a$b")
