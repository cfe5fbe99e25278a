"""Tables in an object store: S3, Google Cloud Storage, Azure, through obstore.

Addresses and credentials are the location's storage options, by pylance's names; what they leave
open comes from the environment, by the names that the cloud's own tools use (`AWS_ACCESS_KEY_ID`,
`AWS_REGION`, `AWS_ENDPOINT`, ...).

A store that has no conditional puts (`If-None-Match`) serves as well: `create` looks, then puts.
By then the log has decided the bytes under a name, so two of our processes put the same bytes and
do no harm. Without conditional puts, `create` cannot notice another program that writes between the
look and the put. A store that refuses the header is detected; one that ignores it must be
configured (`AWS_CONDITIONAL_PUT=disabled`), and `commitlog doctor` finds it.
"""

from __future__ import annotations

import errno
import logging
import os
import tempfile
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

from commitlog.adapters.places import leads_outside
from commitlog.adapters.storage import (
    CHUNK_BYTES,
    FileFound,
    LocalStore,
    UnlistableError,
    sha256_of,
)
from commitlog.adapters.storage_options import storage_options
from commitlog.errors import InvalidSettings, UnsupportedFormat
from commitlog.model.limits import READ_BYTES_MAX
from commitlog.newest import Newest

SCHEMES = frozenset({"s3", "s3a", "gs", "az", "abfs", "abfss"})
_TIMEOUT = {"timeout": "30s", "connect_timeout": "5s"}
_RETRIES_MAX = 3
_RETRIES = "client_max_retries"
_LANCE_ALONE = frozenset({"client_retry_timeout", "download_retry_count"})
_CLIENT = frozenset(
    {
        *("allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type"),
        *("http1_only", "http2_only", "http2_keep_alive_interval", "http2_keep_alive_timeout"),
        *("http2_keep_alive_while_idle", "http2_max_frame_size", "pool_idle_timeout"),
        *("pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes", "proxy_url"),
        *("randomize_addresses", "timeout", "user_agent"),
    }
)
"""Options of the HTTP client, which all stores have."""
_REFUSED = "501 Not Implemented"
"""How a store answers a header that it doesn't know."""
_WITHOUT_CONDITIONS: set[tuple[str, str]] = set()
"""Buckets, and where they are, that refused a conditional put: asking again takes its time."""
_ENVIRONMENT = ("AWS_", "AZURE_", "GOOGLE_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
"""How the variables begin that say how to reach a store."""
_STORES: Newest[Hashable, RemoteStore] = Newest(64)

logger = logging.getLogger(__name__)


class _SortedOut(NamedTuple):
    config: dict[str, str]
    client: dict[str, str]
    retry: Any


def _sorted_out(options: Mapping[str, str]) -> _SortedOut:
    """Return pylance's storage options as obstore takes them."""
    lower = {name.lower(): value for name, value in options.items()}
    retries = lower.pop(_RETRIES, str(_RETRIES_MAX))
    if not retries.isdecimal():
        raise InvalidSettings(f"storage option {_RETRIES} must be a number, not {retries!r}")
    return _SortedOut(
        {k: v for k, v in lower.items() if k not in _CLIENT | _LANCE_ALONE},
        {k: v for k, v in lower.items() if k in _CLIENT},
        {"max_retries": int(retries)},
    )


class RemoteStore:
    """Objects below a URI."""

    renames: ClassVar[bool] = False

    def __init__(self, location: str) -> None:
        """Open the store of a URI; no request is made yet."""
        try:
            import obstore
            from obstore.exceptions import (
                AlreadyExistsError,
                BaseError,
                InvalidPathError,
                PreconditionError,
                UnknownConfigurationKeyError,
            )
            from obstore.store import from_url
        except ModuleNotFoundError as error:
            raise UnsupportedFormat(
                f"location {location!r} is in an object store: pip install "
                "'lance-commitlog[objects]'"
            ) from error
        self._objects: Any = obstore
        given = _sorted_out(storage_options(location))
        named = [v for k, v in given.config.items() if k.endswith("endpoint")]
        named += [os.environ.get(name, "") for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL")]
        endpoint = next(filter(None, named), "")
        scheme, _, bucket, *prefix = location.split("/", 3)
        self._bucket = f"{scheme}//{bucket}", endpoint
        self._prefix = "".join(prefix).strip("/")
        self._exists = (AlreadyExistsError, PreconditionError)
        self._unlistable: type[Exception] = InvalidPathError
        self._failed: type[Exception] = BaseError
        # A configured endpoint may use plain HTTP.
        options: Any = {**_TIMEOUT, "allow_http": "true", **given.client}
        config: Any = given.config

        def opened(uri: str) -> Any:
            return from_url(uri, config=config, client_options=options, retry_config=given.retry)

        self._opened = opened
        try:
            self._store: Any = opened(location)
        except UnknownConfigurationKeyError as error:
            name = next((name for name in config if f"'{name}'" in str(error)), "")
            raise InvalidSettings(
                f"storage option {name!r} of {location} is unknown for this store; use pylance's "
                "names, for example endpoint, region, access_key_id"
            ) from error
        except (BaseError, ValueError) as error:
            # What it says may repeat a secret.
            raise InvalidSettings(
                f"the storage options {', '.join(sorted(config)) or 'of the environment'} of"
                f" {location} don't open a store ({type(error).__name__}); correct their values"
            ) from None

    @cached_property
    def _whole_bucket(self) -> Any:
        return self._opened(self._bucket[0])

    @property
    def has_put_if_absent(self) -> bool:
        """Whether the store takes conditional puts, as far as is known."""
        return self._bucket not in _WITHOUT_CONDITIONS

    def read(self, path: str) -> bytes:
        """Return an object's bytes; FileNotFoundError. One that is too large isn't fetched."""
        size, read = self.opened(path)
        if size > READ_BYTES_MAX:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        return read()

    def opened(self, path: str) -> tuple[int, Callable[[], bytes]]:
        """Return an object's size, and what reads it; raise FileNotFoundError."""
        with self._errors():
            found = self._objects.get(self._store, _confined(path))

        def read() -> bytes:
            with self._errors():
                return bytes(found.bytes())

        return int(found.meta["size"]), read

    def digest(self, path: str) -> str:
        """Return an object's SHA-256; if it is too large to be read, that of what the store says.

        Raises FileNotFoundError.
        """
        with self._errors():
            found = self._objects.get(self._store, _confined(path))
            if found.meta["size"] <= READ_BYTES_MAX:
                return sha256_of(bytes(found.bytes()))
        return sha256_of(repr(sorted(found.meta.items())).encode())

    def size(self, path: str) -> int:
        """Return an object's size in bytes, or -1 if there is none."""
        found = self.found(path)
        return -1 if found is None else found.size

    def write(self, path: str, data: bytes) -> None:
        """Put an object, replacing what was there."""
        with self._errors():
            self._objects.put(self._store, _confined(path), data, use_multipart=False)

    def create(self, path: str, data: bytes) -> bool:
        """Put an object if there is none; return True if this call did."""
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
        """Put an object that is not read until another one, put afterwards, names it."""
        self.write(path, data)

    def write_hint(self, path: str, data: bytes) -> None:
        """Put an object, as any other."""
        self.write(path, data)

    def keep(self, path: str) -> None:
        """Do nothing: what is there stays there."""

    def move(self, path: str, to: str) -> None:
        """Give an object another path; raise FileNotFoundError."""
        with self._errors():
            self._objects.rename(self._store, _confined(path), _confined(to))

    def set_aside(self, path: str, to: str, sha256: str) -> bool:
        """Give an object another path if its bytes have this digest; return True if they had.

        Its client has no conditional removal: what another process puts between the last look and
        the removal is lost. If that is a manifest, the leader soon puts it back, since it looks for
        missing ones every minute. Raise FileNotFoundError.
        """
        size, read = self.opened(path)
        if size > READ_BYTES_MAX:
            if self.digest(path) != sha256:
                return False
            self._copy(self, path, to)
        else:
            data = read()
            if sha256_of(data) != sha256:
                return False
            self.write(to, data)
        if self.digest(path) != sha256:
            return False
        self.delete(path)
        return True

    def replace(self, path: str, data: bytes, sha256: str) -> bool:
        """Put an object in place of one whose bytes have this digest; return True if this call did.

        The store compares, where it takes conditional puts.
        """
        place = _confined(path)
        try:
            with self._errors():
                found = self._objects.get(self._store, place)
                if found.meta["size"] > READ_BYTES_MAX or sha256_of(bytes(found.bytes())) != sha256:
                    return False
                known = {n: found.meta[n] for n in ("e_tag", "version") if found.meta.get(n)}
                mode = known if self.has_put_if_absent and known else "overwrite"
                self._objects.put(self._store, place, data, mode=mode, use_multipart=False)
        except (FileNotFoundError, FileExistsError):
            return False
        return True

    def delete(self, path: str) -> None:
        """Remove an object if it is there."""
        with suppress(FileNotFoundError), self._errors():
            self._objects.delete(self._store, _confined(path))

    def names(self, folder: str) -> Iterator[str]:
        """Yield the names of the objects directly in a folder."""
        prefix = f"{_confined(folder)}/"
        with self._errors():
            found = self._objects.list_with_delimiter(self._store, prefix)["objects"]
        for one in found:
            yield one["path"].rpartition("/")[2]

    def walk(self) -> Iterator[str]:
        """Yield the paths of all objects."""
        return (one.path for one in self.files())

    def files(self, below: str = "") -> Iterator[FileFound]:
        """Yield all objects in a folder."""
        with self._errors():
            prefix = f"{_confined(below)}/" if below else None
            for group in self._objects.list(self._store, prefix):
                yield from map(_file_found, group)

    def folders(self, folder: str = "") -> tuple[list[str], list[str]]:
        """Return the paths of the objects directly in a folder, and those of its folders."""
        prefix = f"{_confined(folder)}/" if folder else None
        with self._errors():
            found = self._objects.list_with_delimiter(self._store, prefix)
        return [one["path"] for one in found["objects"]], list(found["common_prefixes"])

    def found(self, path: str) -> FileFound | None:
        """Return an object as it would be listed, or None if there is none."""
        try:
            with self._errors():
                return _file_found(self._objects.head(self._store, _confined(path)))
        except FileNotFoundError:
            return None

    def prune(self, folder: str = "") -> None:
        """Do nothing: there are no folders."""

    def chunks(self, path: str) -> Iterator[bytes]:
        """Yield an object's bytes, some at a time; raise FileNotFoundError."""
        with self._errors():
            found = self._objects.get(self._store, _confined(path))
            for chunk in found.stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(chunk)

    def take(self, path: str, source: LocalStore | RemoteStore) -> None:
        """Put a file of another store's under the same path, whatever its size."""
        self._copy(source, path, path)

    def _copy(self, source: LocalStore | RemoteStore, path: str, to: str) -> None:
        """Put a file of a store's under a path.

        Within one bucket the store copies it by itself, if it can (`CopyObject`).
        """
        if isinstance(source, RemoteStore) and source._bucket == self._bucket:
            places = (source._prefix, path), (self._prefix, to)
            names = (f"{prefix}/{_confined(one)}".lstrip("/") for prefix, one in places)
            try:
                with self._errors():
                    self._objects.copy(self._whole_bucket, *names)
                return
            except FileNotFoundError:
                raise
            except OSError as error:
                logger.info("%s is copied through this process: %s", path, error)
        # By way of a file: obstore cannot read one object while it writes another.
        with tempfile.TemporaryFile() as file:
            file.writelines(source.chunks(path))
            file.seek(0)
            with self._errors():
                self._objects.put(self._store, _confined(to), file)

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
        except self._unlistable as error:
            raise UnlistableError(str(error)) from error
        except self._failed as error:
            # What follows is how a library of another language notes it: a page, with one reason.
            said, _, noted = str(error).partition("\n\nDebug source")
            late = " (no answer in time)" if "kind: Timeout" in noted else ""
            raise OSError(f"{said}{late}") from error


def remote_store(location: str) -> RemoteStore:
    """Return the store of a URI, with the connections and credentials that it had before.

    Another one is made if options or environment say something else now, and in a forked child,
    which must not write to its parent's connections.
    """
    said = [one for one in os.environ.items() if one[0].upper().startswith(_ENVIRONMENT)]
    options = storage_options(location)
    key = (location, os.getpid(), frozenset(options.items()), frozenset(said))
    found = _STORES.get(key)
    if found is None:
        found = _STORES[key] = RemoteStore(location)
    return found


def _file_found(said: Mapping[str, Any]) -> FileFound:
    return FileFound(said["path"], said["size"], int(said["last_modified"].timestamp() * 1000))


def _confined(path: str) -> str:
    if not path or any(part in {"", ".", ".."} for part in path.split("/")):
        raise leads_outside(path)
    return path
