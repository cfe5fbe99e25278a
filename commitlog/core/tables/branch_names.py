"""How Lance names branches and tags, and where it keeps branches."""

from __future__ import annotations

import re

MAIN = "main"
FOLDER = "/tree/"
TAG_NAMES = "Use A to Z, a to z, 0 to 9, '.', '-' and '_'"
_SEGMENT = re.compile(r"[A-Za-z0-9._-]+")


def branch_location(home: str, branch: str) -> str:
    """Return where a branch of the table at `home` is."""
    return f"{home}{FOLDER}{branch}"


def branch_home(location: str, branch: str) -> str:
    """Return where the table is that has this branch at `location`; itself if it is no branch."""
    return location.removesuffix(branch_location("", branch)) if branch else location


def branch_name_problem(branch: str) -> str:
    """Return the name of what is wrong with a branch's name, empty if nothing is."""
    if branch == MAIN:
        return "branch_name_of_main"
    segments = branch.split("/")
    if not all(_SEGMENT.fullmatch(one) for one in segments) or ".." in branch:
        return "branch_name_characters"
    if branch.endswith(".lock"):
        return "branch_name_of_lock"
    return ""


def is_tag_name(tag: str) -> bool:
    """Return True if Lance finds a tag again that it created under this name.

    It accepts letters of any alphabet, and then can't list the table's tags.
    """
    return _SEGMENT.fullmatch(tag) is not None and ".." not in tag
