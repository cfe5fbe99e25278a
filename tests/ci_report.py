"""Prints what failed once more, as the end of a run's output: `tests/ci_report.py OUTPUT`.

What is seen of a long run is often its end alone. OUTPUT is what pytest printed. Of each failure
its last lines come, without captured output, and then pytest's closing line. The exit code is 1 if
there is none.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LINES_PER_FAILURE = 40
SHOWN = ("FAILURES", "ERRORS", "FAILED AT THE FIRST TRY")
_SECTION = re.compile(r"=+ (.+?) =+")
_FAILURE = re.compile(r"_+ .+ _+")
_CAPTURED = re.compile(r"-+ Captured .+ -+")
_CLOSING = re.compile(r"=+ .*(passed|failed|error|no tests ran).* =+")


def report(printed: str) -> list[str]:
    """Return the lines to end with; none if pytest printed no closing line."""
    section, is_captured = "", False
    summary: list[str] = []
    failures: list[list[str]] = []
    closing = ""
    for line in printed.splitlines():
        if named := _SECTION.fullmatch(line):
            section = named[1]
            closing = line if _CLOSING.fullmatch(line) else closing
        elif section in SHOWN:
            if _FAILURE.fullmatch(line):
                failures.append([line])
                is_captured = False
            elif failures:
                is_captured = is_captured or bool(_CAPTURED.fullmatch(line))
                if not is_captured:
                    failures[-1].append(line)
        elif line.startswith(("FAILED ", "ERROR ")) and section == "short test summary info":
            summary.append(line)
    if not closing:
        return []
    texts = [line for one in failures for line in (one[0], *one[1:][-LINES_PER_FAILURE:])]
    return [*summary, *texts, closing]


if __name__ == "__main__":
    lines = report(Path(sys.argv[1]).read_text(errors="replace"))
    print("\n".join(lines), flush=True)
    sys.exit(not lines)
