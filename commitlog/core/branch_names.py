"""How Lance names branches, and where it keeps them."""

from __future__ import annotations

import re

MAIN = "main"
FOLDER = "/tree/"
_SEGMENT = re.compile(r"[A-Za-z0-9._-]+")


def branch_location(home: str, branch: str) -> str:
    """Return where a branch of the table at `home` lies."""
    return f"{home}{FOLDER}{branch}"


def branch_home(location: str, branch: str) -> str:
    """Return where the table lies that has this branch at `location`; itself if it is no branch."""
    return location.removesuffix(branch_location("", branch)) if branch else location


def branch_name_problem(branch: str) -> str:
    """Return what is wrong with a branch's name, empty if nothing is."""
    if branch == MAIN:
        return "that is what the table itself is called; choose another name"
    segments = branch.split("/")
    if not all(_SEGMENT.fullmatch(one) for one in segments) or ".." in branch:
        return "its parts, between slashes, are of letters, digits, '.', '-' and '_', without '..'"
    if branch.endswith(".lock"):
        return "it must not end with '.lock'"
    return ""
