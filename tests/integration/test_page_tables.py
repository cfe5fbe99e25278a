"""The page about tables, in a real browser: on a small log with real files, and on 10,000 tables.

Skipped where there is no Chromium: `make browser` finds or installs one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import MemoryCluster
from commitlog.model.maintenance_policy import MaintenancePolicy
from commitlog.model.operations import CreateNamespace
from consumers.runtime.endpoints import write_endpoints
from consumers.servers.namespace.routes import routes
from consumers.servers.page.routes import page_routes
from consumers.servers.page.sql import SqlService
from consumers.views.version_index import run_index
from tests.installed import need
from tests.namespace_world import World
from tests.page_server import serving_routes
from tests.page_visit import (
    CHROMIUM,
    NARROW,
    NO_CHROMIUM,
    SCREENS,
    Visit,
    kept_open,
    running_browser,
    visiting,
)
from tests.page_world import busy_log, extend_index
from tests.waiting import up_to_end

need("playwright")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason=NO_CHROMIUM),
]

ARTIFACTS = Path(__file__).resolve().parents[2] / "artifacts" / "page"
ORDERS = "/?view=table&table=shop%24orders"
PANES = {
    "": ".tiles .tile",
    "rows": ".preview td",
    "files": "[aria-label=Fragments] summary",
    "changes": ".mark.added",
    "names": "text=orders_idx",
    "upkeep": "text=two fragments are small",
    "history": ".window .row.committed",
}
MANY = 10_000
LONG = "w" * 200
FIRST_VIEW_MS_MAX = 1000.0
REQUESTS_MAX = 80
"""Scripts, and pages of 1,000 tables."""
ROWS_MAX = 200
SCHEMA = pa.schema(
    [("id", pa.int64()), ("who", pa.string()), ("v", pa.list_(pa.float32(), 4)), ("b", pa.binary())]
)


def rows(first: int, last: int, who: str = "ann") -> pa.Table:
    """Return rows with ids from `first` up to and without `last`."""
    ids = list(range(first, last))
    return pa.table(
        {
            "id": ids,
            "who": [who] * len(ids),
            "v": [[i, 0.5, 1, 2] for i in ids],
            "b": [bytes([i % 256]) * 100 for i in ids],
        },
        schema=SCHEMA,
    )


class Shop:
    """A log with real tables, its index, and the page over both."""

    def __init__(self, root: Path) -> None:
        self.cluster = MemoryCluster()
        self.world = World(root, lambda: MemoryLog(self.cluster))
        self.root = root
        self.fill()
        self.index()
        write_endpoints(root, {"bootstrap_servers": "kafka.example:9092", "log": "commitlog"})

    def fill(self) -> None:
        log = self.world.log
        log.create_table("shop$orders", SCHEMA, primary_key="id")
        log.append("shop$orders", rows(0, 60))
        log.append("shop$orders", rows(60, 120, "<b>bob</b>"))
        log.delete("shop$orders", "id < 12")
        log.add_columns("shop$orders", {"twice": "id * 2"})
        opened = log.open("shop$orders")
        opened.create_scalar_index("id", "BTREE", "orders_idx")
        opened.tags.create("launch", 3)
        log.compact("shop$orders", properties={"commitlog.maintenance": "two fragments are small"})
        log.create_table("shop$eu$stock", SCHEMA)
        log.append("shop$eu$stock", rows(0, 3))
        log.delete("shop$eu$stock", "true")
        log.create_table(f"shop$eu${LONG}", SCHEMA)
        log.create_table("audit", SCHEMA, properties={"owner": "somebody else"})
        log.drop_table("audit")
        log.create_table("audit", SCHEMA)
        inherited = CreateNamespace(("shop",), (("commitlog.maintain.expire-days", "30"),), True)
        log.submit(None, inherited).result().raise_for_conflict()
        log.set_properties("", {"commitlog.maintain.history-hours": "48"}, is_namespace=True)

    def index(self) -> None:
        run_index(MemoryLog(self.cluster), self.root, **up_to_end())


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    made = Shop(tmp_path_factory.mktemp("shop"))
    yield made
    made.world.close()


@pytest.fixture(scope="module")
def served(shop: Shop) -> Iterator[str]:
    sql = SqlService(shop.root)
    all_routes = [*routes(shop.world.log), *page_routes(shop.root), *sql.routes()]
    with serving_routes(all_routes) as uri:
        yield uri
    sql.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from running_browser()


@pytest.fixture(scope="module")
def kept(browser: Any, served: str) -> Iterator[Visit]:
    yield from kept_open(browser, served)


@pytest.fixture
def visit(browser: Any, kept: Visit) -> Iterator[Callable[..., Visit]]:
    yield from visiting(browser, kept)


def test_every_pane_is_drawn_and_has_no_barriers(visit: Callable[..., Visit]) -> None:
    """Each is opened once and turned to each screen."""
    pytest.importorskip("axe_playwright_python")
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    window = visit()
    pages = {f"table-{name or 'overview'}": (f"{ORDERS}&tab={name}", PANES[name]) for name in PANES}
    pages["tree"] = ("/", ".row.space")
    pages["sql"] = ("/?view=sql&sql=FROM+history('shop%24orders')", ".answer td")
    for name, (path, ready) in pages.items():
        window.turn_to("light")
        window.open(path, ready)
        for screen in SCREENS:
            window.turn_to(screen)
            window.page.wait_for_timeout(300)  # for the picture only
            window.page.screenshot(path=ARTIFACTS / f"{name}-{screen}.png")
            assert window.barriers(contrast=screen != NARROW) == [], f"{name}, {screen}"
            assert window.unexplained() == [], f"{name}, {screen}"
            wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert window.page.evaluate(wide) == 0, f"{name} is wider than the screen {screen}"


def test_on_paper_all_of_a_pane_is_there_in_the_colours_of_day(visit: Callable[..., Visit]) -> None:
    window = visit(viewport={"width": 800, "height": 240}, color_scheme="dark")
    window.open(f"{ORDERS}&tab=files", PANES["files"])
    for theme in ("auto", "dark"):
        window.page.evaluate("theme => document.documentElement.dataset.theme = theme", theme)
        window.page.emulate_media(media="print")
        cut = "[...document.querySelectorAll('body *')].filter(one => one.scrollHeight >"
        cut += " one.clientHeight + 1 && getComputedStyle(one).overflowY !== 'visible')"
        assert window.page.evaluate(f"{cut}.map(one => one.className)") == [], "it is on no page"
        assert window.page.evaluate("document.documentElement.scrollHeight > innerHeight")
        ink = window.page.evaluate("getComputedStyle(document.body).color")
        assert ink == "rgb(27, 28, 30)", "light ink is nothing on paper"


@pytest.mark.parametrize("view", ["/", "/?view=log"])
def test_a_long_name_widens_no_column(visit: Callable[..., Visit], view: str) -> None:
    window = visit()
    window.open(view, ".window .cell.version:not(:empty)")
    ends = "of => [...of.children].map(one => Math.round(one.getBoundingClientRect().right))"
    head = window.page.locator(".row.head").evaluate(ends)
    assert head[-1] <= SCREENS["light"]["viewport"]["width"]
    row = window.page.locator(".window .row:has(.cell.version:not(:empty))")
    assert row.first.evaluate(ends) == head


@pytest.mark.parametrize("name", [f"shop$eu${LONG}&v=999", f"{LONG}$nothing"])
def test_a_long_name_in_a_message_fits_a_phone(visit: Callable[..., Visit], name: str) -> None:
    window = visit(**SCREENS[NARROW])
    window.open(f"/?view=table&table={name}", "[role=alert]")
    wide = "of => of.scrollWidth - of.clientWidth"
    for part in ("html", ":has(> [role=alert])", "[role=alert]"):
        assert window.page.locator(part).first.evaluate(wide) == 0
    window.wrong.clear()  # the 404


def test_the_overview_is_of_the_version_in_the_address(visit: Callable[..., Visit]) -> None:
    window = visit()
    window.open(ORDERS, ".tiles .tile")
    assert window.text(".tile b") == "108"
    assert "twice" in window.text("section[aria-label^='Schema']")
    window.page.get_by_label("Version, of").fill("3")
    window.page.keyboard.press("Enter")
    window.until("() => document.querySelector('.tile b')?.textContent === '120'")
    assert "twice" not in window.text("section[aria-label^='Schema']")
    assert "v=3" in window.page.url
    window.page.get_by_label("The version before").click()
    window.until("() => document.querySelector('.tile b')?.textContent === '60'")
    assert window.page.evaluate("document.activeElement.ariaLabel") == "The version before"


def test_rows_are_those_of_a_version_and_of_a_filter(visit: Callable[..., Visit]) -> None:
    window = visit()
    window.open(f"{ORDERS}&tab=rows&v=3", PANES["rows"])
    assert window.text(".pages").startswith("rows 1 to 50")
    assert window.text(".preview tbody tr td") == "0"
    window.page.get_by_role("button", name="Next").click()
    window.until("() => document.querySelector('.pages').textContent.startsWith('rows 51 to 100')")
    window.page.get_by_label("Only rows where").fill("id = 61")
    window.page.keyboard.press("Enter")
    window.until("() => document.querySelectorAll('.preview tbody tr').length === 1")
    assert "<b>bob</b>" in window.text(".preview tbody")
    assert "52 more bytes" in window.text(".preview tbody")
    window.page.get_by_label("Only rows where").fill("nobody = 61")
    window.page.keyboard.press("Enter")
    window.page.wait_for_selector(".preview .problem")
    assert "nobody" in window.text(".preview .problem")
    window.wrong.clear()  # the browser notes the refusal


def test_a_wide_table_shows_fewer_rows_and_no_character_turns_its_texts_around(
    visit: Callable[..., Visit],
) -> None:
    """With 2,000 columns 50 rows took the browser seconds; U+202E made "evil" read "live"."""
    columns = [{"name": f"c{number}", "type": "string"} for number in range(2000)]
    answers = {
        0: {"columns": columns, "rows": [["\u202eevil"] + ["x"] * 1999] * 51},
        10: {"columns": columns[:1], "rows": [["eleventh"]]},
    }
    window = visit()
    window.page.route(
        "**/query?as=preview",
        lambda asked: asked.fulfill(json=answers[asked.request.post_data_json["offset"]]),
    )
    window.open(f"{ORDERS}&tab=rows", PANES["rows"])
    assert window.text(".pages").startswith("rows 1 to 10")
    assert window.text(".preview tbody td") == "\\u202eevil"
    window.page.get_by_role("button", name="Next").click()
    window.page.get_by_text("eleventh").wait_for()


def test_files_and_changes_say_what_stands_and_what_differs(visit: Callable[..., Visit]) -> None:
    window = visit()
    window.open(f"{ORDERS}&tab=files&v=4", PANES["files"])
    assert "20.0 % (12)" in window.text("[aria-label='Fragments']")
    window.page.locator("summary").first.click()
    assert "_deletions/" in window.text("details[open]")
    window.open(f"{ORDERS}&tab=changes&base=3&v=5", ".verdict")
    said = window.text(".verdict")
    assert "2 fragments" in said
    assert "−12" in said
    assert "twice int64" in window.text("[aria-label='Fields']")
    window.page.get_by_label("What version 4 changed").click()
    window.until("() => /1 fragment\\b/.test(document.querySelector('.verdict')?.textContent)")


def test_indices_tags_and_upkeep_are_listed(visit: Callable[..., Visit]) -> None:
    window = visit()
    window.open(f"{ORDERS}&tab=names", PANES["names"])
    assert "BTree" in window.text("[aria-label='Indices']")
    window.page.locator("[aria-label='Tags'] a").click()
    window.until("() => document.querySelector('.tile b')?.textContent === '120'")
    window.open(f"{ORDERS}&tab=upkeep", PANES["upkeep"])
    assert "Rewrite" in window.text("[aria-label='What maintenance did']")
    settings = window.text("[aria-label='Its settings']")
    assert "30 (from shop)" in settings
    assert "48 (from the root of all namespaces)" in settings
    for one in fields(MaintenancePolicy):
        name = one.name.replace("_", "-")
        default = f"{one.default:,.10g}" if isinstance(one.default, int | float) else one.default
        changed = name in {"expire-days", "history-hours"}
        assert changed or f"{name}\t{default} (default)" in settings, name
    window.open("/?view=table&table=audit&tab=upkeep", "[aria-label='Its settings']")
    assert "48 (from the root" in window.text("[aria-label='Its settings']")
    window.open("/?view=table&table=audit", PANES[""])
    assert "somebody else" not in window.text("[aria-label='Settings']"), "of a dropped table"


def test_code_to_open_it_is_copied_by_a_click(visit: Callable[..., Visit]) -> None:
    window = visit(permissions=["clipboard-read", "clipboard-write"])
    window.open(f"{ORDERS}&v=3", ".opening .copy")
    window.until("() => document.querySelector('.opening').textContent.includes('kafka.example')")
    for way, wanted in (
        ("Python", 'log.open("shop$orders", 3)'),
        ("Spark", '.option("versionAsOf", 3)'),
        ("DuckDB", "duckdb.sql("),
        ("LanceDB", 'namespace_path=["shop"]'),
        ("pylance", '["shop","orders"], version=3'),
    ):
        window.page.locator(".opening").get_by_role("button", name=way, exact=True).click()
        window.page.get_by_label(f"Copy: Open the table with {way}").click()
        window.page.wait_for_selector("text=Copied")
        assert wanted in window.page.evaluate("navigator.clipboard.readText()")


def test_the_tree_is_folded_and_walked_by_keyboard(visit: Callable[..., Visit]) -> None:
    window = visit()
    window.open("/", ".row.space")
    shown = "() => [...document.querySelectorAll('.window .row:not([hidden]) .name')]"
    names = f"{shown}.map(cell => cell.textContent)"
    assert window.page.evaluate(names) == ["audit", "shop", "eu", "stock", LONG, "orders"]
    window.page.locator(".rows").focus()
    keys = window.page.keyboard
    keys.press("End")
    keys.press("ArrowLeft")  # to the namespace
    keys.press("ArrowLeft")  # folds it
    window.until("() => document.querySelectorAll('.window .row:not([hidden])').length === 2")
    assert window.page.locator(".row.space:visible").get_attribute("aria-expanded") == "false"
    keys.press("ArrowRight")
    window.until("() => document.querySelectorAll('.window .row:not([hidden])').length === 6")
    keys.press("End")
    keys.press("Enter")
    window.page.wait_for_selector(".tiles .tile")
    assert window.text("h1") == "shop$orders"


def test_rows_are_counted_in_files_whatever_was_rewritten(visit: Callable[..., Visit]) -> None:
    window = visit()
    window.open("/", ".row.space")
    window.until(
        "() => [...document.querySelectorAll('.window .row:not([hidden])')].some(row =>"
        " row.querySelector('.name').textContent === 'orders'"
        " && row.querySelector('.rowcount').textContent === '108')"
    )
    # One never had a row, the other has lost all of them.
    for name in ("audit", "stock"):
        window.until(
            "name => [...document.querySelectorAll('.window .row:not([hidden])')].some(row =>"
            " row.querySelector('.name').textContent === name"
            " && row.querySelector('.rowcount').textContent === '0'"
            " && row.querySelector('.bytes').textContent === '0 B')",
            name,
        )


def test_an_unknown_table_is_helped(visit: Callable[..., Visit]) -> None:
    window = visit()
    window.open("/?view=table&table=shop%24order", ".meant")
    assert "There is no table" in window.text(".empty")
    window.page.get_by_role("link", name="shop$orders").click()
    window.page.wait_for_selector(".tiles .tile")
    window.wrong.clear()  # the browser notes the 404
    window.open("/?q=ordres", ".meant")
    assert "shop$orders" in window.text(".meant")


def test_headings_explain_themselves_by_pointer_and_keyboard(visit: Callable[..., Visit]) -> None:
    window = visit()
    window.open(f"{ORDERS}&tab=files", PANES["files"])
    window.page.get_by_text("Deleted", exact=True).hover()
    assert "compaction" in window.text("#meaning")
    window.page.keyboard.press("Escape")
    window.page.wait_for_selector("#meaning", state="hidden")
    window.page.get_by_text("Live rows", exact=True).focus()
    assert "reader sees" in window.text("#meaning")


def test_the_box_asks_the_index_and_says_what_is_wrong(visit: Callable[..., Visit]) -> None:
    window = visit()
    window.open("/?view=sql", ".example")
    box = window.page.get_by_label("Question")
    box.fill("SELECT count(*) AS n FROM operations WHERE table_name = 'shop$orders'")
    window.page.keyboard.press("Control+Enter")
    window.page.wait_for_selector(".answer td")
    assert window.text(".answer td") == "8"
    assert "sql=" in window.page.url
    box.fill("DROP TABLE operations")
    window.page.get_by_role("button", name="Run").click()
    window.page.wait_for_selector(".answer .problem")
    assert "Save as CSV" not in window.text(".ask")
    window.wrong.clear()


def test_an_empty_log_shows_a_tour(browser: Any, tmp_path: Path) -> None:
    extend_index(tmp_path, busy_log(1)[0][:0])
    with serving_routes(page_routes(tmp_path)) as uri:
        window = Visit(browser, uri)
        window.open("/", ".tour .copy")
        assert "create_table" in window.text(".tour")
        assert window.barriers() == []
        window.page.screenshot(path=ARTIFACTS / "tour-light.png")
        assert window.wrong == []
        window.context.close()


def test_ten_thousand_tables_are_shown_within_a_second(browser: Any, tmp_path: Path) -> None:
    decided, terms = busy_log(MANY + 2_000, more_tables=MANY)
    extend_index(tmp_path, decided, terms)
    with serving_routes(page_routes(tmp_path)) as uri:
        window = Visit(browser, uri)
        before = window.cpu_ms()
        window.open("/", ".row.space")
        spent = window.cpu_ms() - before
        at = window.page.evaluate("performance.getEntriesByName('shown:tables')[0]?.startTime")
        window.until(
            "said => document.querySelector('.sub').textContent.startsWith(said)",
            f"{MANY + 8:,} tables",
        )
        print(f"first view: {spent:.0f} ms of CPU, shown {at} ms after navigation")
        assert spent < FIRST_VIEW_MS_MAX
        assert len(set(window.asked)) < REQUESTS_MAX
        assert window.page.locator(".window .row").count() < ROWS_MAX, "only what is in view"
        window.page.get_by_label("Find a table").fill("table_04242")
        window.until("() => document.querySelectorAll('.window .row:not([hidden])').length === 1")
        assert window.wrong == []
        window.context.close()
