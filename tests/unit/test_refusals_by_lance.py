"""Are refusals in Lance's own words fit for a reader?"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from commitlog.codecs.lance_schema import schema_fields
from commitlog.errors import InvalidTransaction
from tests.service import SCHEMA, rows, service


def test_a_type_that_lance_lacks_is_refused_without_the_paths_of_its_build() -> None:
    with pytest.raises(InvalidTransaction, match="Unsupported data type: Decimal32") as error:
        schema_fields(pa.schema([("price", pa.decimal32(5, 2))]))
    assert ".rs" not in str(error.value)


def test_sql_that_fails_is_named(tmp_path: Path) -> None:
    with service(tmp_path) as made:
        made.client.create_table("ns$t", SCHEMA)
        made.client.append("ns$t", rows(1))
        with pytest.raises(InvalidTransaction, match=r"by the SQL '1 / 0': .*zero") as error:
            made.client.update("ns$t", {"id": "1 / 0"})
        assert (error.value.field, error.value.value) == ("values", "1 / 0")
        with pytest.raises(InvalidTransaction, match=r"by the SQL 'id / 0 = 1': .*zero") as error:
            made.client.delete("ns$t", "id / 0 = 1")
        assert (error.value.field, error.value.value) == ("predicate", "id / 0 = 1")
