"""Every block of the README and of docs/: what runs it, or why nothing does.

What is `RUN` runs on the one service and in the one Spark session of
tests/integration/test_readme.py, page by page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```", re.M | re.S)

RUN = "run as typed, after what `GIVEN` says and the blocks of its page before it"
TYPED = "run as typed by tests/integration/test_readme.py, with the others of its page"
PRINTED = "what is printed, or a picture"
PARSED = "its flags are parsed by tests/unit/test_documentation.py; run by "
READ = "read by tests/unit/test_documentation.py as the server reads it"
HOURS = "it takes minutes or hours, and says itself what it measured"
PLACES = PARSED + "tests/integration/test_places.py"
DEPLOYED = "it needs root, an image or a cluster: tests/unit/test_deployment.py checks its parts"
LANGUAGE = "run by tests/integration/test_other_languages.py"

BLOCKS: dict[str, tuple[str, ...]] = {
    "README.md": (
        *(PRINTED, "what CI and contributors run", PARSED + "tests/integration/test_up.py"),
        *(TYPED, RUN, TYPED, TYPED, PRINTED),
    ),
    "docs/backup.md": (
        PARSED + "tests/integration/test_backup.py",
        PARSED + "tests/integration/test_move.py",
        PARSED + "tests/integration/test_backup.py",
    ),
    "docs/configuration.md": (PLACES, PLACES, PARSED + "tests/unit/test_quotas.py"),
    "docs/deployment.md": (
        *(DEPLOYED, DEPLOYED, DEPLOYED),
        PARSED + "tests/integration/test_roles.py",
        "placeholders; tests/integration/test_up_secured.py starts with such settings",
    ),
    "docs/grants.md": (READ, "run with keys by tests/integration/test_vended_access.py"),
    "docs/history.md": (PRINTED, "it needs a past: tests/unit/test_sql.py asks such queries"),
    "docs/iceberg.md": (
        *(RUN, "run by tests/integration/test_iceberg_spark.py", RUN, RUN),
        "it has places to fill in; tests/unit/test_iceberg_views.py sends such requests",
        *(RUN, PRINTED),
        "run against a store by tests/integration/test_iceberg_objects.py",
        HOURS,
    ),
    "docs/languages.md": (LANGUAGE, LANGUAGE, LANGUAGE),
    "docs/maintenance.md": (
        *(RUN, RUN),
        PARSED + "tests/unit/test_orphans.py",
        *(RUN, RUN, RUN),
    ),
    "docs/operations.md": (READ, PRINTED),
    "docs/page.md": (RUN, PRINTED, RUN),
    "docs/quick-start.md": (
        "tests/integration/test_wheel.py installs a wheel, test_up.py starts it",
        *(PRINTED, TYPED, TYPED, TYPED, TYPED, TYPED),
    ),
    "docs/rows.md": (
        *(RUN, RUN),
        PARSED + "tests/integration/test_row_expiry.py",
        PARSED + "tests/integration/test_erasure.py",
        HOURS,
    ),
    "docs/server.md": (READ, RUN, RUN, READ),
    "docs/spark.md": (
        RUN,
        "run on a secured cluster by tests/integration/test_spark_secured.py",
        RUN,
        "it needs a batch that Spark repeats: tests/unit/test_spark_repeats.py",
        *(RUN, RUN, RUN),
        "run by tests/integration/test_spark_kafka.py, with jars",
        "it reads the whole log again: tests/unit/test_spark_audit.py audits a short one",
        "tests/integration/test_spark_sql.py makes such names and asks them",
    ),
    "docs/speed.md": (HOURS,),
    "docs/tutorials/audit.md": (TYPED,) * 4,
    "docs/tutorials/cdc.md": (TYPED,) * 4,
    "docs/tutorials/iceberg.md": (TYPED,) * 3,
    "docs/tutorials/rag.md": (TYPED,) * 5,
    "docs/tutorials/spark-stream.md": (TYPED,) * 4,
    "docs/verification.md": (
        PARSED + "tests/integration/test_readme.py",
        PARSED + "tests/unit/test_verify.py",
        PARSED + "tests/integration/test_replay.py",
        PARSED + "tests/integration/test_archive.py",
        RUN,
    ),
}

COMMON = """
import pyarrow as pa
from commitlog import CommitLog

log = CommitLog.connect("127.0.0.1:9092", principal="pages")
for table in log.tables():
    if table.name.startswith("shop$"):  # another page's
        log.drop_table(table.name)
schema = pa.schema([("id", pa.int64()), ("amount", pa.float64())])
rows = pa.table({"id": [1, 2], "amount": [1.0, 2.0]}, schema=schema)


def made(*names, schema=schema):
    for name in names:
        log.create_table(name, schema, primary_key="id")
        log.append(name, rows)
        log.append(name, rows)
"""
"""What a reader has by then: a connection, and tables of the README's columns."""
GIVEN = {
    "README.md": """
made("shop$orders")
frame = spark.readStream.schema("id long, amount double").json(source)
""",
    "docs/iceberg.md": "",
    "docs/maintenance.md": """
from datetime import timedelta

made("shop$orders")
log.drop_table("shop$orders")
made("shop$orders", "shop$lines")
OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
""",
    "docs/page.md": """
made("shop$orders", "shop$stock")
orders, stock, position, remember = rows, rows, None, print
""",
    "docs/rows.md": "",
    "docs/server.md": """
import lance, lance_namespace, lancedb

made("shop$orders")
URL = "http://127.0.0.1:2333"
now = str(log.position()[0])
""",
    "docs/spark.md": """
wide = schema.append(pa.field("op", pa.string())).append(pa.field("gone", pa.bool_()))
made("shop$orders", schema=wide)
log.create_table("shop$log", wide)
columns = "id long, amount double, op string, gone boolean"
frame = spark.createDataFrame([(5, 5.0, "u", False)], columns)
stream = spark.readStream.schema(columns).json(source)
""",
    "docs/verification.md": "",
}
HERE = {
    "docs/iceberg.md": {"at:1207": "at:now", "curl -X": "curl --fail -X"},
    "docs/maintenance.md": {
        "position=1200": "position=log.position()",
        'log.undrop("shop$orders")': 'log.drop_table("shop$orders"), log.undrop("shop$orders")',
    },
    "docs/page.md": {'"beginning")': '"beginning", idle_seconds=2)'},
    "docs/server.md": {'"1207"': "now"},
}
"""What stands for a reader's own: positions, folders, and a feed that ends."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code of a page, with its language, if it names one."""

    language: str
    text: str


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [Block(*found) for found in _BLOCK.findall(text)]


def pages() -> list[str]:
    found = (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
    return [page.relative_to(ROOT).as_posix() for page in found]


def program(page: str) -> str:
    """Return the blocks of a page that are `RUN`, as one Python program."""
    parts = [COMMON, GIVEN[page]]
    for block, told in zip(blocks(page), BLOCKS[page], strict=True):
        if told is not RUN:
            continue
        text = block.text
        for typed, here in HERE.get(page, {}).items():
            text = text.replace(typed, here)
        if block.language != "python":
            # Its answer ends without a line of its own.
            text = f"import subprocess\nsubprocess.run({text!r}, shell=True, check=True)\nprint()\n"
        parts.append(text)
    return "\n".join(parts)
