"""Kafka client settings in a properties file, where secrets belong."""

from __future__ import annotations

import re
from pathlib import Path

from commitlog.errors import InvalidSettings

_SECRET = re.compile(
    "password|passphrase|secret|token|credential|[.]key|_key|[.]pem|jaas|oauthbearer[.]config"
)


def is_secret(name: str) -> bool:
    """Return True if the value of a setting of this name must not be shown."""
    return _SECRET.search(name.lower()) is not None


def read_kafka_file(path: str) -> dict[str, str]:
    """Return the settings in a properties file.

    Raises:
        InvalidSettings: names the file and the line.
    """
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"Kafka settings file {path} cannot be read: {error}") from error
    settings: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        name, equals, value = line.partition("=")
        if not equals:
            # The line may be a secret: it isn't repeated here.
            raise InvalidSettings(f"Kafka settings file {path}, line {number} is not KEY=VALUE")
        settings[name.strip()] = value.strip()
    return settings
