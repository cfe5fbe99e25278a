"""Storage options: what it takes to reach a location, besides the location.

They are pylance's own (`endpoint`, `region`, `aws_access_key_id`, ...) and hold for all that is
below a prefix. Nothing of them is ever recorded: each process has its own, from a file, from its
code, and for the rest from its environment. The file is named by COMMITLOG_STORAGE_FILE:

[stores."s3://lake"]                      # used by this process for what is there
endpoint = "https://store.example:9000"
aws_access_key_id = { env = "LAKE_ID" }
aws_secret_access_key = { file = "/run/secrets/lake" }

[options]                                 # returned by the server with each location
region = "eu-central-1"

[credentials]                             # returned only on request
aws_access_key_id = { env = "VENDED_ID" }

[vending."s3://lake"]                     # access to one table's files, by grant
role_arn = "arn:aws:iam::123456789012:role/lake"

[options."s3://lake"]                     # the same, for what is there
endpoint = "https://store.example:9000"
"""

from __future__ import annotations

import os
import threading
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commitlog.adapters.places import bound, recorded
from commitlog.errors import InvalidSettings

FILE_NAMED_BY = "COMMITLOG_STORAGE_FILE"
_PARTS = ("stores", "options", "credentials", "vending")


@dataclass(frozen=True, slots=True)
class Scoped:
    """Options by the prefix of the locations that they are for; "" is for all."""

    by_prefix: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)

    def at(self, location: str) -> dict[str, str]:
        """Return what holds at a location; where prefixes disagree, the longest wins."""
        fitting = (p for p in self.by_prefix if not p or f"{location}/".startswith(f"{p}/"))
        found: dict[str, str] = {}
        for prefix in sorted(fitting, key=len):
            found.update(self.by_prefix[prefix])
        return found


@dataclass(frozen=True, slots=True)
class StorageFile:
    """What a storage file says."""

    stores: Scoped = Scoped()
    options: Scoped = Scoped()
    credentials: Scoped = Scoped()
    vending: Scoped = Scoped()


class _Known:
    """This process's options."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.file: StorageFile | None = None
        self.given: dict[str, Mapping[str, str]] = {}


_known = _Known()


def use_storage_file(path: str) -> StorageFile:
    """Take this process's options from a file, none if the path is empty; InvalidSettings."""
    _known.file = read_storage_file(path)
    return _known.file


def use_storage_options(location: str, options: Mapping[str, str]) -> None:
    """Reach everything at or below a location with these options, in this process.

    They override the storage file, which overrides the environment. No options: forget them.
    """
    if not isinstance(location, str) or not isinstance(options, Mapping | None):
        raise InvalidSettings(
            f"storage options are a mapping for a location, not a {type(options).__name__} for"
            f" {location!r}"
        )
    prefix = location.rstrip("/")
    with _known.lock:
        given = dict(_known.given)
        given.pop(prefix, None)
        if options:
            given[prefix] = {str(name): str(value) for name, value in options.items()}
        _known.given = given


def storage_options(location: str) -> dict[str, str]:
    """Return the options of a location, as pylance takes them; InvalidSettings."""
    file = _known.file or use_storage_file(os.environ.get(FILE_NAMED_BY, ""))
    known = Scoped(_known.given)
    given = known.at(recorded(location)) | known.at(bound(location))
    found = file.stores.at(bound(location)) | given
    endpoint = next((v for k, v in found.items() if k.lower().endswith("endpoint")), "")
    if endpoint.startswith("http://"):
        # A configured endpoint may use plain HTTP; pylance wants that said twice.
        found.setdefault("allow_http", "true")
    return found


def read_storage_file(path: str) -> StorageFile:
    """Read a storage file; it says nothing if the path is empty. InvalidSettings."""
    if not path:
        return StorageFile()
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"storage_file {path} cannot be read: {error}") from error
    unknown = sorted(set(table) - set(_PARTS))
    if unknown:
        raise InvalidSettings(
            f"storage_file {path}: {unknown[0]!r} is not one of "
            f"{', '.join(f'[{name}]' for name in _PARTS)}"
        )
    return StorageFile(*(_scoped(path, name, table.get(name, {})) for name in _PARTS))


def _scoped(path: str, part: str, table: Any) -> Scoped:
    if not isinstance(table, Mapping):
        raise InvalidSettings(f"storage_file {path}: {part} must be a table, not {table!r}")
    by_prefix: dict[str, dict[str, str]] = {"": {}}
    for name, value in table.items():
        if isinstance(value, Mapping) and ("://" in name or name.startswith("/")):
            within = value.items()
            by_prefix[name.rstrip("/")] = {k: _text(path, f"{name}: {k}", v) for k, v in within}
        else:
            by_prefix[""][name] = _text(path, name, value)
    return Scoped({prefix: options for prefix, options in by_prefix.items() if options})


def _text(path: str, name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and set(value) == {"env"}:
        found = os.environ.get(str(value["env"]))
        if found is not None:
            return found
    if isinstance(value, Mapping) and set(value) == {"file"}:
        try:
            return Path(str(value["file"])).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise InvalidSettings(f"storage_file {path}: {name}: {error}") from error
    raise InvalidSettings(
        f'storage_file {path}: {name} must be text, {{ env = "NAME" }} with a variable '
        'that is set, or { file = "PATH" }'
    )
