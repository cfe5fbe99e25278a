"""The HTTP routes of the Iceberg REST catalogue, and of the multi-table commit.

A handler reads its body up to a limit, then works in a thread: the log's answer may take its
time, and the event loop serves others meanwhile.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable
from functools import partial

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from commitlog import CommitLog
from commitlog.client.commits.iceberg_text import number_problem
from commitlog.model.limits import ICEBERG_UPDATES_MAX, OPERATIONS_PER_TRANSACTION_MAX
from consumers.runtime.config import Config, ConfigurationError
from consumers.servers.iceberg import namespaces, views
from consumers.servers.iceberg.access import TableAccess, staged_uuid
from consumers.servers.iceberg.catalog import IcebergCatalog
from consumers.servers.iceberg.log import LogIcebergService
from consumers.servers.iceberg.reach import Handler, IcebergReach
from consumers.servers.iceberg.replies import Failure, failure_of, json_reply, unsupported
from consumers.servers.iceberg.request_context import KEY_LIFETIME, IcebergRequest
from consumers.servers.iceberg.service import IcebergSettings
from consumers.servers.iceberg.time_travel import (
    PREFIX,
    PastCatalogues,
    PastIcebergService,
    position_of,
    refuse,
)
from consumers.servers.namespace.row_turns import LargeBodies
from consumers.servers.namespace.settings import Settings
from consumers.servers.security.budgets import body_pieces, body_problem, once_each
from consumers.servers.security.identity import Security
from consumers.servers.security.places import TablePlaces
from consumers.servers.vending.vendor import Subject, Vendor

_NAMESPACE = "/v1/namespaces/{namespace}"
_TABLE = "/v1/namespaces/{namespace}/tables/{table}"
_VIEW = "/v1/namespaces/{namespace}/views/{view}"
_CONFIG = "/v1/config"
_READING = ("GET", "HEAD")
_METHODS = {*_READING, "POST", "DELETE"}
_UNSUPPORTED = (
    f"{_NAMESPACE}/functions",
    f"{_NAMESPACE}/functions/{{function}}",
    f"{_TABLE}/plan",
    f"{_TABLE}/plan/{{plan}}",
    f"{_TABLE}/tasks",
    f"{_TABLE}/unregister",
)
"""What else the specification has: not among the endpoints, and told so if it is asked for."""

_NO_TOKENS = {
    "error": "unsupported_grant_type",
    "error_description": "this catalogue issues no tokens. Set `oauth2-server-uri` to where your "
    "identity provider issues them, or `token` to one of its tokens, or the header x-api-key to an "
    "API key; without --access-file the server asks for none of these, so leave `credential` out",
}
"""What a client reads that has a `credential` and asks here for a token, in OAuth's own form."""

_MOST = {
    "iceberg_tables_max": OPERATIONS_PER_TRANSACTION_MAX,
    "iceberg_updates_max": ICEBERG_UPDATES_MAX,
}
"""The log's own limits, the same for all clients."""


def routes(
    log: CommitLog,
    config: Config,
    names: Settings | None = None,
    security: Security | None = None,
    large: LargeBodies | None = None,
) -> list[Route]:
    """Return the routes of the catalogue over a log, as its operator set it.

    `names` says how Lance's tables are served, which one transaction may change as well.
    """
    names, security = names or Settings(), security or Security()
    for name in ("iceberg_tables_max", "iceberg_updates_max", "iceberg_timeout"):
        limit = getattr(config, name)
        most = _MOST.get(name, limit)
        if not 1 <= limit <= most:
            bounds = "it must be at least 1"
            bounds += f", and at most {most:,}, the limit of the log" if name in _MOST else ""
            raise ConfigurationError(f"{name} cannot be {limit}: {bounds}")
    service = LogIcebergService(log, names, security)
    places = TablePlaces(log, security, names.locations)
    vendor = Vendor(places, names.vending)
    past = PastCatalogues(log, service.files, config.iceberg_timeout)
    settings = IcebergSettings(
        service.tables_root,
        tables_max=config.iceberg_tables_max,
        updates_max=config.iceberg_updates_max,
        timeout_seconds=config.iceberg_timeout,
    )

    def positioned(warehouse: str) -> str:
        position = position_of(warehouse, log)
        if position:
            past.view(position)  # a wrong one is refused at once
        return position

    def at(asked: IcebergRequest) -> IcebergCatalog:
        position = asked.part("position")
        access = TableAccess(vendor, start=f"v1/{PREFIX}{position}", is_past=True)
        return IcebergCatalog(PastIcebergService(past, service.files, position), settings, access)

    catalog = IcebergCatalog(service, settings, TableAccess(vendor))
    catalog.positioned = positioned
    reach = IcebergReach(places, catalog) if security.is_on else None
    large = large or LargeBodies(tells_clients_apart=security.is_on)
    present = iceberg_routes(catalog, reach, large)
    return [*present, *_past_routes(at, settings, large)]


Work = Callable[[IcebergCatalog, IcebergRequest], Response]
"""One operation of the catalogue."""


def _past_routes(
    at: Callable[[IcebergRequest], IcebergCatalog], settings: IcebergSettings, large: LargeBodies
) -> list[Route]:
    """Return the routes of the catalogue as of a position: reads, and refusals of all else."""
    start = f"/v1/{PREFIX}{{position}}"

    def handler(read: Work) -> Handler:
        return lambda asked: read(at(asked), asked)

    def refused(asked: IcebergRequest) -> Response:
        refuse(asked.part("position"))

    route = partial(_route, settings, large)
    served = [
        route({method}, f"{start}{path.removeprefix('/v1')}", handler(read))
        for method, path, read in ROUTES
        if path != _CONFIG and (method in _READING or read in _READ_BY_POST)
    ]
    return [*served, route(_METHODS, f"{start}/{{rest:path}}", refused)]


def iceberg_routes(
    catalog: IcebergCatalog, reach: IcebergReach | None = None, large: LargeBodies | None = None
) -> list[Route]:
    """Return the routes of the catalogue; `reach` says which places clients may name."""
    large = large or LargeBodies(tells_clients_apart=reach is not None)
    route = partial(_route, catalog.settings, large)

    def handler(method: str, path: str, work: Work) -> Handler:
        bare = partial(work, catalog)
        return bare if reach is None else reach.before(method, path, bare)

    served = [route({method}, path, handler(method, path, work)) for method, path, work in ROUTES]
    others = [route(_METHODS, path, _not_offered) for path in _UNSUPPORTED]
    return [*served, *others, Route("/v1/oauth/tokens", _no_tokens, methods=["POST"])]


def _route(
    settings: IcebergSettings, large: LargeBodies, methods: set[str], path: str, handler: Handler
) -> Route:
    async def endpoint(request: Request) -> Response:
        try:
            asked = IcebergRequest(request, await _body(request, settings.body_bytes_max))
            async with large.turn(asked.body, asked.who.name):
                return await run_in_threadpool(_checked, handler, request, asked)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        except Exception as error:  # every failure has an answer of the catalogue's own shape
            return failure_of(error).response(has_body=request.method != "HEAD")

    route = Route(path, endpoint, methods=sorted(methods))
    # Starlette adds HEAD to GET; here a single object's has a handler of its own.
    route.methods = methods if path.endswith("}") else route.methods
    return route


async def _body(request: Request, bytes_max: int) -> bytes:
    said = f"the body has more than {bytes_max} bytes"
    refusal = partial(Failure, 413, "PayloadTooLargeException", said)
    read = [piece async for piece in body_pieces(request, bytes_max, refusal)]
    return b"".join(read).removeprefix(BOM_UTF8)


def _checked(handler: Handler, request: Request, asked: IcebergRequest) -> Response:
    body = asked.body
    if problem := body_problem(body, lambda: asked.json) or number_problem(body):
        raise Failure(400, "BadRequestException", problem)
    once_each(request.query_params.multi_items())
    return handler(asked)


def config(catalog: IcebergCatalog, asked: IcebergRequest) -> Response:
    """Say what is served, and under which prefix if a warehouse names a position."""
    position = catalog.positioned(asked.query.get("warehouse", ""))
    if position:
        overrides = {"prefix": f"{PREFIX}{position}", "commitlog.position": position}
        reads = [one for one in _ENDPOINTS if one.startswith(_READING)]
        return json_reply({"defaults": {}, "overrides": overrides, "endpoints": reads})
    return json_reply(
        {
            "defaults": {},
            "overrides": {},
            "endpoints": _ENDPOINTS,
            "idempotency-key-lifetime": KEY_LIFETIME,
        }
    )


def metrics(catalog: IcebergCatalog, asked: IcebergRequest) -> Response:
    """Take a client's report, which isn't kept."""
    return catalog.table_exists(asked)


def credentials(catalog: IcebergCatalog, asked: IcebergRequest) -> Response:
    """Hand out fresh keys for a table's files."""
    access = _need_access(catalog, asked)
    found = catalog.table(asked.name)
    return access.credentials(asked.who, Subject(asked.name, found.uuid, found.location))


def sign(catalog: IcebergCatalog, asked: IcebergRequest) -> Response:
    """Sign a request to a table's store."""
    access, table = _need_access(catalog, asked), asked.name
    found = catalog.view().tables.get(table)
    if found is not None:
        return access.sign(asked.who, Subject(table, found.uuid, found.location), asked.body)
    # A client writes to a table that is only staged, or removes the files of one it dropped.
    uuid = staged_uuid(table, asked.body)
    staged = Subject(table, uuid, catalog.new_location(table, uuid))
    return access.sign(asked.who, staged, asked.body, is_staged=True)


def _need_access(catalog: IcebergCatalog, asked: IcebergRequest) -> TableAccess:
    if catalog.access is None:
        raise unsupported(asked.what)
    return catalog.access


def _not_offered(asked: IcebergRequest) -> Response:
    raise unsupported(asked.what)


async def _no_tokens(_: Request) -> Response:
    return JSONResponse(_NO_TOKENS, 400)


ROUTES: tuple[tuple[str, str, Work], ...] = (
    ("GET", _CONFIG, config),
    ("POST", "/v1/transactions/commit", IcebergCatalog.commit_transaction),
    ("GET", "/v1/namespaces", namespaces.list_namespaces),
    ("POST", "/v1/namespaces", namespaces.create_namespace),
    ("HEAD", _NAMESPACE, namespaces.namespace_exists),
    ("GET", _NAMESPACE, namespaces.load_namespace),
    ("DELETE", _NAMESPACE, namespaces.drop_namespace),
    ("POST", f"{_NAMESPACE}/properties", namespaces.update_namespace),
    ("GET", f"{_NAMESPACE}/tables", IcebergCatalog.list_tables),
    ("POST", f"{_NAMESPACE}/tables", IcebergCatalog.create_table),
    ("POST", f"{_NAMESPACE}/register", IcebergCatalog.register_table),
    ("HEAD", _TABLE, IcebergCatalog.table_exists),
    ("GET", _TABLE, IcebergCatalog.load_table),
    ("POST", _TABLE, IcebergCatalog.commit_table),
    ("DELETE", _TABLE, IcebergCatalog.drop_table),
    ("POST", f"{_TABLE}/metrics", metrics),
    ("GET", f"{_TABLE}/credentials", credentials),
    ("POST", f"{_TABLE}/sign", sign),
    ("POST", "/v1/tables/rename", IcebergCatalog.rename_table),
    ("GET", f"{_NAMESPACE}/views", views.list_views),
    ("POST", f"{_NAMESPACE}/views", views.create_view),
    ("POST", f"{_NAMESPACE}/register-view", views.register_view),
    ("HEAD", _VIEW, views.view_exists),
    ("GET", _VIEW, views.load_view),
    ("POST", _VIEW, views.commit_view),
    ("DELETE", _VIEW, views.drop_view),
    ("POST", "/v1/views/rename", views.rename_view),
)
_ENDPOINTS = [
    f"{method} {path.replace('/v1/', '/v1/{prefix}/', 1)}"
    for method, path, _ in ROUTES
    if path != _CONFIG
]
_READ_BY_POST = (metrics, sign)
"""What a client of a past catalogue asks as well; the rest of it reads by GET and HEAD."""
