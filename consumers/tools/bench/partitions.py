"""How partitions share a cluster, simulated: what one machine cannot show.

Each partition has a leader of its own, with a core of its own; all that partitions share are the
brokers. The simulation is a closed queueing network. Its service times are measured, CPU per
commit of the leader and of the broker; its cluster is assumed, and said beside the result. A
commit goes writer, broker (its transaction), leader, broker (its outcome), writer.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping
from dataclasses import dataclass

PARTITIONS = 8
WARM_UP_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Cluster:
    """The machines that are assumed."""

    brokers: int = 3
    cores: int = 16
    """Of each broker."""
    replication: int = 3
    """A follower that copies costs its broker as much as an append: an upper bound."""
    writers: int = 32
    """Of each partition, each with one commit in flight."""
    network_ms: float = 0.25
    """One way."""


class _Station:
    """Some equal servers and one queue, first come, first served."""

    def __init__(self, servers: int) -> None:
        self._free_at = [0.0] * servers
        heapq.heapify(self._free_at)

    def serve(self, arrives_at: float, takes: float) -> float:
        """Return when a job that arrives is done; jobs have to arrive in order."""
        done = max(heapq.heappop(self._free_at), arrives_at) + takes
        heapq.heappush(self._free_at, done)
        return done


def commits_per_second(
    leader_ms: float,
    broker_ms: float,
    partitions: int,
    cluster: Cluster,
    *,
    commits: int = 20_000,
    seed: int = 1,
) -> float:
    """Simulate so many commits of all partitions; return the rate after a warm-up.

    `broker_ms` is what a commit costs one broker that keeps the only copy. Service times are
    exponential, which is harder on queues than what is measured.
    """
    chance = random.Random(seed)
    brokers = [_Station(cluster.cores) for _ in range(cluster.brokers)]
    leaders = [_Station(1) for _ in range(partitions)]
    # (time, tie, partition, step): steps 0 and 2 are appends, 1 is the decision, 3 the answer.
    events = [
        (chance.random(), number, number % partitions, 0)
        for number in range(partitions * cluster.writers)
    ]
    heapq.heapify(events)
    done, began, now = 0, 0.0, 0.0
    warm = int(commits * WARM_UP_SHARE)
    while done < commits + warm:
        now, tie, partition, step = heapq.heappop(events)
        if step == 3:
            done += 1
            began = now if done == warm else began
            step = 0
        if step == 1:
            at = leaders[partition].serve(now, chance.expovariate(1 / leader_ms))
        else:
            # Leader and followers of a partition lie on neighbouring brokers.
            ends = [
                brokers[(partition + copy) % cluster.brokers].serve(
                    now, chance.expovariate(2 / broker_ms)
                )
                for copy in range(cluster.replication)
            ]
            at = max(ends)
        heapq.heappush(events, (at + cluster.network_ms, tie, partition, step + 1))
    return commits / (now - began) * 1000


def scaling(leader_ms: float, broker_ms: float, cluster: Cluster | None = None) -> float:
    """Return how many times as much `PARTITIONS` take as one, on the same cluster."""
    cluster = cluster or Cluster()
    one, many = (
        commits_per_second(leader_ms, broker_ms, count, cluster) for count in (1, PARTITIONS)
    )
    return many / one


def scaling_of(service_cpu: Mapping[str, float]) -> float | None:
    """Return the scaling by what a service's parts were measured to take per commit."""
    leader, broker = service_cpu.get("committer", 0.0), service_cpu.get("broker", 0.0)
    return scaling(leader, broker) if leader and broker else None
