"""Run one command and end it when the process that asked for it is gone, however it went.

Run as a script, `python watch.py PARENT_PID COMMAND...`, with a pipe from the parent as standard
input and one to it as standard output. It prints the command's process id, and exits with its exit
code, or 128 + signal.

A parent that is killed closes the pipe. Its forked children may hold the pipe open, so the parent
itself is watched too. The command in turn dies with this process where the system can do that
(Linux). Standard library only, and nothing of this package: it starts in milliseconds and stays
small.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys

POLL_MS = 500
"""How often it is looked whether the parent lives, where the system doesn't tell."""
GRACE_SECONDS = 5.0
PR_SET_PDEATHSIG = 1


def main() -> int:
    """Start the command, wait for its end or the parent's."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    # Loaded before the fork: between fork and exec as little as possible may happen.
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def die_with_watcher() -> None:
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    # Signals wake the poll below by this pipe: the command's end, and being asked to end it.
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    asked: list[int] = []
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        stderr=sys.stderr.fileno(),
        # The lock of the root comes in by inheritance and stays held while the command runs.
        close_fds=False,
        preexec_fn=die_with_watcher,
    )
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), f"{child.pid}\n".encode())
    watched = select.poll()
    watched.register(sys.stdin.fileno(), select.POLLIN)
    watched.register(woken, select.POLLIN)
    try:
        watched.register(os.pidfd_open(parent), select.POLLIN)
        patience_ms = None
    except (AttributeError, OSError):  # not Linux, or the parent is gone
        patience_ms = POLL_MS
    while child.poll() is None:
        ready = {fd for fd, _ in watched.poll(patience_ms)}
        if woken in ready:
            os.read(woken, 4096)
        if asked or sys.stdin.fileno() in ready or os.getppid() != parent:
            end(child)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def end(child: "subprocess.Popen[bytes]") -> None:
    """Ask the command to end, and kill it if it does not."""
    child.terminate()
    try:
        child.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait(GRACE_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
