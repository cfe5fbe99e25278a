"""Kafka's clients in a forked child: they are never freed there.

Freeing one waits for its threads, which a fork leaves behind in the parent. librdkafka then reads
memory of theirs that is gone, and the child ends with SIGSEGV: in a garbage collection, or as late
as at its exit.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

_living: weakref.WeakSet[Any] = weakref.WeakSet()


class _KeptInChildren:
    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        _living.add(self)


class ForkTolerantConsumer(_KeptInChildren, Consumer):
    """A consumer that a forked child leaves alone."""


class ForkTolerantProducer(_KeptInChildren, Producer):
    """A producer that a forked child leaves alone."""


class ForkTolerantAdminClient(_KeptInChildren, AdminClient):
    """A client for administration that a forked child leaves alone."""


def _keep_for_ever() -> None:
    for client in list(_living):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
    _living.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_for_ever)
