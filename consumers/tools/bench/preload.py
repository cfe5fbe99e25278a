"""What the server that writers are forked from imports before the first fork.

Nothing of lance runs there, only its import, so none of its threads is lost in a fork.
"""

import contextlib
import warnings

warnings.filterwarnings("ignore", message="lance is not fork-safe")
warnings.filterwarnings("ignore", message="lancedb fork support")

# What a first commit would import.
import commitlog.client.commits.execution  # noqa: E402
import commitlog.core.lance.operation_check  # noqa: E402, F401
import consumers.tools.bench.commit  # noqa: E402
import consumers.tools.bench.merge  # noqa: E402, F401

for _peer in ("lancedb", "deltalake"):
    with contextlib.suppress(ModuleNotFoundError):
        __import__(_peer)
