"""Lives through random histories for a while: `python -m tests.histories --seconds 1800`.

Hypothesis makes them, a different batch for each seed, and shrinks the first one that fails.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from commitlog.adapters.lance_builder import OVERLAYS_ENABLED_BY
from commitlog.model.table import Policy
from consumers.tools.verify import VerifyOptions, verify
from tests.histories.world import Step, Tally, histories, run
from tests.service import service

BATCH, STEPS_MIN = 5, 15


def main() -> int:
    """Run batches until the time is over; print what was tried."""
    os.environ[OVERLAYS_ENABLED_BY] = "1"  # Lance opens what has overlays only then.
    parser = argparse.ArgumentParser(prog="python -m tests.histories")
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--seed", type=int, default=1, help="the first batch's")
    given_arguments = parser.parse_args()
    deadline = time.monotonic() + given_arguments.seconds
    tally, number = Tally(), given_arguments.seed
    while time.monotonic() < deadline:
        # Removals read the whole log, so a log serves one batch.
        with tempfile.TemporaryDirectory() as folder, service(Path(folder)) as made:

            def live(steps: list[Step], stable_row_ids: bool, policy: Policy) -> None:
                try:
                    run(made, steps, stable_row_ids=stable_row_ids, tally=tally, policy=policy)  # noqa: B023
                except Exception as error:
                    # Shrinking takes its time; who watches knows already.
                    print(f"seed {number}: {error!r}", file=sys.stderr, flush=True)  # noqa: B023
                    raise

            batch = settings(
                max_examples=BATCH,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            )(
                given(
                    steps=histories(STEPS_MIN),
                    stable_row_ids=st.booleans(),
                    policy=st.sampled_from(Policy),
                )(live)
            )
            seed(number)(batch)()
            verdict = verify(made.log, 0, VerifyOptions(root=made.root))
            assert verdict.problems == [], f"seed {number}: {verdict.problems}"
        print(f"seed {number}: {tally}", file=sys.stderr, flush=True)
        number += 1
    print(f"seeds {given_arguments.seed} to {number - 1}: {tally}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
