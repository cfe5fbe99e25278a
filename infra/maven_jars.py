"""Jars that only tests need, in the cache beside Kafka's: each file of pins is a set of its own."""

from __future__ import annotations

from pathlib import Path

from consumers.broker.jars import JarSet, ensure_jars
from consumers.broker.java import find_java
from consumers.broker.pins import Pin, parse_pins


def pinned(pins: Path) -> tuple[Pin, ...]:
    """Read a file of pins."""
    return parse_pins(pins.read_text(encoding="utf-8"))


def jar_set(pins: Path) -> JarSet:
    """Return what is fetched together."""
    what = f"the jars of {pins.name}"
    return JarSet(pinned(pins), pins.name, what, name=pins.stem, renewal="edit that file")


def fetch(pins: Path) -> Path:
    """Return the folder of the pinned jars, fetching them first if the cache has none."""
    return ensure_jars(find_java(), jar_set(pins))
