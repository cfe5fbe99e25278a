"""One or two calls of each command, as its help shows them at its end."""

from __future__ import annotations

EXAMPLES = {
    "acl": ("commitlog acl", "commitlog acl writer User:etl --apply --root DIR"),
    "archive": ("commitlog archive --older-than-days 30 --root DIR",),
    "backup": (
        "commitlog backup s3://bucket/backup --root DIR",
        "commitlog backup s3://bucket/backup --check",
    ),
    "blame": (
        "commitlog blame 'shop$orders' --root DIR",
        "commitlog blame 'shop$orders' 4 --root DIR",
    ),
    "broker": ("commitlog broker --root DIR --kafka-port 9092",),
    "committer": ("commitlog committer --root DIR --bootstrap-servers kafka:9092",),
    "conflicts": ("commitlog conflicts 'shop$orders' --root DIR",),
    "demo": ("commitlog demo --stay",),
    "diff": ("commitlog diff 'shop$orders' 5 8 --root DIR",),
    "doctor": ("commitlog doctor --root DIR", "commitlog doctor --strict --json --root DIR"),
    "erase": (
        "commitlog erase 'shop$people' --where 'id = 7' --dry-run --root DIR",
        "commitlog erase 'shop$people' --where - --reason 'request 118' --root DIR",
    ),
    "explain": ("commitlog explain 1207 --root DIR",),
    "history": (
        "commitlog history 'shop$orders' --root DIR",
        "commitlog history 'shop$orders' -n 5 --json --root DIR",
    ),
    "index": ("commitlog index --root DIR --bootstrap-servers kafka:9092",),
    "init": ("commitlog init --root DIR --bootstrap-servers kafka:9092",),
    "log": ("commitlog log -n 5 --root DIR", "commitlog log --follow --json --root DIR"),
    "maintain": (
        "commitlog maintain --dry-run --root DIR",
        "commitlog maintain --once --root DIR",
    ),
    "move": ("commitlog move other:9092 --root DIR",),
    "orphans": ("commitlog orphans --root DIR",),
    "places": ("commitlog places --root DIR", "commitlog places bind /old/tables --root DIR"),
    "plot": (
        "commitlog plot commits --out commits.svg --root DIR",
        "commitlog plot growth 'shop$orders' --root DIR",
    ),
    "properties": (
        "commitlog properties 'shop$orders' --root DIR",
        "commitlog properties 'shop$orders' --set rows=log --root DIR",
    ),
    "replay": ("commitlog replay rebuilt --root DIR",),
    "restore": ("commitlog restore s3://bucket/backup --root DIR",),
    "rollback": ("commitlog rollback 'shop$orders' --to 2026-01-31T12:00:00Z --root DIR",),
    "rows": ("commitlog rows --root DIR --bootstrap-servers kafka:9092",),
    "rules": ("commitlog rules --root DIR",),
    "server": ("commitlog server --root DIR --bootstrap-servers kafka:9092 --port 2333",),
    "show": ("commitlog show 1207 --root DIR",),
    "sql": (
        "commitlog sql 'FROM help' --root DIR",
        "commitlog sql 'SELECT count(*) FROM shop$orders AT (VERSION => 7)' --root DIR",
    ),
    "tables": ("commitlog tables --root DIR",),
    "tag": ("commitlog tag before-import --root DIR", "commitlog tag --root DIR"),
    "top": ("commitlog top --root DIR", "commitlog top --once --json --root DIR"),
    "undrop": ("commitlog undrop 'shop$orders' --root DIR",),
    "up": (
        "commitlog up --root DIR --kafka-port 9092",
        "commitlog up --root DIR --bootstrap-servers kafka:9092",
    ),
    "upgrade": ("commitlog upgrade --check --root DIR",),
    "verify": (
        "commitlog verify --root DIR",
        "commitlog verify --table 'shop$orders' --contents --root DIR",
    ),
    "version": ("commitlog version",),
}
"""By the command's name."""


def shown(command: str) -> str:
    """Return the examples as they end the command's help."""
    return "\n".join(("Examples:", *(f"  {line}" for line in EXAMPLES[command])))
