"""How much longer does a polite client wait beside a crowd of hostile ones?

    python -m tests.benchmarks.hostile_crowd --rounds 6 --seconds 10 [--access]

Rounds with the crowd and without it alternate. The crowd stands for other machines: it takes what
the service leaves of the processors, so a longer wait is the service's own doing. With `--access`
both show keys, and the service can tell them apart.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path

from consumers.tools.bench.environment import descendants
from tests.hostile import (
    HOSTILE_KEY,
    POLITE_KEY,
    Polite,
    access_file,
    crowd,
    forget_peak,
    p99,
    resident_mib,
)
from tests.integration.test_up import service

_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure, and print a line a round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--access", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--access-file", str(access_file(Path(folder)))] if given.access else []
        keys = (POLITE_KEY, HOSTILE_KEY) if given.access else ("", "")
        with service(Path(folder, "root"), *arguments) as running:
            polite = Polite("127.0.0.1", running.port, keys[0])
            polite.make_table()
            polite.run(given.seconds)  # until all is warm
            parts = parts_of(running.process.pid)
            forget_peak(parts["server"])
            found: dict[bool, dict[str, list[float]]] = {False: {}, True: {}}
            for number in range(2 * given.rounds):
                is_beside, before = (
                    bool(number % 2),
                    {name: cpu(pid) for name, pid in parts.items()},
                )
                polite.seconds.clear()
                beside = None
                if is_beside:
                    uri = f"http://127.0.0.1:{running.port}"
                    beside = crowd(uri, given.seconds, given.seed + number, key=keys[1])
                polite.run(given.seconds, beside)
                answers = json.loads(beside.communicate()[0])["answers"] if beside else {}
                took = {name: cpu(pid) - before[name] for name, pid in parts.items()}
                said = {kind: p99(times) for kind, times in sorted(polite.seconds.items())}
                for kind, value in said.items():
                    found[is_beside].setdefault(kind, []).append(value)
                print(
                    "beside" if is_beside else "alone ",
                    {k: f"{v * 1000:.0f}" for k, v in said.items()},
                    f"of {sum(map(len, polite.seconds.values()))}",
                    {k: f"{v:.1f}" for k, v in took.items() if v > 0.3},
                    answers,
                    flush=True,
                )
            peak = resident_mib(parts["server"])
        for kind in found[False]:
            alone, beside_ = (statistics.median(found[which][kind]) for which in (False, True))
            print(
                f"{kind}: p99 {alone * 1000:.0f} ms alone, {beside_ * 1000:.0f} ms beside,"
                f" {beside_ / alone:.2f} times (medians of {given.rounds} rounds)"
            )
        print(f"refused: {dict(polite.refused)}; the server took {peak:.0f} MiB at most")


def parts_of(pid: int) -> dict[str, int]:
    """Return the processes of a service by what they do."""
    found = {}
    for one in sorted(descendants(pid)):
        words = Path(f"/proc/{one}/cmdline").read_text().split("\0")
        if "consumers.cli" in words:
            found[words[words.index("consumers.cli") + 1]] = one
        elif "consumers.servers.row_process" in words:
            found[f"rows {one}"] = one
        else:
            found.setdefault(Path(words[0]).name, one)
    return found


def cpu(pid: int) -> float:
    """Return the seconds of CPU that a service took, that of ended children in it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0  # a process for rows, which was ended
    return sum(map(int, fields[11:15])) / _TICKS


if __name__ == "__main__":
    main()
