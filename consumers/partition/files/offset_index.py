"""A sparse index of the outcomes topic: the offset behind every thousandth valid outcome.

A search for an old outcome begins at the nearest indexed place before it and follows the chain.
The loop owns the index and adds places as outcomes are acknowledged; a search reports the places
that it passed. The index is kept in a folder beside the checkpoints. If it is lost, searches
rebuild it.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import attrgetter

from commitlog.adapters.disk import with_advice
from commitlog.core.log.chain import BEGINNING, ChainPlace
from consumers.partition.files.folders import Folder, break_seal, encode_sealed

EVERY = 1_000
"""Outcomes between two places."""
PLACES_PER_FILE = 1_000
PLACES_MAX = 100_000
"""Of more places every other one goes: a look back then reads twice as many outcomes, at most."""

logger = logging.getLogger(__name__)
_by_sequence = attrgetter("sequence")


class OffsetIndex:
    """The sparse index of one partition's outcomes topic."""

    def __init__(self, folder: Folder | None, log_id: str, through: int) -> None:
        """Take what the folder has of this log up to sequence `through`; None: nothing is kept."""
        self._folder, self._log_id = folder, log_id
        self._places: list[ChainPlace] = []
        self._every = EVERY
        self._changed: set[int] = set()
        if folder is not None:
            for name in folder.names():
                if name.endswith(".json"):
                    self._places += self._load(folder, name)
        self._places = [place for place in self._places if place.sequence <= through]
        self._places.sort(key=_by_sequence)
        self._thin_out()

    def note(self, place: ChainPlace) -> None:
        """Take the place behind a valid outcome, if one is due there."""
        if place.sequence % self._every:
            return
        at = bisect_left(self._places, place.sequence, key=_by_sequence)
        if at == len(self._places) or self._places[at].sequence != place.sequence:
            insort(self._places, place, key=_by_sequence)
            self._changed.add(_file_of(place))
            self._thin_out()

    def _thin_out(self) -> None:
        while len(self._places) > PLACES_MAX:
            self._every *= 2
            self._changed.update(map(_file_of, self._places))
            self._places = [one for one in self._places if one.sequence % self._every == 0]

    def note_all(self, places: Iterable[ChainPlace]) -> None:
        """Take places that a look into the past came by."""
        for place in places:
            self.note(place)

    def before(self, sequence: int) -> ChainPlace:
        """Return the nearest place before an outcome."""
        at = bisect_left(self._places, sequence, key=_by_sequence)
        return self._places[at - 1] if at else BEGINNING

    def places(self) -> list[ChainPlace]:
        """Return all places, in the log's order."""
        return self._places.copy()

    def prepare(self) -> Callable[[], None]:
        """Return what puts into the folder what is new; any thread may call it."""
        changed, self._changed = self._changed, set()
        files: dict[str, bytes] = {}
        empty: list[str] = []
        for number in changed:
            rows = [
                [p.sequence, p.outcomes_offset, p.epoch, p.hash.hex()]
                for p in self._places
                if _file_of(p) == number
            ]
            body = {"log_id": self._log_id, "places": rows}
            if rows:
                files[f"{number}.json"] = encode_sealed(body)
            else:
                empty.append(f"{number}.json")
        return partial(_write, self._folder, files, empty)

    def _load(self, folder: Folder, name: str) -> Iterable[ChainPlace]:
        try:
            body = json.loads(folder.read(name))
            if not break_seal(body):
                raise ValueError("it is damaged")
            if body["log_id"] != self._log_id:
                return []
            return [ChainPlace(s, o, e, bytes.fromhex(h)) for s, o, e, h in body["places"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("%s of the saved offsets is rebuilt: %s", name, error)
            return []


def _write(folder: Folder | None, files: Mapping[str, bytes], empty: Iterable[str]) -> None:
    """Put files and remove others; a full disk costs only time later."""
    if folder is None:
        return
    try:
        for name in empty:
            folder.remove(name)
        folder.replace_all(files)
    except OSError as error:
        logger.warning("the offsets of old outcomes could not be saved: %s", with_advice(error))


def _file_of(place: ChainPlace) -> int:
    return place.sequence // (EVERY * PLACES_PER_FILE)
