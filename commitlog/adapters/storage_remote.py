"""Tables in an object store: S3, Google Cloud Storage, Azure, through obstore.

Addresses and credentials come from the environment, by the names that the cloud's own tools use
(`AWS_ACCESS_KEY_ID`, `AWS_REGION`, `AWS_ENDPOINT`, ...).

A store that has no conditional puts (`If-None-Match`) serves as well: `create` looks, then puts.
The log has decided by then what stands under a name, and whoever may put it puts the same bytes, so
two of ours do no harm. What it cannot do there is notice a stranger who writes between the look and
the put. A store that refuses the header is noticed; one that ignores it has to be told of
(`AWS_CONDITIONAL_PUT=disabled`), and `commitlog doctor` finds it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from commitlog.errors import InvalidTransaction, UnsupportedFormat

SCHEMES = frozenset({"s3", "s3a", "gs", "az", "abfs", "abfss"})
_TIMEOUT = {"timeout": "30s", "connect_timeout": "5s"}
_RETRY = {"max_retries": 3}
_REFUSED = "501 Not Implemented"
"""How a store answers a header that it doesn't know."""
_WITHOUT_CONDITIONS: set[tuple[str, str]] = set()
"""Buckets, and where they are, that refused a conditional put: asking again takes its time."""


class RemoteStore:
    """Objects below a URI."""

    def __init__(self, location: str) -> None:
        """Open the store of a URI; no request is made yet."""
        try:
            import obstore
            from obstore.exceptions import AlreadyExistsError, BaseError
            from obstore.store import from_url
        except ModuleNotFoundError as error:
            raise UnsupportedFormat(
                f"location {location!r} is in an object store: pip install "
                "'lance-commitlog[objects]'"
            ) from error
        self._objects: Any = obstore
        endpoint = os.environ.get("AWS_ENDPOINT") or os.environ.get("AWS_ENDPOINT_URL", "")
        self._bucket = "/".join(location.split("/", 3)[:3]), endpoint
        self._exists: type[Exception] = AlreadyExistsError
        self._failed: type[Exception] = BaseError
        # A server of one's own may speak plain HTTP; whoever names one means it.
        options: Any = {**_TIMEOUT, "allow_http": True}
        retries: Any = _RETRY
        with self._errors():
            self._store: Any = from_url(location, client_options=options, retry_config=retries)

    @property
    def has_put_if_absent(self) -> bool:
        """Whether the store takes conditional puts, as far as is known."""
        return self._bucket not in _WITHOUT_CONDITIONS

    def read(self, path: str) -> bytes:
        """Return an object's bytes; raise FileNotFoundError."""
        with self._errors():
            return bytes(self._objects.get(self._store, _confined(path)).bytes())

    def size(self, path: str) -> int:
        """Return an object's size in bytes, or -1 if there is none."""
        try:
            with self._errors():
                return int(self._objects.head(self._store, _confined(path))["size"])
        except FileNotFoundError:
            return -1

    def write(self, path: str, data: bytes) -> None:
        """Put an object, replacing what was there."""
        with self._errors():
            self._objects.put(self._store, _confined(path), data, use_multipart=False)

    def create(self, path: str, data: bytes) -> bool:
        """Put an object if there is none; return whether this call did."""
        if self.has_put_if_absent:
            try:
                return self._put_if_absent(path, data)
            except NotImplementedError:
                _WITHOUT_CONDITIONS.add(self._bucket)
        if self.size(path) >= 0:
            return False
        self.write(path, data)
        return True

    def write_ahead(self, path: str, data: bytes) -> None:
        """Put an object that nobody looks for until another one, put afterwards, names it."""
        self.write(path, data)

    def move(self, path: str, to: str) -> None:
        """Give an object another path; raise FileNotFoundError."""
        with self._errors():
            self._objects.rename(self._store, _confined(path), _confined(to))

    def delete(self, path: str) -> None:
        """Remove an object if it is there."""
        try:
            with self._errors():
                self._objects.delete(self._store, _confined(path))
        except FileNotFoundError:
            return

    def names(self, folder: str) -> Iterator[str]:
        """Yield the names of the objects directly in a folder."""
        prefix = f"{_confined(folder)}/"
        with self._errors():
            found = self._objects.list_with_delimiter(self._store, prefix)["objects"]
        for one in found:
            yield one["path"].rpartition("/")[2]

    def walk(self) -> Iterator[str]:
        """Yield the paths of all objects."""
        with self._errors():
            for group in self._objects.list(self._store):
                for one in group:
                    yield one["path"]

    def _put_if_absent(self, path: str, data: bytes) -> bool:
        put = self._objects.put
        try:
            with self._errors():
                put(self._store, _confined(path), data, mode="create", use_multipart=False)
        except FileExistsError:
            return False
        except OSError as error:
            if _REFUSED in str(error):
                raise NotImplementedError(str(error)) from error
            raise
        return True

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Say what the store says in the words of a file system, as callers expect it."""
        try:
            yield
        except self._exists as error:
            raise FileExistsError(str(error)) from error
        except self._failed as error:
            raise OSError(str(error)) from error


def _confined(path: str) -> str:
    parts = path.split("/")
    if not path or any(part in {"", ".", ".."} for part in parts):
        raise InvalidTransaction(
            f"path {path!r} leaves the table's location",
            field="path",
            value=path,
            advice="Use a path relative to the location, without '..'",
        )
    return path
