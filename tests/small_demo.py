"""Makes a demo small in each of its processes, which import this first.

It does the same with a twentieth of the flights, and with fewer desks that do fewer rounds. What
must come of that is computed from the same numbers.
"""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager

EVERY = 20
"""Of so many flights, one is taken."""


def make_small() -> None:
    """Change what the demo's modules begin with; those that use it are imported later."""
    from consumers.tools.demo import desks, source

    desks.DESK_COUNT, desks.ROUND_COUNT = 6, 4
    open_all = source.open_flights

    @contextmanager
    def open_some() -> Iterator[io.TextIOWrapper]:
        with open_all() as text:
            header, *lines = text.readlines()
        yield io.TextIOWrapper(io.BytesIO("".join([header, *lines[::EVERY]]).encode()))

    source.open_flights = open_some


def measure_little() -> None:
    """Have the rates at the demo's end be those of a moment."""
    from consumers.tools.demo import report

    report.WRITERS, report.SECONDS = 2, 0.2


if any(word.startswith("consumers.tools.demo.") for word in sys.orig_argv):
    make_small()
elif "demo" in sys.orig_argv:
    make_small()
    measure_little()
