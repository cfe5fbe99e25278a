"""Real faults on a real broker: processes killed and frozen, networks cut, disks filled.

Committers and writers are processes of their own, and reach Kafka through a proxy. A round breaks
something under load, mends it, waits until every writer commits again, and compares the log, what
writers were told, and the files. `python -m tests.faults --rounds 200` is a campaign.
"""
