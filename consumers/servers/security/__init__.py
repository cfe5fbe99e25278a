"""Who may do what over HTTP: credentials, grants and limits, for all APIs on the port."""

import commitlog.adapters.lean_import  # noqa: F401  # before what imports that library
