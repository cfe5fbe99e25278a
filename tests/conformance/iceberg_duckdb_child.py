"""Run SQL in DuckDB with an Iceberg catalogue attached as `log`: `URI`, statements on stdin.

Prints the rows of each statement as JSON, and ends at the first that fails. Runs in a Python that
has only DuckDB and its extensions.
"""

import importlib
import json
import sys
from pathlib import Path

import duckdb


def main() -> None:
    """Run the statements."""
    connection = duckdb.connect()
    for name in ("avro", "httpfs", "iceberg"):
        folder = Path(importlib.import_module(f"duckdb_extension_{name}").__path__[0])
        (file,) = folder.glob("extensions/*/*.duckdb_extension")
        connection.execute(f"INSTALL '{file}'")
        connection.execute(f"LOAD {name}")
    options = f"TYPE iceberg, ENDPOINT '{sys.argv[1]}', AUTHORIZATION_TYPE 'none'"
    connection.execute(f"ATTACH '' AS log ({options})")
    found = []
    for statement in json.load(sys.stdin):
        try:
            found.append(connection.execute(statement).fetchall())
        except duckdb.Error as error:
            raise SystemExit(f"{statement}: {error}") from error
    print(json.dumps(found))


if __name__ == "__main__":
    main()
