"""Get Lance's clients that aren't Python's: `python -m infra.namespace_clients`.

Java's are jars that the tests fetch themselves. The program over Rust's takes 90 seconds of CPU to
compile, so only this builds it, once, into the cache.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from consumers.broker.java import find_java
from infra import iceberg_clients, maven_jars

RUST_SOURCE = Path(__file__).with_name("namespace_rust")
JAVA_SOURCE = Path(__file__).with_name("namespace_java") / "Calls.java"
PINS = Path(__file__).with_name("namespace-java-jars.txt")
LIBRARY_SOURCE = Path(__file__).with_name("lance_java") / "Library.java"
LIBRARY_PINS = Path(__file__).with_name("lance-java-jars.txt")
NO_RUST = "there is no Cargo 1.85 or newer: install it, put it on the PATH"
NO_RUST_PROGRAM = (
    "the program over Lance's Rust client isn't built: run `python -m infra.namespace_clients`"
)


class NoCompiler(Exception):
    """The Java that was found can't compile."""


def built_rust_program() -> Path | None:
    """Return the program over the Rust client if it is built."""
    return iceberg_clients.built_rust_program(RUST_SOURCE)


def java_program(source: Path = JAVA_SOURCE, pins: Path = PINS) -> list[str]:
    """Return the command that compiles and runs a program over a Java client.

    Raises:
        NoCompiler: Java is a runtime alone.
        JarsUnavailable: the jars aren't in the cache, and no registry answers.
    """
    java = str(find_java().path)
    modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=True)
    if "jdk.compiler" not in modules.stdout:
        raise NoCompiler(f"{java} has no compiler: install a JDK, 17 or newer")
    opens = "--add-opens=java.base/java.nio=ALL-UNNAMED"  # Arrow looks at buffers' addresses
    return [java, opens, "-cp", f"{maven_jars.fetch(pins)}/*", str(source)]


if __name__ == "__main__":
    print(maven_jars.fetch(PINS), maven_jars.fetch(LIBRARY_PINS))
    cargo = iceberg_clients.find_cargo()
    print(iceberg_clients.rust_program(cargo, RUST_SOURCE) if cargo else NO_RUST)
