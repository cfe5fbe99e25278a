"""The routes of the page: static files at `/` and `/page/`, JSON under `/api/`.

Every answer over the index carries the snapshot's signature as ETag, so that asking again for what
has not changed costs one look at a file. Questions run on threads of their own: they hold up no
commit that this server answers.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
from lance_namespace import TransactionNotFoundError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from commitlog.errors import Unavailable, UnsupportedFormat
from commitlog.model.digits import SEQUENCE_DIGITS_MAX, whole_number
from commitlog.model.limits import INT64_MAX
from consumers.history import Ask
from consumers.runtime.endpoints import read_endpoints
from consumers.servers.page import contention, contents, questions, snapshots
from consumers.servers.page.snapshots import Asking, Snapshots
from consumers.servers.security.budgets import once_each
from consumers.views.version_index.layout import noted_whole

STATIC = Path(__file__).parent / "static"
THREADS = 4
ANSWER_SECONDS = 30.0
NAME_LENGTH_MAX = 4096
SIZES_MAX = 100
HEADERS = {
    "Accept-Ranges": "none",
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

Question = Callable[[Ask, Mapping[str, str]], Any]


def page_routes(root: str | os.PathLike[str]) -> list[BaseRoute]:
    """Return the page's routes over the index that is published under `root`."""
    api = _Api(Path(root).absolute())
    asked: list[tuple[str, Question]] = [
        ("tables", _tables),
        ("table", lambda ask, given: questions.table(ask, _table(given))),
        ("events", _events),
        ("transaction", _transaction),
        ("conflicts", lambda ask, given: contention.conflicts(ask, table=_text(given, "table"))),
        ("collisions", _collisions),
        ("live", lambda ask, given: questions.live(ask)),
        ("contents", _contents),
        ("difference", _difference),
        ("growth", lambda ask, given: contents.growth(ask, _table(given))),
        ("upkeep", lambda ask, given: contents.upkeep(ask, _table(given))),
        ("sizes", _sizes),
        ("near", lambda ask, given: contents.near(ask, _table(given))),
    ]
    return [
        Route("/", _index),
        Route("/api/status", api.status),
        *(Route(f"/api/{name}", api.endpoint(question)) for name, question in asked),
        *(Route(path, _to_index) for path in ("/page", "/page/")),
        Mount("/page", _Static(directory=STATIC)),
    ]


async def _index(request: Request) -> Response:
    _ask_for_all(request.scope)
    return FileResponse(STATIC / "index.html", headers=HEADERS)


async def _to_index(request: Request) -> Response:
    up = "../" if request.url.path.endswith("/") else "./"  # a proxy may serve us below a path
    query = request.url.query
    return RedirectResponse(f"{up}?{query}" if query else up)


def _ask_for_all(scope: Scope) -> None:
    """Take no notice of a range: the files are small, and Starlette refuses units but bytes."""
    scope["headers"] = [(name, value) for name, value in scope["headers"] if name != b"range"]


class _Static(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        _ask_for_all(scope)
        return await super().get_response(path, scope)

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(HEADERS)
        return response


class _Api:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._snapshots = Snapshots(root)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="page")

    async def status(self, request: Request) -> Response:
        now = time.time_ns() // 1_000_000
        found = await self._answer(lambda ask: questions.status(ask, now_ms=now))
        # If nobody keeps the index, what it lacked at its publication tells nothing any more.
        published = datetime.fromisoformat(f"{found['published_at']}+00:00").timestamp()
        whole_ms = max(published, noted_whole(self._root)) * 1000
        behind_ms = max(now - round(whole_ms), 0)
        kafka = read_endpoints(self._root).get("bootstrap_servers", "")
        return _json({**found, "behind_ms": behind_ms, "kafka": kafka})

    def endpoint(self, question: Question) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            # Before the question: an answer from a newer snapshot is only asked for once more.
            tag = f'"{self._snapshots.signature()}"'
            sent = request.headers.get("if-none-match", "").split(",")
            if tag in {one.strip().removeprefix("W/") for one in sent}:  # a proxy may weaken it
                return Response(status_code=304, headers={"ETag": tag})
            given = once_each(request.query_params.multi_items())
            found = await self._answer(lambda ask: question(ask, given))
            return _json(found, {"ETag": tag})

        return answer

    async def _answer(self, question: Callable[[Ask], Any]) -> Any:
        loop, asking = asyncio.get_running_loop(), Asking()
        work = loop.run_in_executor(self._threads, self._snapshots.read, question, asking)
        try:
            return await asyncio.wait_for(work, ANSWER_SECONDS)
        except UnsupportedFormat as error:  # another program's, until a new one is
            raise Unavailable(str(error)) from error
        except duckdb.OutOfMemoryException:
            raise Unavailable(
                f"the question needs more than {snapshots.MEMORY_LIMIT} of memory, which all "
                "questions of the page share; ask for less, or try again in a while"
            ) from None
        except TimeoutError:
            asking.give_up()
            advice = "the index did not answer in time; try again, or ask for less"
            raise Unavailable(advice) from None


def _json(body: Any, headers: dict[str, str] | None = None) -> Response:
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    given = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff", **(headers or {})}
    return Response(text, media_type=JSONResponse.media_type, headers=given)


def _tables(ask: Ask, given: Mapping[str, str]) -> Any:
    after = (_text(given, "after"), _text(given, "incarnation"))
    limit = _number(given, "limit", 1, questions.TABLES_MAX) or questions.TABLES_MAX
    return questions.tables(ask, after=after, ended=given.get("ended") == "1", limit=limit)


def _events(ask: Ask, given: Mapping[str, str]) -> Any:
    return questions.events(
        ask,
        table=_text(given, "table"),
        partition=_number(given, "partition") or 0,
        before=_place(given, "before"),
        after=_place(given, "after"),
        limit=_number(given, "limit", 1, questions.EVENTS_MAX) or questions.EVENTS_MAX,
    )


def _transaction(ask: Ask, given: Mapping[str, str]) -> Any:
    wanted, partition = _text(given, "id"), _number(given, "partition") or 0
    sequence = _number(given, "sequence") or 0
    found = questions.transaction(
        ask, transaction_id=wanted, partition=partition, sequence=sequence
    )
    if not found:
        which = wanted or f"at position {sequence} of partition {partition}"
        raise TransactionNotFoundError(f"the version index has no transaction {which}")
    return {"attempts": found}


def _contents(ask: Ask, given: Mapping[str, str]) -> Any:
    after = _number(given, "after")
    version = _number(given, "version", 1)
    return contents.contents(ask, _table(given), version, after=-1 if after is None else after)


def _difference(ask: Ask, given: Mapping[str, str]) -> Any:
    before, after = (_number(given, name, 1) for name in ("before", "after"))
    if before is None or after is None:
        raise HTTPException(400, "before and after are missing: give two versions")
    return contents.difference(ask, _table(given), before, after)


def _sizes(ask: Ask, given: Mapping[str, str]) -> Any:
    wanted = _text(given, "of", needed=True).split(",")
    if len(wanted) > SIZES_MAX:
        raise HTTPException(400, f"`of` has more than {SIZES_MAX} incarnations")
    return contents.sizes(ask, wanted)


def _table(given: Mapping[str, str]) -> str:
    return _text(given, "table", needed=True)


def _collisions(ask: Ask, given: Mapping[str, str]) -> Any:
    return {
        "collisions": contention.collisions(
            ask,
            table=_text(given, "table"),
            loser=given.get("loser"),
            winner=given.get("winner"),
            fragment=_number(given, "fragment"),
            limit=_number(given, "limit", 1, questions.LIST_MAX) or questions.LIST_MAX,
        )
    }


def _text(given: Mapping[str, str], name: str, *, needed: bool = False) -> str:
    value = given.get(name, "")
    if len(value) > NAME_LENGTH_MAX:
        raise HTTPException(400, f"{name} has more than {NAME_LENGTH_MAX} characters")
    if needed and not value:
        raise HTTPException(400, f"{name} is missing: add ?{name}=…")
    return value


def _number(
    given: Mapping[str, str], name: str, least: int = 0, most: int = INT64_MAX
) -> int | None:
    text = given.get(name, "")
    if not text:
        return None
    value = whole_number(text)
    if value is None:
        raise HTTPException(400, f"{name}={text[:40]!r} is not a whole number")
    if not least <= value <= most:
        raise HTTPException(400, f"{name}={value} is not within {least} and {most}")
    return value


def _place(given: Mapping[str, str], name: str) -> tuple[int, int] | None:
    text = given.get(name, "")
    if not text:
        return None
    left, _, right = text.partition(".")
    sequence = whole_number(left, SEQUENCE_DIGITS_MAX)
    ordinal = whole_number(right, SEQUENCE_DIGITS_MAX)
    if sequence is None or ordinal is None or "-" in text:
        raise HTTPException(400, f"{name}={text[:40]!r} is not SEQUENCE.ORDINAL")
    return sequence, ordinal
