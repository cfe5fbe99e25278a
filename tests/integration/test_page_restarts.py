"""The page in a real browser while its server is away, without a clipboard, and at odd addresses.

Skipped where there is no Chromium: `make browser` finds or installs one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from consumers.servers.page.routes import page_routes
from tests.installed import need
from tests.page_server import serving_routes
from tests.page_visit import CHROMIUM, NO_CHROMIUM, Visit, running_browser
from tests.page_world import busy_log, extend_index

need("playwright")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason=NO_CHROMIUM),
]

LATER = 20
AWAY = "text=The server does not answer."
TABLE = "/?view=table&table=nyc%24flights"
SHOWN = {
    "/": ".window .row .name:not(:empty)",
    "/?view=conflicts": ".matrix .level6",
    "/?view=live": ".live .badge",
    TABLE: ".tiles .tile",
    f"{TABLE}&tab=history": ".window .row.committed",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from running_browser()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("away")
    decided, terms = busy_log(2_000)
    extend_index(root, decided, terms)
    return root


def follow(window: Visit, path: str) -> None:
    """Go to another view as a link does, without asking for the page again."""
    window.page.evaluate(
        "path => { history.pushState(null, '', path);"
        " dispatchEvent(new PopStateEvent('popstate')); }",
        path,
    )


def test_a_page_whose_server_is_away_says_so_and_goes_on_by_itself(
    browser: Any, tmp_path: Path
) -> None:
    """One window for each view, every second a phone's: what tells it stands above all views."""
    decided, terms = busy_log(2_000)
    extend_index(tmp_path, decided[:-LATER], terms)
    routes = page_routes(tmp_path)
    with serving_routes(routes) as uri:
        port = int(uri.rpartition(":")[2])
        screens = cycle(("light", "phone"))
        first, *others = SHOWN
        windows = {first: Visit(browser, uri)}
        windows |= {path: Visit(browser, uri, beside=windows[first]) for path in others}
        for path, window in windows.items():
            window.turn_to(next(screens))
            window.open("/?view=sql" if path.endswith("live") else path, "#pulse .rate")
            window.page.wait_for_selector("#views a")
    for path, window in windows.items():
        window.page.wait_for_selector(f"#pulse >> {AWAY}")
        assert window.page.locator("#pulse .bad").is_visible()
        # What is looked at now cannot be had.
        follow(window, "/?view=log" if path == "/" else "/")
        follow(window, path)
        window.page.locator(f"main >> {AWAY}").first.wait_for()
    extend_index(tmp_path, decided[-LATER:], ())
    with serving_routes(routes, port=port):
        for path, window in windows.items():
            window.page.wait_for_selector(SHOWN[path])
            assert window.page.locator(AWAY).count() == 0
            window.page.wait_for_selector("#pulse .rate")
        windows[first].context.close()
        for window in windows.values():
            assert [said for said in window.wrong if "Failed to load resource" not in said] == []


def test_a_text_that_may_not_be_copied_is_selected(browser: Any, made: Path) -> None:
    with serving_routes(page_routes(made)) as uri:
        window = Visit(browser, uri)
        window.page.add_init_script(
            "navigator.clipboard.writeText ="
            " () => Promise.reject(new DOMException('denied', 'NotAllowedError'))"
        )
        window.open(TABLE, ".code .copy")
        window.page.locator(".code .copy").first.click()
        window.page.wait_for_selector("text=Select and copy")
        selected = str(window.page.evaluate("getSelection().toString()"))
        assert selected.strip() == window.text(".code pre").strip() != ""
        window.context.close()


HOSTILE = ("<img src=x onerror=alert(1)>", "-1", "1e999", "../%00")


def test_hostile_parameters_run_nothing_and_break_nothing(browser: Any, made: Path) -> None:
    with serving_routes(page_routes(made)) as uri:
        window, broken = Visit(browser, uri), list[str]()
        window.page.on("dialog", lambda dialog: broken.append(dialog.message))
        window.page.on("pageerror", lambda error: broken.append(f"{window.page.url}: {error}"))
        for value in HOSTILE:
            odd = quote(value)
            for path in (
                f"/?view=table&table={odd}",
                *(f"{TABLE}&tab={tab}&v={odd}&offset={odd}&where={odd}" for tab in TABS),
                f"{TABLE}&tab={odd}&v={odd}",
                f"{TABLE}&tab=history&tx={odd}&id={odd}&p={odd}&only={odd}&from={odd}&to={odd}",
                f"/?view={odd}&q={odd}",
                f"/?view=log&partition={odd}&writer={odd}&tx={odd}&p={odd}&from={odd}&to={odd}",
                f"/?view=conflicts&loser={odd}&winner={odd}&table={odd}",
            ):
                window.open(path, "main h1, main .page")
                window.page.wait_for_selector("#pulse .rate")
                assert window.page.locator("img").count() == 0, path
        window.open("/", SHOWN["/"])
        assert broken == []
        window.context.close()


TABS = ("", "rows", "files", "changes", "names", "upkeep")
