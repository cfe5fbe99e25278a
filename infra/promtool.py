"""Build Prometheus' promtool with Go and keep it in the cache: `python -m infra.promtool`.

It checks `infra/watch`. The build takes five minutes of CPU, once.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from consumers.broker.jars import cache_root
from infra.iceberg_clients import find_go

MODULE, VERSION = "github.com/prometheus/prometheus", "v0.315.0"
BUILD_SECONDS = 3_600


def promtool_path() -> Path:
    """Return where a promtool that was built is."""
    return cache_root() / f"promtool-{VERSION}"


def build(go: str) -> Path:
    """Build it if it isn't there."""
    target = promtool_path()
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            program = f"{MODULE}/cmd/promtool"
            # Its module replaces others, which `go install` refuses.
            for arguments in (
                ["mod", "init", "promtool"],
                ["get", f"{program}@{VERSION}"],
                ["build", "-ldflags", "-s -w", "-o", str(target), program],
            ):
                subprocess.run([go, *arguments], cwd=folder, check=True, timeout=BUILD_SECONDS)
    return target


if __name__ == "__main__":
    found = find_go()
    print(build(found) if found else "there is no Go: install it and put it on the PATH")
