"""Folders that refuse to be listed, for root too."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest


def refuse_to_list(patched: pytest.MonkeyPatch, ending: str, number: int = errno.EACCES) -> None:
    """Have folders whose paths end so fail with an error of the system when they are listed."""
    for name in ("scandir", "listdir"):
        patched.setattr(os, name, _refusing(getattr(os, name), ending, number))


def _refusing(listed: Any, ending: str, number: int) -> Any:
    def refusing(path: Any = ".") -> Any:
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).endswith(ending):
            raise OSError(number, os.strerror(number), os.fspath(path))
        return listed(path)

    return refusing
