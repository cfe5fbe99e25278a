"""Lance's namespace library, imported in a third of the time; import this before that.

The library takes its models from a package that also brings an HTTP client: 366 functions, for
which pydantic builds checks. Nothing here calls them, and they cost each process 0.65 s of CPU. So
the client is imported when somebody asks for it, as a program beside the log may.
"""

from __future__ import annotations

import sys
import threading
from importlib import import_module
from importlib.util import find_spec, module_from_spec


def _leave_for_later(name: str) -> None:
    """Put a package in place whose submodules can be imported, and which is executed if used."""
    spec = find_spec(name)
    if name in sys.modules or spec is None or spec.loader is None:
        return
    package, loader = module_from_spec(spec), spec.loader
    lock, executed = threading.RLock(), False

    def attribute(wanted: str) -> object:
        nonlocal executed
        if find_spec(f"{name}.{wanted}"):  # as its own modules ask for each other
            return import_module(f"{name}.{wanted}")
        with lock:
            if not executed:
                executed = True
                loader.exec_module(package)
        try:
            return vars(package)[wanted]
        except KeyError:
            raise AttributeError(f"module {name!r} has no attribute {wanted!r}") from None

    vars(package)["__getattr__"] = attribute
    sys.modules[name] = package


_leave_for_later("lance_namespace_urllib3_client")
