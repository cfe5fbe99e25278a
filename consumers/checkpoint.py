"""A committer's state on disk: acknowledged outcomes only, with the identity of their log.

    ROOT/checkpoints/<partition>/head.json          what belongs together, replaced atomically
    ROOT/checkpoints/<partition>/<sha256>.part      one table's state, or the rest; never changed

A checkpoint rewrites only the parts that changed, so its cost follows what happened since the last
one. It is a convenience: deleting it means reading the log from its beginning. Whatever in it
doesn't fit the log it is opened with is refused by name, never repaired by guessing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from commitlog.core.machine import Machine
from commitlog.core.snapshot import Part

from commitlog.core.chain import Chain
from commitlog.core.replica import Replica
from commitlog.errors import CorruptLog, WrongLog
from commitlog.model.records import Genesis, LeaderStarted
from commitlog.ports import LogIdentity

FORMAT = 1
HEAD = "head.json"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A machine at a position of both topics."""

    machine: Machine
    chain: Chain
    transactions_position: int
    decided_beyond: tuple[int, ...]
    outcomes_position: int

    @classmethod
    def of(cls, machine: Machine, replica: Replica) -> Checkpoint:
        """Take the present state; nothing may be in flight."""
        position, beyond = replica.resume_point()
        return cls(machine, replica.chain, position, tuple(beyond), replica.outcomes_position)

    def replica(self) -> Replica:
        """Return a replica that goes on from here."""
        return Replica(
            self.chain,
            transactions_position=self.transactions_position,
            outcomes_position=self.outcomes_position,
            decided_beyond=self.decided_beyond,
        )


class Checkpoints:
    """The checkpoints of one partition below a root."""

    def __init__(self, root: Path, identity: LogIdentity, genesis: Genesis) -> None:
        """Keep them below `root`, for this log and no other."""
        self._folder = root / "checkpoints" / str(genesis.partition)
        self._genesis = genesis
        self._identity = {**asdict(identity), "log_id": genesis.log_id}
        self._saved: dict[str, tuple[int, str, int]] = {}

    def load(self) -> Checkpoint | None:
        """Return the newest checkpoint, or None if there is none.

        Raises WrongLog if it belongs to another log, CorruptLog if its bytes are damaged.
        """
        try:
            head = json.loads((self._folder / HEAD).read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise self._corrupt(f"{HEAD} is not JSON: {error}") from error
        if not isinstance(head, dict) or head.get("format") != FORMAT:
            raise self._corrupt(f"{HEAD} has an unknown format")
        self._check_identity(head["identity"])
        parts = {name: self._read_part(*entry[1:]) for name, entry in head["parts"].items()}
        machine = Machine.from_parts(self._genesis, parts)
        if machine.digest().hex() != head["state_digest"]:
            raise self._corrupt("the state's digest differs from the recorded one")
        self._saved = {name: tuple(entry) for name, entry in head["parts"].items()}
        return Checkpoint(
            machine,
            _chain_from_json(head["chain"], self._genesis),
            head["transactions_position"],
            tuple(head["decided_beyond"]),
            head["outcomes_position"],
        )

    def save(self, checkpoint: Checkpoint) -> None:
        """Write what changed, then the head that names it all."""
        self._folder.mkdir(parents=True, exist_ok=True)
        parts: dict[str, tuple[int, str, int]] = {}
        for name, part in checkpoint.machine.to_parts().items():
            saved = self._saved.get(name)
            if saved is None or saved[0] != part.counter:
                saved = self._write_part(part)
            parts[name] = saved
        head = {
            "format": FORMAT,
            "identity": self._identity,
            "chain": _chain_to_json(checkpoint.chain),
            "transactions_position": checkpoint.transactions_position,
            "decided_beyond": list(checkpoint.decided_beyond),
            "outcomes_position": checkpoint.outcomes_position,
            "state_digest": checkpoint.machine.digest().hex(),
            "parts": parts,
        }
        self._replace(HEAD, json.dumps(head).encode())
        self._saved = parts
        keep = {f"{entry[1]}.part" for entry in parts.values()}
        for path in self._folder.iterdir():
            if path.name != HEAD and path.name not in keep:
                path.unlink(missing_ok=True)

    def _write_part(self, part: Part) -> tuple[int, str, int]:
        data = part.encode()
        digest = hashlib.sha256(data).hexdigest()
        if not (self._folder / f"{digest}.part").exists():
            self._replace(f"{digest}.part", data)
        return part.counter, digest, len(data)

    def _read_part(self, digest: str, size: int) -> bytes:
        name = f"{digest}.part"
        try:
            data = (self._folder / name).read_bytes()
        except FileNotFoundError as error:
            raise self._corrupt(f"{name} is missing") from error
        if len(data) != size or hashlib.sha256(data).hexdigest() != digest:
            raise self._corrupt(f"{name} is damaged")
        return data

    def _replace(self, name: str, data: bytes) -> None:
        temporary = self._folder / f"{name}.tmp"
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._folder / name)

    def _check_identity(self, found: Mapping[str, Any]) -> None:
        differing = [
            f"{name} is {found.get(name)!r} there and {expected!r} here"
            for name, expected in self._identity.items()
            if found.get(name) != expected
        ]
        if differing:
            raise WrongLog(
                f"the checkpoint in {self._folder} is of another log: {'; '.join(differing)}. "
                "Correct the address, or use another root"
            )

    def _corrupt(self, what: str) -> CorruptLog:
        return CorruptLog(
            f"checkpoint {self._folder}: {what}. Delete this folder; the committer then reads "
            "the log from its beginning"
        )


def _chain_to_json(chain: Chain) -> dict[str, Any]:
    leader = chain.leader
    return {
        "epoch": chain.epoch,
        "sequence": chain.sequence,
        "hash": chain.hash.hex(),
        "leader": None
        if leader is None
        else {
            **asdict(leader),
            "previous_hash": leader.previous_hash.hex(),
            "state_digest": leader.state_digest.hex(),
        },
    }


def _chain_from_json(data: Mapping[str, Any], genesis: Genesis) -> Chain:
    chain = Chain()
    chain.genesis = genesis
    chain.epoch = data["epoch"]
    chain.sequence = data["sequence"]
    chain.hash = bytes.fromhex(data["hash"])
    if data["leader"] is not None:
        leader = dict(data["leader"])
        for name in ("previous_hash", "state_digest"):
            leader[name] = bytes.fromhex(leader[name])
        chain.leader = LeaderStarted(**leader)
    return chain
