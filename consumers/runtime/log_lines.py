"""Log lines as JSON, one object per line, for those who search logs by their fields.

`COMMITLOG_LOG_FORMAT=json` chooses it for every part.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any

VARIABLE = "COMMITLOG_LOG_FORMAT"


def is_json() -> bool:
    """Return True if this process is a part that writes its log as JSON."""
    return any(isinstance(one.formatter, JsonLines) for one in logging.getLogger().handlers)


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object: its facts are fields."""

    def __init__(self, part: str) -> None:
        """Say in each line which part it is from."""
        super().__init__()
        self._part = part

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "part": self._part,
            "logger": record.name,
            "message": record.getMessage(),
        }
        facts = getattr(record, "facts", None)
        if isinstance(facts, dict):
            line |= facts
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
