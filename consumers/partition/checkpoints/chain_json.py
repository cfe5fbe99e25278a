"""The hash chain as JSON, for a checkpoint's head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from commitlog.core.log.chain import Chain
from commitlog.model.records import Genesis, LeaderStarted

_HASHES = ("previous_hash", "state_digest")


def chain_to_json(chain: Chain) -> dict[str, Any]:
    """Return a chain as JSON."""
    leader: dict[str, Any] | None = None
    if chain.leader is not None:
        leader = asdict(chain.leader)
        leader.update((name, leader[name].hex()) for name in _HASHES)
    hash_ = chain.hash.hex()
    return {"epoch": chain.epoch, "sequence": chain.sequence, "hash": hash_, "leader": leader}


def chain_from_json(data: Mapping[str, Any], genesis: Genesis) -> Chain:
    """Return the chain that `chain_to_json` encoded."""
    chain = Chain()
    chain.genesis = genesis
    chain.epoch = data["epoch"]
    chain.sequence = data["sequence"]
    chain.hash = bytes.fromhex(data["hash"])
    if data["leader"] is not None:
        leader = dict(data["leader"])
        for name in _HASHES:
            leader[name] = bytes.fromhex(leader[name])
        chain.leader = LeaderStarted(**leader)
    return chain
