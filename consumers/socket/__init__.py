"""The leader's socket: what writers ask a partition's leader, and its answers."""
