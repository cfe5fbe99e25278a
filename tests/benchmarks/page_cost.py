"""What the page's first views cost on a large made-up index, in a real browser.

    python -m tests.benchmarks.page_cost [--transactions 100000] [--tables 10000]

Prints, for each view: CPU of the browser's main thread, the time from navigation until it is drawn,
the requests until then and the rows in the document. Each view is opened in a new window.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from consumers.servers.page.routes import page_routes
from tests.page_server import serving_routes
from tests.page_visit import Visit, running_browser
from tests.page_world import busy_log, extend_index

VIEWS = {
    "/": ".row.space",
    "/?view=table&table=nyc%24flights": ".tiles .tile",
    "/?view=table&table=nyc%24flights&tab=history": ".window .row.committed",
    "/?view=log": ".window .row.committed",
    "/?view=conflicts": ".matrix .level6",
    "/?view=live": ".live .badge",
}


def main() -> None:
    """Make the index, open each view and print what it cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=100_000)
    parser.add_argument("--tables", type=int, default=10_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        decided, terms = busy_log(arguments.transactions, more_tables=arguments.tables)
        extend_index(Path(root), decided, terms)
        with serving_routes(page_routes(Path(root))) as uri:
            for browser in running_browser():
                for path, drawn in VIEWS.items():
                    print(measured(Visit(browser, uri), path, drawn), flush=True)


def measured(window: Visit, path: str, drawn: str) -> str:
    """Open a view in a new window, and say what it cost."""
    before, began = window.cpu_ms(), time.monotonic()
    window.open(path, drawn)
    took, spent = 1000 * (time.monotonic() - began), window.cpu_ms() - before
    asked = len(window.asked)
    rows = window.page.locator("[role=row], tbody tr").count()
    window.context.close()
    assert not window.wrong, window.wrong
    return f"{spent:6.0f} ms CPU  {took:6.0f} ms  {asked:3} requests  {rows:4} rows  {path}"


if __name__ == "__main__":
    main()
