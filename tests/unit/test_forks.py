"""A forked child leaves its parent's connections to Kafka alone."""

import sys
import textwrap

import pytest

from tests.child import ended

PARENT = """
import gc, os, signal, sys
from commitlog.adapters.kafka_io import new_admin, new_consumer, new_producer
from commitlog.adapters.kafka_settings import ClientSettings

class Held: pass

gc.disable()
settings = ClientSettings("127.0.0.1:1", {})
clients = []
for make in (new_admin, new_consumer, new_producer):
    for _ in range(4):
        held = Held()
        held.itself, held.client = held, make(settings)
        KEEP
        del held
child = os.fork()
if child == 0:
    signal.alarm(30)
    gc.collect()
    sys.exit(0)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["", "clients.append(held)"], ids=["garbage", "in use"])
def test_a_forked_child_leaves_its_parents_clients_alone(keep: str) -> None:
    program = textwrap.dedent(PARENT).replace("KEEP", keep)
    done = ended([sys.executable, "-c", program], timeout=120)
    assert done.stdout == "child 0\n", done.stderr
