"""Iceberg's Java library, driven from here: the judge of which concurrent commits may go through.

A JVM with the runtime's jar holds two catalogues: Iceberg's own in memory, and a client of ours. A
table's operations pass through Python, so a commit can be made late: others commit between the
client's last look at the table and its request. Files are names only; the library reads manifests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from py4j import java_gateway, protocol  # type: ignore[import-untyped]
from py4j.java_gateway import (  # type: ignore[import-untyped]
    CallbackServerParameters,
    GatewayParameters,
    JavaGateway,
    launch_gateway,
)
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from consumers.broker.java import find_java
from infra import maven_jars, oldest_spark

_JAVA_OPTIONS = ("-XX:TieredStopAtLevel=1", "-Xmx512m")
_SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "required": False, "type": "long"},
        {"id": 2, "name": "p", "required": False, "type": "string"},
    ],
}
_SPEC = {
    "spec-id": 0,
    "fields": [{"name": "p", "transform": "identity", "source-id": 2, "field-id": 1000}],
}
NAMESPACE = "judged"
COMMITTED = "committed"

Refused: type[Exception] = Py4JJavaError


def why(error: Any) -> str:
    """Return the name of the Java exception's class."""
    return str(error.java_exception.getClass().getSimpleName())


class _LateOperations:
    """A table's operations; once, something else happens right before a commit."""

    def __init__(self, real: Any, before: Callable[[], None] | None) -> None:
        self._real = real
        self._before = before
        self.first = ""
        """What became of the first request."""

    def commit(self, base: Any, metadata: Any) -> None:
        if self._before is not None:
            before, self._before = self._before, None
            before()
        try:
            self._real.commit(base, metadata)
        except Refused as error:
            self.first = self.first or why(error)
            raise
        self.first = self.first or COMMITTED

    def current(self) -> Any:
        return self._real.current()

    def refresh(self) -> Any:
        return self._real.refresh()

    def io(self) -> Any:
        return self._real.io()

    def encryption(self) -> Any:
        return self._real.encryption()

    def metadataFileLocation(self, name: str) -> Any:  # noqa: N802
        return self._real.metadataFileLocation(name)

    def locationProvider(self) -> Any:  # noqa: N802
        return self._real.locationProvider()

    def temp(self, metadata: Any) -> Any:
        return self._real.temp(metadata)

    def newSnapshotId(self) -> Any:  # noqa: N802
        return self._real.newSnapshotId()

    def requireStrictCleanup(self) -> Any:  # noqa: N802
        return self._real.requireStrictCleanup()

    class Java:
        implements = ("org.apache.iceberg.TableOperations",)


class JavaIceberg:
    """The library in a JVM, with its own catalogue in memory and one over an address."""

    def __init__(self, gateway: JavaGateway, uri: str) -> None:
        """Open both catalogues and make the namespace in them."""
        self._gateway = gateway
        self.java: Any = gateway.jvm
        self.api: Any = gateway.jvm.org.apache.iceberg
        theirs = self.api.inmemory.InMemoryCatalog()
        theirs.initialize("theirs", {})
        ours = self.api.rest.RESTCatalog()
        ours.setConf(gateway.jvm.org.apache.hadoop.conf.Configuration())
        ours.initialize("ours", {"uri": uri})
        self.catalogs: Mapping[str, Any] = {"ours": ours, "theirs": theirs}
        name = self.array(self.java.java.lang.String, [NAMESPACE])
        self._namespace = self.api.catalog.Namespace.of(name)
        for catalog in self.catalogs.values():
            if not catalog.namespaceExists(self._namespace):
                catalog.createNamespace(self._namespace, {})

    def create(self, catalog: str, name: str, properties: Mapping[str, str]) -> None:
        """Make a table of two columns, partitioned by the second one."""
        schema = self.api.SchemaParser.fromJson(json.dumps(_SCHEMA))
        spec = self.api.PartitionSpecParser.fromJson(schema, json.dumps(_SPEC))
        builder = self.catalogs[catalog].buildTable(self._named(name), schema)
        builder.withPartitionSpec(spec).withProperties(dict(properties)).create()

    def table(self, catalog: str, name: str) -> Any:
        """Load a table."""
        return self.catalogs[catalog].loadTable(self._named(name))

    def late(
        self, catalog: str, name: str, before: Callable[[], None]
    ) -> tuple[Any, _LateOperations]:
        """Load a table whose next commit comes late, and what hears of its first request."""
        operations = _LateOperations(self.table(catalog, name).operations(), before)
        return self.api.BaseTable(operations, name), operations

    def tasks(self, table: Any) -> list[Any]:
        """Return the files that a scan is told of, with their delete files."""
        found = table.newScan().planFiles()
        return list(self.api.relocated.com.google.common.collect.Lists.newArrayList(found))

    def array(self, of: Any, values: Sequence[Any]) -> Any:
        """Return a Java array; py4j has none for a call with any number of arguments."""
        made = self._gateway.new_array(of, len(values))
        for number, value in enumerate(values):
            made[number] = value
        return made

    def _named(self, name: str) -> Any:
        return self.api.catalog.TableIdentifier.of(self._namespace, name)


@contextmanager
def java_iceberg(uri: str) -> Iterator[JavaIceberg]:
    """Run the library beside a catalogue of ours."""
    jars = maven_jars.fetch(oldest_spark.PINS)
    runtime = sorted(jars.glob(f"*{oldest_spark.ICEBERG}*.jar"))
    spark = Path(pyspark.__file__).parent / "jars"
    # Hadoop's file systems and logging come with PySpark.
    # A Spark session in this process looks up every Java exception in its own JVM.
    of_spark = java_gateway.get_return_value
    java_gateway.get_return_value = protocol.get_return_value
    port = launch_gateway(
        jarpath=str(next(spark.glob("py4j-*.jar"))),
        classpath=":".join([*map(str, runtime), f"{spark}/*"]),
        java_path=str(find_java().path),
        javaopts=list(_JAVA_OPTIONS),
        die_on_exit=True,
    )
    gateway = JavaGateway(
        gateway_parameters=GatewayParameters(port=port, auto_convert=True),
        callback_server_parameters=CallbackServerParameters(
            port=0, daemonize=True, daemonize_connections=True, propagate_java_exceptions=True
        ),
    )
    try:
        server = gateway.java_gateway_server
        address = server.getCallbackClient().getAddress()
        server.resetCallbackClient(address, gateway.get_callback_server().get_listening_port())
        yield JavaIceberg(gateway, uri)
    finally:
        gateway.shutdown()
        java_gateway.get_return_value = of_spark
