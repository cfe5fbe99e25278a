"""`commitlog acl`: what each role may do on the Kafka cluster."""

from __future__ import annotations

from commitlog.errors import InvalidSettings
from consumers.commands import output
from consumers.commands.columns import Column
from consumers.commands.options import HERE, AsJson, Flag, Where


def acl(
    role: str | None = None,
    principal: tuple[str, ...] = (),
    /,
    *,
    host: str = "*",
    apply: Flag = False,
    where: Where = HERE,
    as_json: AsJson = False,
) -> None:
    """List roles and their rights on the cluster, or grant a role to principals.

    With a role and principals, prints the kafka-acls.sh commands that grant exactly the rights that
    this role needs on the log's topics.

    Parameters
    ----------
    role
        One of those that `commitlog acl` lists.
    principal
        Who gets the role, for example User:etl.
    host
        The only address from which the principals may connect.
    apply
        Create the ACLs on the cluster instead of printing commands.
    """
    from commitlog.adapters.kafka_acls import ROLES, allow, check_principal, commands, rights_of

    config = where.load()
    if role is None:
        columns = (
            Column("role"),
            Column("transactions", lambda row: ", ".join(row["transactions"])),
            Column("outcomes", lambda row: ", ".join(row["outcomes"])),
            Column("work", gives_way=True),
        )
        rows = [
            {
                "role": name,
                "transactions": one.transactions,
                "outcomes": one.outcomes,
                "work": one.work,
            }
            for name, one in ROLES.items()
        ]
        output.print_listing(columns, rows, as_json=as_json, nothing="no role")
        return
    rights = rights_of(role, config.log, config.kafka.get("group.id", "commitlog"))
    principals = [check_principal(one) for one in principal]
    if not principals:
        raise InvalidSettings(f"no principal is given: commitlog acl {role} User:NAME ...")
    if apply:
        allow(rights, principals, config.need_bootstrap_servers(), config.kafka, host)
        output.note(f"{', '.join(principals)}: {role} of log {config.log}")
        return
    lines = commands(rights, principals, config.bootstrap_servers or "HOST:PORT", host)
    if as_json:
        output.print_json(lines)
    else:
        print("\n".join(lines))
