"""Storage options: what clients need to reach a table's location, besides the location.

[options]                                 # returned with each location
region = "eu-central-1"

[credentials]                             # returned only to who asks for them
aws_access_key_id = { env = "VENDED_ID" }
aws_secret_access_key = { file = "/run/secrets/vended" }
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from consumers.config import ConfigurationError


def read_storage_options(path: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return options and credentials of a file; both empty without one."""
    if not path:
        return {}, {}
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"storage_file {path} cannot be read: {error}") from error
    unknown = sorted(set(table) - {"options", "credentials"})
    if unknown:
        raise ConfigurationError(
            f"storage_file {path}: {unknown[0]!r} is neither [options] nor [credentials]"
        )
    options, credentials = (
        {name: _text(path, name, value) for name, value in table.get(part, {}).items()}
        for part in ("options", "credentials")
    )
    return options, credentials


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
            raise ConfigurationError(f"storage_file {path}: {name}: {error}") from error
    raise ConfigurationError(
        f'storage_file {path}: {name} is a text, {{ env = "NAME" }} of a variable that is set, or'
        ' { file = "PATH" }'
    )
