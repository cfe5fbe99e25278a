"""A Ctrl-C while a program's first call imports pylance, which can't be imported twice."""

from __future__ import annotations

import sys

import pytest

from tests.child import ended

PROGRAM = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "lance.dataset":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import MemoryCluster
from commitlog import CommitLog

# Whoever runs tests in the background may ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupts())
log = CommitLog(lambda: MemoryLog(MemoryCluster()))
try:
    log.append("t", {"id": [1]})
except KeyboardInterrupt:
    print("interrupted", "lance" in sys.modules)
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
import lance.dataset, lance.optimize
print(sys.modules["lance.dataset"].LanceDataset is lance.LanceDataset, lance.optimize.Compaction)
"""


@pytest.mark.slow
def test_an_interrupt_comes_once_pylance_is_there() -> None:
    done = ended([sys.executable, "-c", PROGRAM])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "interrupted True",
        "True <class 'lance.optimize.Compaction'>",
    ]
