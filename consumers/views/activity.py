"""What is happening in a log right now: rates, writers and tables of its last seconds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from consumers import history
from consumers.history import Row
from consumers.views.version_index.layout import noted_whole

NAMES_MAX = 10

TOTALS = """
SELECT count(*) FILTER (status = 'committed' AND answers IS NULL) AS committed,
       count(*) FILTER (status <> 'committed') AS refused,
       count(answers) AS repeated,
       (SELECT count(*) FROM collisions WHERE time > $1) AS conflicts,
       (SELECT count(*) FROM operations WHERE time > $1 AND rebased_over > 0) AS rebased
FROM transactions WHERE time > $1
"""
WRITERS = f"""
SELECT principal AS writer, count(*) FILTER (status = 'committed' AND answers IS NULL) AS committed,
       count(*) FILTER (status <> 'committed') AS refused, max(time) AS last_seen
FROM transactions WHERE time > ? GROUP BY principal
ORDER BY committed DESC, writer LIMIT {NAMES_MAX}
"""
TABLES = f"""
SELECT table_name AS "table",
       count(DISTINCT (partition, sequence)) FILTER (status = 'committed') AS committed,
       count(DISTINCT (partition, sequence)) FILTER (status NOT IN ('committed', 'repeated'))
           AS refused,
       max(version) AS version, sum(rows_added) FILTER (status = 'committed')::BIGINT AS rows_added
FROM operations WHERE time > ? AND is_table GROUP BY table_name
ORDER BY committed DESC, "table" LIMIT {NAMES_MAX}
"""


def activity(
    root: str | os.PathLike[str],
    *,
    seconds: float = 10.0,
    wall_clock: Callable[[], float] = time.time,
) -> Row:
    """Return what was decided in the last seconds, per second, and by whom.

    `lag` is by partition: outcomes that the index had not yet when it was published;
    `behind_seconds` is how long ago it was published, or was seen to have all there is. So it is
    a few seconds at most while `commitlog index` runs and reaches Kafka, and grows if not.

    Raises Unavailable if there is no index.
    """
    now_seconds, whole = wall_clock(), noted_whole(root)
    now = datetime.fromtimestamp(now_seconds, UTC).replace(tzinfo=None)
    since = [now - timedelta(seconds=seconds)]

    def work(run: history.Ask) -> Row:
        (totals,) = run(TOTALS, since)
        lag = run("SELECT partition, lag, epoch(published_at) AS published FROM lag ORDER BY 1", ())
        ages = [now_seconds - max(float(str(row["published"] or 0)), whole) for row in lag]
        return {
            "time": now.isoformat(timespec="milliseconds") + "Z",
            "seconds": seconds,
            **{f"{name}_per_second": int(str(n)) / seconds for name, n in totals.items()},
            "lag": {str(one["partition"]): one["lag"] for one in lag},
            "behind_seconds": round(max([0.0, *ages]), 3),
            "writers": run(WRITERS, since),
            "tables": run(TABLES, since),
        }

    return history.read(root, work)
