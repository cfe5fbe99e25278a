"""Named roots: what a log recorded below an absolute prefix is relative to a root with a name.

A property of the log itself (of the root of its namespaces) binds a prefix to a name, so it is a
record like any other: replay, checkpoints and backups have it too. Each deployment says where its
root of that name is. The leader that decides looks whether files stay where they are: the act gives
a place a name, and moves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from commitlog.core.catalogue.namespaces import altered
from commitlog.core.decisions import Refused, RootWanted, rejected
from commitlog.core.draft import Draft
from commitlog.core.tables.lance_tables import location_parts, normalize_location
from commitlog.model.operations import AlterProperties, Properties
from commitlog.model.records import Code

PLACE = "commitlog.place."
"""What the property of the log begins with that binds a prefix; the prefix follows."""
ROOT_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")


def named_roots(properties: Properties) -> dict[str, str]:
    """Return the names of roots by the prefixes that are relative to them."""
    return {
        key.removeprefix(PLACE): name
        for key, name in properties
        if key.startswith(PLACE) and ROOT_NAME.fullmatch(name) and is_plain(key[len(PLACE) :])
    }


def is_plain(prefix: str) -> bool:
    """Return True if a prefix is an absolute place as the log compares them, and no whole store."""
    try:
        return normalize_location(prefix) == prefix and len(location_parts(prefix)) > 1
    except Refused:
        return False


def check_roots(
    draft: Draft, known: Properties, operation: AlterProperties, root: str | None
) -> None:
    """Refuse bindings that can't be, and those under which files would be elsewhere.

    `known` are the log's properties before, `root` is its tables root; None if other partitions
    have tables too, at places that this one doesn't know.
    """
    before = named_roots(known)
    after = named_roots(altered(known, operation))
    made = {key[len(PLACE) :]: to for key, to in operation.upserts if key.startswith(PLACE)}
    for prefix, name in made.items():
        _check_binding(draft, prefix, name, root)
        _check_others(prefix, name, after)
    ended = [key[len(PLACE) :] for key in operation.removals if key.startswith(PLACE)]
    for prefix in ended:
        if prefix not in before and prefix not in made:
            raise rejected(Code.INVALID_OPERATION, "place_not_bound", place=prefix)
    wanted = [RootWanted(prefix, name) for prefix, name in made.items()]
    wanted += [RootWanted(prefix, prefix) for prefix in ended if prefix not in made]
    for one, found in zip(wanted, draft.want_all(wanted), strict=True):
        if found.observation.size < 0:
            reason = "place_not_there" if one.path == one.location else "root_elsewhere"
            named = {"place": one.location, "root": one.path}
            raise rejected(Code.LOCATION_NOT_ALLOWED, reason, **named)


def _check_binding(draft: Draft, prefix: str, name: str, root: str | None) -> None:
    if not ROOT_NAME.fullmatch(name):
        raise rejected(Code.INVALID_OPERATION, "root_name_invalid", root=name)
    if not is_plain(prefix):
        raise rejected(Code.INVALID_OPERATION, "place_not_a_prefix", place=prefix)
    is_of_log = root is None or f"{root}/".startswith(f"{prefix}/")
    if not (is_of_log or draft.is_above_tables(prefix)):
        raise rejected(Code.INVALID_OPERATION, "place_without_tables", place=prefix)


def _check_others(prefix: str, name: str, after: Mapping[str, str]) -> None:
    for other, its_name in after.items():
        if other == prefix:
            continue
        named = {"place": prefix, "other": other, "root": its_name}
        if f"{other}/".startswith(f"{prefix}/") or f"{prefix}/".startswith(f"{other}/"):
            raise rejected(Code.INVALID_OPERATION, "places_overlap", **named)
        if its_name == name:
            raise rejected(Code.INVALID_OPERATION, "root_taken", **named)
