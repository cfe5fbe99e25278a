"""One request, read: which object it names, its fields, its context.

The client's own models say which fields there are and of what kind. A field that is given and that
an operation doesn't take is refused by name: none is passed over in silence. Unknown fields are
another version's and are ignored, as the protocol has it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import IO, Any, TypeVar
from uuid import NAMESPACE_OID, UUID, uuid5

import pyarrow as pa
from lance_namespace import InvalidInputError, UnsupportedOperationError
from pydantic import BaseModel

from commitlog.client.commits.caller import Caller
from commitlog.codecs.lance_schema import check_schema_names
from commitlog.model.digits import whole_number
from commitlog.model.limits import ROWS_INLINE_BYTES_MAX
from commitlog.model.table import DELIMITER, TableId, parse_table_id
from consumers.servers.namespace.arrow_rows import open_rows
from consumers.servers.namespace.remote import REQUEST_ID, fields_in, is_remote, key_of
from consumers.servers.namespace.status import HttpError
from consumers.servers.security.budgets import once_each, parse_body
from consumers.servers.security.grants import Access, Principal
from consumers.servers.security.identity import (
    ANYBODY,
    Credentials,
    Security,
    credentials_of_body,
    credentials_of_headers,
)

ARROW_STREAM = "application/vnd.apache.arrow.stream"
ARROW_FILE = "application/vnd.apache.arrow.file"
CONTEXT_HEADER = "x-lance-ctx-"
IDEMPOTENCY_KEY = "idempotency-key"
_ALWAYS = frozenset({"identity", "context", "id"})
_TRANSPORT = ("header.", "headers.")
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}

Model = TypeVar("Model", bound=BaseModel)


@dataclass(slots=True)
class Call:
    """A request on its way to an operation."""

    operation: str
    path: str
    object_id: str | None = None
    """The id as the path has it, decoded; None for operations on no single object."""
    index_name: str = ""
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    stream: IO[bytes] | None = None
    """An Arrow body, where the operation takes one."""
    problems: list[Exception] = field(default_factory=list)
    """What is wrong with its rows, once somebody read so far."""
    committed: str = ""
    """The transaction that this request committed, once it did."""
    position: int | None = None
    """The sequence of the outcome that this request got."""
    connection: MutableMapping[str, Any] | None = None
    """What is kept about the connection of a client that is Lance's; None for others."""
    items_max: int = 1000
    """How many operations, entries and the like a body may list."""
    security: Security = field(default_factory=Security)
    principal: Principal = ANYBODY
    """Who asks, once `identify` found out."""
    _fields: dict[str, Any] | None = None

    def identify(self) -> None:
        """Find out who asks: by the headers, else by the body, else by its operations.

        Raises UnauthenticatedError, and InvalidInputError if parts of the request are of others.
        """
        if not self.security.is_on:
            return
        shown = credentials_of_headers(self.headers)
        nested: tuple[Credentials, ...] = ()
        if self.body:
            try:
                fields = self.fields
            except InvalidInputError:
                fields = {}
            shown = shown or credentials_of_body(fields.get("identity"))
            identities = (one.get("identity") for one in _nested(fields))
            nested = tuple(map(credentials_of_body, identities))
            shown = shown or next(filter(None, nested), shown)
        self.principal = self.security.identify(shown)
        if not all(map(shown.is_like, nested)):
            raise InvalidInputError("operations: an identity differs from the request's own")

    def need(self, access: Access, what: TableId) -> None:
        """Refuse who may not read, write or administer a namespace or table."""
        self.security.check(self.principal, access, what)

    def sees(self, what: TableId) -> bool:
        """Say whether who asks may know that a namespace or table is there."""
        return self.security.sees(self.principal, what)

    @property
    def fields(self) -> dict[str, Any]:
        """The body's fields; InvalidInputError if it is no JSON object."""
        if self._fields is None:
            self._fields = self._from_body()
        return self._fields

    @property
    def content(self) -> bytes:
        """The body without who asks and in which context: what a repetition has in common."""
        if b'"identity"' not in self.body and b'"context"' not in self.body:
            return self.body
        fields = self._from_body()
        for request in (fields, *_nested(fields)):
            for name in ("identity", "context"):
                request.pop(name, None)  # deeper, in rows and properties, it is the user's word
        return json.dumps(fields, sort_keys=True).encode()

    @property
    def digest(self) -> str:
        """Return what tells one request from another under the same Idempotency-Key."""
        digest = hashlib.sha256()
        digest.update(json.dumps([self.operation, self.object_id, sorted(self.query)]).encode())
        if self.stream is not None:
            self.stream.seek(0)
            while piece := self.stream.read(1 << 20):
                digest.update(piece)
            self.stream.seek(0)
        else:
            digest.update(self.content)
        return digest.hexdigest()

    @property
    def is_remote(self) -> bool:
        """Whether LanceDB's remote client asks."""
        return is_remote(self.path)

    @property
    def delimiter(self) -> str:
        """What joins the parts of an id in the path."""
        return self.parameter("delimiter") or DELIMITER

    def parameter(self, name: str) -> str | None:
        """Return a query parameter; InvalidRequest if there are two."""
        return once_each(one for one in self.query if one[0] == name).get(name)

    @property
    def parts(self) -> TableId:
        """The named object's parts; none for the root namespace."""
        text = self.object_id or ""
        if text in ("", self.delimiter):
            return ()
        return parse_table_id(text.split(self.delimiter))

    @property
    def table(self) -> TableId:
        """The named table."""
        parts = self.parts
        if not parts:
            raise InvalidInputError(f"{self.operation} needs a table, not the root namespace")
        return parts

    @property
    def caller(self) -> Caller:
        """Who asks, as each transaction of this request says it."""
        given: dict[str, str] = {}
        if self.body:
            for nested in _nested(self.fields):
                given |= _texts(nested.get("context"))
            given |= _texts(self.fields.get("context"))
        for name, value in self.headers.items():
            if name.startswith(CONTEXT_HEADER):
                given[name.removeprefix(CONTEXT_HEADER)] = value
        properties = {f"context.{key}": value for key, value in given.items()}
        if self.principal.method:
            properties["identity.method"] = self.principal.method
        return Caller(self.principal.name, tuple(sorted(properties.items())))

    @property
    def key(self) -> str | None:
        """The transaction id that an Idempotency-Key stands for."""
        given = self.headers.get(IDEMPOTENCY_KEY)
        if given is None:
            found = self.headers.get(REQUEST_ID, "") if self.is_remote else ""
            return key_of(found, self.digest) if found else None
        if not given:
            raise InvalidInputError("the header Idempotency-Key is empty: give it a key")
        return id_of_key(given)

    def read(
        self,
        model: type[Model],
        takes: Iterable[str] = (),
        adapt: Callable[[dict[str, Any]], None] = lambda fields: None,
    ) -> Model:
        """Return the request's fields, from query and body.

        `takes` names the fields that the operation acts on; another one that is given is 406.
        `adapt` may rewrite fields that clients send in another form than the model's.
        """
        fields = self._from_query(model) | (self.fields if self.body else {})
        if self.is_remote:
            fields_in(self.operation, fields)
        adapt(fields)
        request = model.model_validate(fields)
        named = getattr(request, "id", None)
        if named is not None and self.object_id is not None and tuple(named) != self.parts:
            raise InvalidInputError(
                f"the body names {named}, but the path names {list(self.parts)}: name "
                "the same object"
            )
        self.refuse_others(request, takes)
        return request

    def refuse_others(self, request: BaseModel, takes: Iterable[str], where: str = "") -> None:
        """Refuse fields that are given and that the operation doesn't act on."""
        taken = _ALWAYS.union(takes)
        for name in sorted(request.model_fields_set - taken):
            value = getattr(request, name)
            if value not in (None, False, [], {}, ""):
                raise UnsupportedOperationError(
                    f"{self.operation}: {where}{name} is not supported yet; leave it out"
                )

    def _from_body(self) -> dict[str, Any]:
        if self.stream is not None or self.is_arrow or not self.body.strip():
            return {}
        try:
            found = parse_body(self.body)
        except ValueError as error:
            raise InvalidInputError(str(error)) from error
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise InvalidInputError("the body is not a JSON object")
        self.check_items(found)
        return found

    def check_items(self, fields: Mapping[str, Any], where: str = "") -> None:
        """Refuse lists of more objects than a batch may have operations."""
        for name, items in fields.items():
            if isinstance(items, list) and len(items) > self.items_max and dict in map(type, items):
                raise InvalidInputError(
                    f"{where}{name} has {len(items)} items; at most {self.items_max} are allowed"
                )

    def _from_query(self, model: type[BaseModel]) -> dict[str, Any]:
        # Only of what is given: the text of an annotation takes long to make.
        fields = model.model_fields.keys() - _ALWAYS
        given = [one for one in self.query if one[0] in fields]
        kinds = {name: str(model.model_fields[name].annotation) for name, _ in given}
        found: dict[str, Any] = {}
        for name, value in given:
            if "List" in kinds[name]:
                found.setdefault(name, []).append(value)
        for name, value in once_each(one for one in given if one[0] not in found).items():
            is_object = "Dict" in kinds[name]
            found[name] = (
                _json_object(name, value) if is_object else _scalar(name, value, kinds[name])
            )
        return found

    def arrow(self) -> pa.RecordBatchReader:
        """Open the body as an Arrow IPC stream; rows are read as they are asked for."""
        assert self.stream is not None
        return open_rows(self.stream, self.problems)

    def rows(self) -> pa.RecordBatchReader | pa.Table:
        """Read the body's rows if they may fit a record of the log, else as `arrow`."""
        found = self.arrow()
        length = self.headers.get("content-length", "")
        if not length.isdecimal() or int(length) > ROWS_INLINE_BYTES_MAX:
            return found
        return found.read_all()

    def arrow_schema(self) -> pa.Schema:
        """Return the schema of a body that is an Arrow IPC stream without rows."""
        try:
            found = pa.ipc.open_stream(self.body).schema
        except (pa.ArrowException, OSError) as error:
            raise InvalidInputError(f"the body is not an Arrow IPC stream: {error}") from error
        check_schema_names(found)
        return found

    @property
    def media_type(self) -> str:
        """What the body says it is."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def is_arrow(self) -> bool:
        """Whether the body is an Arrow stream rather than JSON."""
        return self.media_type == ARROW_STREAM

    def need_arrow(self) -> None:
        """Refuse a body of another type; Lance's generated Rust client names none."""
        if self.media_type not in ("", ARROW_STREAM):
            raise HttpError(415, f"{self.operation} takes {ARROW_STREAM}, not {self.media_type}")


def _scalar(name: str, value: str, kind: str) -> Any:
    if "bool" in kind.lower():
        if value.lower() not in _BOOLEANS:
            raise InvalidInputError(f"{name} must be true or false, not {value!r}")
        return _BOOLEANS[value.lower()]
    if "int" in kind.lower():
        number = whole_number(value)
        if number is None:
            raise InvalidInputError(f"{name} must be a whole number, not {value[:40]!r}")
        return number
    return value


def _json_object(name: str, value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise InvalidInputError(f"{name} is a JSON object, not {value!r}") from None


def _texts(context: Any) -> dict[str, str]:
    if not isinstance(context, Mapping):
        return {}
    # `header.NAME` is what a client sends as a header, credentials among them.
    return {k: v for k, v in context.items() if isinstance(v, str) and not k.startswith(_TRANSPORT)}


def _nested(fields: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the requests within a batch."""
    operations = fields.get("operations")
    for operation in operations if isinstance(operations, list) else ():
        for body in operation.values() if isinstance(operation, dict) else ():
            if isinstance(body, dict):
                yield body


def id_of_key(key: str) -> str:
    """Return the id of the transaction that an Idempotency-Key stands for."""
    try:
        return str(UUID(key))
    except ValueError:
        return str(uuid5(NAMESPACE_OID, key))


def one_of(name: str, value: str | None, *allowed: str) -> str:
    """Return a choice, written in PascalCase or snake_case, as snake_case; the first by default."""
    if not value:
        return allowed[0]
    plain = value.replace("_", "").lower()
    for choice in allowed:
        if choice.replace("_", "") == plain:
            return choice
    raise InvalidInputError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")


def condition(name: str, sql: str | None, *, all_rows: str = "leave it out") -> str | None:
    """Return which rows are meant; None means all, and what is empty is a mistake."""
    if sql is not None and not sql.strip():
        raise InvalidInputError(f"{name} is empty; to mean all rows, {all_rows}")
    return sql


def page(names: list[str], request: Any) -> tuple[list[str], dict[str, str]]:
    """Return the part of sorted names that is asked for, and what the answer says of the next."""
    token, limit = request.page_token, request.limit
    if limit is not None and limit < 1:
        raise InvalidInputError(f"limit must be at least 1, not {limit}")
    rest = [name for name in names if not token or name > token]
    if limit is None or len(rest) <= limit:
        return rest, {}
    return rest[:limit], {"page_token": rest[limit - 1]}
