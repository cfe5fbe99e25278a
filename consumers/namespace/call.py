"""One request, read: which object it names, its fields, its context.

The client's own models say which fields there are and of what kind. A field that is given and that
an operation doesn't take is refused by name: none is passed over in silence. Unknown fields are
another version's and are ignored, as the protocol has it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, TypeVar
from uuid import NAMESPACE_OID, UUID, uuid5

import pyarrow as pa
from lance_namespace import InvalidInputError, UnsupportedOperationError
from pydantic import BaseModel

from commitlog.model.table import DELIMITER, TableId, parse_table_id
from consumers.namespace.status import HttpError

ARROW_STREAM = "application/vnd.apache.arrow.stream"
ARROW_FILE = "application/vnd.apache.arrow.file"
CONTEXT_HEADER = "x-lance-ctx-"
IDEMPOTENCY_KEY = "idempotency-key"
_ALWAYS = frozenset({"identity", "context", "id"})
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
    committed: str = ""
    """The transaction that this request committed, once it did."""
    position: int | None = None
    """The sequence of the outcome that this request got."""
    _context: Mapping[str, str] = field(default_factory=dict)

    @property
    def delimiter(self) -> str:
        """What joins the parts of an id in the path."""
        return self.parameter("delimiter") or DELIMITER

    def parameter(self, name: str) -> str | None:
        """Return a query parameter."""
        return next((value for key, value in self.query if key == name), None)

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
    def properties(self) -> tuple[tuple[str, str], ...]:
        """The caller's context, as a transaction carries it: headers over the body."""
        given = {f"context.{key}": value for key, value in self._context.items()}
        for name, value in self.headers.items():
            if name.startswith(CONTEXT_HEADER):
                given[f"context.{name.removeprefix(CONTEXT_HEADER)}"] = value
        return tuple(sorted(given.items()))

    @property
    def key(self) -> str | None:
        """The transaction id that an Idempotency-Key stands for."""
        given = self.headers.get(IDEMPOTENCY_KEY)
        if not given:
            return None
        try:
            return str(UUID(given))
        except ValueError:
            return str(uuid5(NAMESPACE_OID, given))

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
        fields = self._from_query(model) | self._from_body()
        adapt(fields)
        self._context = _texts(fields.get("context"))
        request = model.model_validate(fields)
        named = getattr(request, "id", None)
        if named is not None and self.object_id is not None and tuple(named) != self.parts:
            raise InvalidInputError(
                f"the body names {named}, and the path {list(self.parts)}: name one object"
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
        if self.stream is not None or not self.body.strip():
            return {}
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise InvalidInputError(f"the body is no JSON: {error}") from error
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise InvalidInputError("the body is no JSON object")
        return found

    def _from_query(self, model: type[BaseModel]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in self.query:
            if name not in model.model_fields or name in _ALWAYS:
                continue
            kind = str(model.model_fields[name].annotation)
            if "List" in kind:
                found.setdefault(name, []).append(value)
            elif name in found:
                raise InvalidInputError(f"the parameter {name} is given twice")
            elif "Dict" in kind:
                found[name] = _json_object(name, value)
            else:
                found[name] = _scalar(name, value, kind)
        return found

    def arrow(self) -> pa.RecordBatchReader:
        """Open the body as an Arrow IPC stream; rows are read as they are asked for."""
        assert self.stream is not None
        try:
            return pa.ipc.open_stream(self.stream)
        except (pa.ArrowException, OSError) as error:
            raise InvalidInputError(f"the body is no Arrow IPC stream: {error}") from error

    def need_arrow(self) -> None:
        """Refuse a body of another type."""
        given = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if given != ARROW_STREAM:
            raise HttpError(
                415, f"{self.operation} takes {ARROW_STREAM}, not {given or 'an untyped body'}"
            )


def _scalar(name: str, value: str, kind: str) -> Any:
    if "bool" in kind.lower():
        if value.lower() not in _BOOLEANS:
            raise InvalidInputError(f"{name} is true or false, not {value!r}")
        return _BOOLEANS[value.lower()]
    if "int" in kind.lower():
        try:
            return int(value)
        except ValueError:
            raise InvalidInputError(f"{name} is a whole number, not {value!r}") from None
    return value


def _json_object(name: str, value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise InvalidInputError(f"{name} is a JSON object, not {value!r}") from None


def _texts(context: Any) -> dict[str, str]:
    if not isinstance(context, Mapping):
        return {}
    return {str(k): v for k, v in context.items() if isinstance(v, str)}


def one_of(name: str, value: str | None, *allowed: str) -> str:
    """Return a choice, written in PascalCase or snake_case, as snake_case; the first by default."""
    if not value:
        return allowed[0]
    plain = value.replace("_", "").lower()
    for choice in allowed:
        if choice.replace("_", "") == plain:
            return choice
    raise InvalidInputError(f"{name} is one of {', '.join(allowed)}, not {value!r}")


def page(names: list[str], token: str | None, limit: int | None) -> tuple[list[str], str | None]:
    """Return the part of sorted names that follows `token`, and the token of the next part."""
    if limit is not None and limit < 1:
        raise InvalidInputError(f"limit is at least 1, not {limit}")
    rest = [name for name in names if not token or name > token]
    if limit is None or len(rest) <= limit:
        return rest, None
    return rest[:limit], rest[limit - 1]
