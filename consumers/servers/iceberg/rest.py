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
from starlette.responses import Response
from starlette.routing import Route

from commitlog import CommitLog
from commitlog.client.commits.iceberg_text import number_problem
from commitlog.core.iceberg.reading import load_body
from commitlog.model.limits import ICEBERG_UPDATES_MAX, OPERATIONS_PER_TRANSACTION_MAX
from consumers.runtime.config import Config, ConfigurationError
from consumers.servers.iceberg.access import HEADER, TableAccess, staged_uuid, understood
from consumers.servers.iceberg.catalog import IcebergCatalog, IcebergSettings, Tell, tell_nothing
from consumers.servers.iceberg.log import LogIcebergService
from consumers.servers.iceberg.namespaces import IcebergNamespaces
from consumers.servers.iceberg.reach import Handler, IcebergReach
from consumers.servers.iceberg.replies import Failure, failure_of, json_reply, unsupported
from consumers.servers.iceberg.request_context import (
    KEY_LIFETIME,
    boolean_of,
    namespace_of,
    principal_of,
    requester_of,
    table_of,
    view_of,
    viewer_of,
)
from consumers.servers.iceberg.shown import ALL
from consumers.servers.iceberg.time_travel import (
    PREFIX,
    IcebergService,
    PastCatalogues,
    PastIcebergService,
    position_of,
    refuse,
)
from consumers.servers.iceberg.views import IcebergViews
from consumers.servers.namespace.row_turns import LargeBodies
from consumers.servers.namespace.settings import Settings
from consumers.servers.security.budgets import body_pieces, body_problem, once_each
from consumers.servers.security.identity import Security
from consumers.servers.security.places import TablePlaces
from consumers.servers.vending.vendor import Subject, Vendor

_READ_ONLY = "x-commitlog-read-only"
"""In a registration: the name is a second one of a table, and never committed to."""
_NAMESPACE = "/v1/namespaces/{namespace}"
_TABLE = "/v1/namespaces/{namespace}/tables/{table}"
_VIEW = "/v1/namespaces/{namespace}/views/{view}"
_CONFIG = "/v1/config"
_READING = ("GET", "HEAD")
_METHODS = {*_READING, "POST", "DELETE"}
_UNSUPPORTED = (
    "/v1/oauth/tokens",
    f"{_NAMESPACE}/functions",
    f"{_NAMESPACE}/functions/{{function}}",
    f"{_TABLE}/plan",
    f"{_TABLE}/plan/{{plan}}",
    f"{_TABLE}/tasks",
    f"{_TABLE}/unregister",
)
"""What else the specification has: not among the endpoints, and told so if it is asked for."""

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
    vendor = Vendor(log, names.vending, security, names.locations)
    past = PastCatalogues(log, service.files)
    settings = IcebergSettings(
        service.tables_root,
        tables_max=config.iceberg_tables_max,
        updates_max=config.iceberg_updates_max,
        timeout_seconds=config.iceberg_timeout,
    )

    def positioned(warehouse: str) -> str:
        position = position_of(warehouse, log)
        if position:
            past.view(position, settings.timeout_seconds)  # a wrong one is refused at once
        return position

    def at(request: Request) -> _Routes:
        position = request.path_params["position"]
        start = f"v1/{PREFIX}{position}"
        access = TableAccess(vendor, start=start, is_past=True)
        return _Routes(PastIcebergService(past, service.files, position), settings, access=access)

    places = TablePlaces(log, security, names.locations)
    reach = IcebergReach(places, IcebergCatalog(service, settings)) if security.is_on else None
    large = large or LargeBodies(tells_clients_apart=security.is_on)
    present = iceberg_routes(service, settings, positioned, TableAccess(vendor), reach, large)
    return [*present, *_past_routes(at, settings, large)]


def _past_routes(
    at: Callable[[Request], _Routes], settings: IcebergSettings, large: LargeBodies
) -> list[Route]:
    """Return the routes of the catalogue as of a position: reads, and refusals of all else."""
    start = f"/v1/{PREFIX}{{position}}"

    def handler(read: _Work) -> Handler:
        return lambda request, body: read(at(request), request, body)

    def refused(request: Request, body: bytes) -> Response:
        refuse(request.path_params["position"])

    route = partial(_route, settings, large)
    served = [
        route({method}, f"{start}{path.removeprefix('/v1')}", handler(read))
        for method, path, read in ROUTES
        if path != _CONFIG and (method in _READING or read in _READ_BY_POST)
    ]
    return [*served, route(_METHODS, f"{start}/{{rest:path}}", refused)]


def iceberg_routes(
    service: IcebergService,
    settings: IcebergSettings,
    positioned: Callable[[str], str] = lambda warehouse: "",
    access: TableAccess | None = None,
    reach: IcebergReach | None = None,
    large: LargeBodies | None = None,
) -> list[Route]:
    """Return the routes of the catalogue; `positioned` says which position a warehouse names.

    With `access` clients are told how to reach the files of tables; `reach` says which places
    they may name.
    """
    routes = _Routes(service, settings, positioned, access)
    route = partial(_route, settings, large or LargeBodies(tells_clients_apart=reach is not None))

    def handler(method: str, path: str, work: _Work) -> Handler:
        bare = partial(work, routes)
        return bare if reach is None else reach.before(method, path, bare)

    served = [route({method}, path, handler(method, path, work)) for method, path, work in ROUTES]
    others = [route(_METHODS, path, routes.unsupported) for path in _UNSUPPORTED]
    return [*served, *others]


def _route(
    settings: IcebergSettings, large: LargeBodies, methods: set[str], path: str, handler: Handler
) -> Route:
    async def endpoint(request: Request) -> Response:
        try:
            body = await _body(request, settings.body_bytes_max)
            async with large.turn(body, principal_of(request).name):
                return await run_in_threadpool(_checked, handler, request, body)
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


def _checked(handler: Handler, request: Request, body: bytes) -> Response:
    if problem := body_problem(body, lambda: load_body(body)) or number_problem(body):
        raise Failure(400, "BadRequestException", problem)
    once_each(request.query_params.multi_items())
    return handler(request, body)


class _Routes:
    def __init__(
        self,
        service: IcebergService,
        settings: IcebergSettings,
        positioned: Callable[[str], str] = lambda warehouse: "",
        access: TableAccess | None = None,
    ) -> None:
        self._access = access
        self._positioned = positioned
        self._catalog = IcebergCatalog(service, settings)
        self._namespaces = IcebergNamespaces(self._catalog)
        self._views = IcebergViews(self._catalog)

    def config(self, request: Request, body: bytes) -> Response:
        position = self._positioned(request.query_params.get("warehouse", ""))
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

    def commit_transaction(self, request: Request, body: bytes) -> Response:
        return self._catalog.commit_transaction(requester_of(request), body)

    def list_namespaces(self, request: Request, body: bytes) -> Response:
        return self._namespaces.children(request.query_params, viewer_of(request))

    def create_namespace(self, request: Request, body: bytes) -> Response:
        return self._namespaces.create(requester_of(request), body)

    def namespace_exists(self, request: Request, body: bytes) -> Response:
        return self._namespaces.exists(namespace_of(request))

    def load_namespace(self, request: Request, body: bytes) -> Response:
        return self._namespaces.load(namespace_of(request))

    def drop_namespace(self, request: Request, body: bytes) -> Response:
        return self._namespaces.drop(requester_of(request), namespace_of(request))

    def update_namespace(self, request: Request, body: bytes) -> Response:
        return self._namespaces.update(requester_of(request), namespace_of(request), body)

    def list_tables(self, request: Request, body: bytes) -> Response:
        return self._catalog.list_tables(
            namespace_of(request), request.query_params, viewer_of(request)
        )

    def create_table(self, request: Request, body: bytes) -> Response:
        return self._catalog.create_table(
            requester_of(request), namespace_of(request), body, self._tell(request)
        )

    def register_table(self, request: Request, body: bytes) -> Response:
        return self._catalog.register_table(
            requester_of(request),
            namespace_of(request),
            body,
            read_only=boolean_of(_READ_ONLY, request.headers),
            tell=self._tell(request),
        )

    def table_exists(self, request: Request, body: bytes) -> Response:
        return self._catalog.table_exists(table_of(request))

    def load_table(self, request: Request, body: bytes) -> Response:
        snapshots = request.query_params.get("snapshots", ALL)
        sent = request.headers.get("If-None-Match", "").split(",")
        # A cache on the way may have weakened it.
        known = {tag.strip().removeprefix("W/") for tag in sent}
        return self._catalog.load_table(
            table_of(request), snapshots=snapshots, known=known, tell=self._tell(request)
        )

    def credentials(self, request: Request, body: bytes) -> Response:
        access = self._need_access(request)
        found = self._catalog.table(table_of(request))
        subject = Subject(table_of(request), found.uuid, found.location)
        return access.credentials(principal_of(request), subject)

    def sign(self, request: Request, body: bytes) -> Response:
        access, table = self._need_access(request), table_of(request)
        found = self._catalog.view().tables.get(table)
        if found is not None:
            subject = Subject(table, found.uuid, found.location)
            return access.sign(principal_of(request), subject, body)
        # A client writes to a table that is only staged, or removes the files of one it dropped.
        uuid = staged_uuid(table, body)
        staged = Subject(table, uuid, self._catalog.new_location(table, uuid))
        return access.sign(principal_of(request), staged, body, is_staged=True)

    def _need_access(self, request: Request) -> TableAccess:
        if self._access is None:
            raise unsupported(f"{request.method} {request.url.path}")
        return self._access

    def _tell(self, request: Request) -> Tell:
        ways, access = understood(request.headers.get(HEADER, "")), self._access
        if access is None or not ways:
            return tell_nothing
        principal = principal_of(request)
        return lambda subject: access.told(principal, subject, ways)

    def commit_table(self, request: Request, body: bytes) -> Response:
        return self._catalog.commit_table(requester_of(request), table_of(request), body)

    def drop_table(self, request: Request, body: bytes) -> Response:
        purge = boolean_of("purgeRequested", request.query_params)
        return self._catalog.drop_table(requester_of(request), table_of(request), purge=purge)

    def unsupported(self, request: Request, body: bytes) -> Response:
        raise unsupported(f"{request.method} {request.url.path}")

    def list_views(self, request: Request, body: bytes) -> Response:
        return self._views.children(namespace_of(request), request.query_params, viewer_of(request))

    def create_view(self, request: Request, body: bytes) -> Response:
        return self._views.create(requester_of(request), namespace_of(request), body)

    def register_view(self, request: Request, body: bytes) -> Response:
        return self._views.register(requester_of(request), namespace_of(request), body)

    def view_exists(self, request: Request, body: bytes) -> Response:
        return self._views.exists(view_of(request))

    def load_view(self, request: Request, body: bytes) -> Response:
        return self._views.load(view_of(request))

    def commit_view(self, request: Request, body: bytes) -> Response:
        return self._views.commit(requester_of(request), view_of(request), body)

    def drop_view(self, request: Request, body: bytes) -> Response:
        return self._views.drop(requester_of(request), view_of(request))

    def rename_view(self, request: Request, body: bytes) -> Response:
        return self._views.rename(requester_of(request), body)

    def metrics(self, request: Request, body: bytes) -> Response:
        return self._catalog.table_exists(table_of(request))  # what it reports isn't kept

    def rename_table(self, request: Request, body: bytes) -> Response:
        return self._catalog.rename_table(requester_of(request), body)


_Work = Callable[[_Routes, Request, bytes], Response]

ROUTES: tuple[tuple[str, str, _Work], ...] = (
    ("GET", _CONFIG, _Routes.config),
    ("POST", "/v1/transactions/commit", _Routes.commit_transaction),
    ("GET", "/v1/namespaces", _Routes.list_namespaces),
    ("POST", "/v1/namespaces", _Routes.create_namespace),
    ("HEAD", _NAMESPACE, _Routes.namespace_exists),
    ("GET", _NAMESPACE, _Routes.load_namespace),
    ("DELETE", _NAMESPACE, _Routes.drop_namespace),
    ("POST", f"{_NAMESPACE}/properties", _Routes.update_namespace),
    ("GET", f"{_NAMESPACE}/tables", _Routes.list_tables),
    ("POST", f"{_NAMESPACE}/tables", _Routes.create_table),
    ("POST", f"{_NAMESPACE}/register", _Routes.register_table),
    ("HEAD", _TABLE, _Routes.table_exists),
    ("GET", _TABLE, _Routes.load_table),
    ("POST", _TABLE, _Routes.commit_table),
    ("DELETE", _TABLE, _Routes.drop_table),
    ("POST", f"{_TABLE}/metrics", _Routes.metrics),
    ("GET", f"{_TABLE}/credentials", _Routes.credentials),
    ("POST", f"{_TABLE}/sign", _Routes.sign),
    ("POST", "/v1/tables/rename", _Routes.rename_table),
    ("GET", f"{_NAMESPACE}/views", _Routes.list_views),
    ("POST", f"{_NAMESPACE}/views", _Routes.create_view),
    ("POST", f"{_NAMESPACE}/register-view", _Routes.register_view),
    ("HEAD", _VIEW, _Routes.view_exists),
    ("GET", _VIEW, _Routes.load_view),
    ("POST", _VIEW, _Routes.commit_view),
    ("DELETE", _VIEW, _Routes.drop_view),
    ("POST", "/v1/views/rename", _Routes.rename_view),
)
_ENDPOINTS = [
    f"{method} {path.replace('/v1/', '/v1/{prefix}/', 1)}"
    for method, path, _ in ROUTES
    if path != _CONFIG
]
_READ_BY_POST = (_Routes.metrics, _Routes.sign)
"""What a client of a past catalogue asks as well; the rest of it reads by GET and HEAD."""
