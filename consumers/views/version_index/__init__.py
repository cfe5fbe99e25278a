"""The version index: every version and every attempt, in DuckDB, fresh within a second.

`run_index` keeps `ROOT/index.duckdb` up with the log; anybody may open that file read-only at any
time (`consumers.history` does). It is a projection: delete it while the keeper is stopped, and the
next start builds it again from the log.
"""

from consumers.views.version_index.process import run_index
from consumers.views.version_index.store import IndexPosition, Term, VersionIndex

__all__ = ["IndexPosition", "Term", "VersionIndex", "run_index"]
