"""What the server that writers are forked from imports before the first fork.

Nothing of lance runs there, only its import, so none of its threads is lost in a fork.
"""

import warnings

warnings.filterwarnings("ignore", message="lance is not fork-safe")

import consumers.bench.commit  # noqa: E402, F401
