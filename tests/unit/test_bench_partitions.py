"""Does the simulation of many partitions hold where the answer is known?"""

from __future__ import annotations

import pytest

from consumers.tools.bench.aims import LATEST, MET, MISSED, judge
from consumers.tools.bench.partitions import Cluster, commits_per_second, scaling, scaling_of

WIDE = Cluster(brokers=3, cores=64, replication=1)


def test_alone_a_leader_is_the_limit() -> None:
    rate = commits_per_second(0.5, 0.001, 1, WIDE)
    assert rate == pytest.approx(2_000, rel=0.05)


@pytest.mark.slow
def test_brokers_that_are_the_limit_share_what_they_have() -> None:
    one_core = Cluster(brokers=1, cores=1, replication=1)
    assert commits_per_second(0.01, 1.0, 1, one_core) == pytest.approx(1_000, rel=0.05)
    assert scaling(0.01, 1.0, one_core) == pytest.approx(1, rel=0.05)


def test_copies_cost_as_much_as_appends() -> None:
    copied = Cluster(brokers=3, cores=1, replication=3)
    single = Cluster(brokers=3, cores=1, replication=1)
    rates = [commits_per_second(0.01, 1.0, 3, cluster) for cluster in (single, copied)]
    assert rates[0] / rates[1] == pytest.approx(3, rel=0.2)


def test_where_only_leaders_are_busy_eight_partitions_take_eight_times_as_much() -> None:
    assert scaling(0.5, 0.01, WIDE) == pytest.approx(8, rel=0.05)


def test_the_same_seed_is_the_same_run() -> None:
    rates = [commits_per_second(0.5, 0.3, 2, Cluster(), commits=500, seed=7) for _ in range(2)]
    assert rates[0] == rates[1]


def test_what_was_not_measured_is_not_simulated() -> None:
    assert scaling_of({"committer": 0.5}) is None
    assert scaling_of({}) is None


@pytest.mark.slow
@pytest.mark.parametrize(("broker_ms", "verdict"), [(0.2, MET), (5.0, MISSED)])
def test_the_aim_is_judged_by_the_busiest_round(broker_ms: float, verdict: str) -> None:
    rounds = [
        {"system": LATEST, "writers": 1, "ms_per_commit": {"committer": 9.0, "broker": 0.1}},
        {"system": LATEST, "writers": 64, "ms_per_commit": {"committer": 0.5, "broker": broker_ms}},
    ]
    [aim] = [one for one in judge({"commit": {"service_cpu": rounds}}) if "partitions" in one.text]
    assert aim.verdict == verdict
    assert "simulated" in aim.about
