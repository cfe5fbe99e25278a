"""Windows of a real browser on the page, for tests that look at it."""

from __future__ import annotations

import importlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.waiting import WAIT_SECONDS

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
NO_CHROMIUM = "there is no Chromium: run `make browser`"
WAIT_MS = 1000 * WAIT_SECONDS
SCREENS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"},
    "phone": {
        "viewport": {"width": 390, "height": 844},
        "color_scheme": "light",
        "device_scale_factor": 2,
        "has_touch": True,
    },
}
NARROW = "phone"
"""Has the colours of "light": `test_a_narrow_screen_has_no_colours_of_its_own` sees to that."""


def running_browser() -> Iterator[Any]:
    """Yield a browser, for a fixture."""
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as started:
        running = started.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield running
        running.close()


class Visit:
    """One window on the page, and all that went wrong in it."""

    def __init__(
        self, browser: Any, uri: str, *, beside: Visit | None = None, **options: Any
    ) -> None:
        """Open it as somebody new, with `options`, or beside one whose process it shares."""
        self.uri = uri
        options = {**SCREENS["light"], **options}
        self.context: Any = (
            beside.context if beside else browser.new_context(bypass_csp=False, **options)
        )
        self.context.set_default_timeout(WAIT_MS)
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on(
            "console",
            lambda said: self.wrong.append(said.text) if said.type in ("error", "warning") else 0,
        )
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.devtools = self.context.new_cdp_session(self.page)
        self.devtools.send("Performance.enable", {"timeDomain": "threadTicks"})

    def cpu_ms(self) -> float:
        """The CPU time of the page's main thread so far."""
        metrics = self.devtools.send("Performance.getMetrics")["metrics"]
        return 1000 * float(next(m["value"] for m in metrics if m["name"] == "TaskDuration"))

    def open(self, path: str, until: str) -> None:
        self.page.goto(self.uri + path)
        self.page.wait_for_selector(until)

    def turn_to(self, screen: str) -> None:
        """Show what is open on another screen, without asking for it again."""
        options = SCREENS[screen]
        self.page.emulate_media(color_scheme=options["color_scheme"])
        self.page.set_viewport_size(options["viewport"])
        scale, touch = options.get("device_scale_factor", 1), options.get("has_touch", False)
        metrics = {**options["viewport"], "deviceScaleFactor": scale, "mobile": False}
        self.devtools.send("Emulation.setDeviceMetricsOverride", metrics)
        self.devtools.send("Emulation.setTouchEmulationEnabled", {"enabled": touch})
        assert self.page.evaluate("[innerWidth, devicePixelRatio]") == [metrics["width"], scale]

    def until(self, predicate: str, argument: object = None) -> None:
        """Wait until a function of the page returns true; the page itself may evaluate nothing."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not self.page.evaluate(predicate, argument):
            assert time.monotonic() < deadline, predicate
            self.page.wait_for_timeout(50)

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).first.inner_text())

    def unexplained(self) -> list[str]:
        """Return the headings of columns without an explanation; data names its own columns."""
        found = self.page.evaluate(
            "[...document.querySelectorAll('th[scope=col], [role=columnheader]')]"
            ".filter(head => !head.closest('.preview, .answer') && head.textContent"
            " && !head.querySelector('.term')"
            " && !(head.closest('.matrix') && head.matches(':not(:first-child)')))"
            ".map(head => head.textContent)"
        )
        return [str(head) for head in found]

    def barriers(self, *, contrast: bool = True) -> list[Any]:
        """Return what axe finds: what keeps somebody from using the page as it is shown.

        For each text it asks what lies behind it, which is nine tenths of its work. So of a long
        table it looks at ten rows, and without `contrast` it leaves that question out.
        """
        package = Path(importlib.import_module("axe_playwright_python").__file__ or "").parent
        axe = next(package.rglob("axe.min.js")).read_text()
        self.page.evaluate(axe)
        found = self.page.evaluate(
            "contrast => axe.run({exclude: ['.newest tbody tr:nth-child(n + 11)']},"
            " {resultTypes: ['violations'], rules: {'color-contrast': {enabled: contrast}}})",
            contrast,
        )
        return [(v["id"], [n["target"] for n in v["nodes"]]) for v in found["violations"]]


def kept_open(browser: Any, uri: str) -> Iterator[Visit]:
    """Yield a window that does nothing, for a fixture: its process serves all beside it."""
    window = Visit(browser, uri)
    window.page.goto(f"{uri}/page/page.css")
    yield window
    window.context.close()


def visiting(browser: Any, kept: Visit) -> Iterator[Callable[..., Visit]]:
    """Yield what opens windows beside one, for a fixture; nothing may go wrong in them.

    A window elsewhere, or with options, is that of somebody who was never there.
    """
    opened: list[Visit] = []

    def make(elsewhere: str = "", **options: Any) -> Visit:
        beside = None if elsewhere or options else kept
        opened.append(Visit(browser, elsewhere or kept.uri, beside=beside, **options))
        return opened[-1]

    yield make
    for one in opened:
        if one.context is kept.context:
            one.page.evaluate("localStorage.clear()")
            one.page.close()
        else:
            one.context.close()
        assert one.wrong == []
