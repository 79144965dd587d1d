"""A lock that names its holder and is let go with it, however it ends (flock on a file that no child inherits)."""

import errno
import fcntl
import json
import os
import time
from contextlib import contextmanager
from typing import Iterator

from remote_payload.agent import incarnation
from remote_payload.agent.errors import AgentError

_NO_LOCKS_HERE = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


@contextmanager
def held(path: str, doing: str, patience: float = 5.0) -> Iterator[None]:
    """Hold the lock file `path` while the block runs. Raises AgentError naming the holder after `patience` seconds.

    On a disk without locks the block runs unlocked: every step verifies what it finds anyway.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _wait(descriptor, path, patience)
        _sign(descriptor, json.dumps(dict(incarnation.record(os.getpid()), doing=doing)).encode())
        try:
            yield
        finally:
            _sign(descriptor, b"")
    finally:
        os.close(descriptor)


def _wait(descriptor: int, path: str, patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise AgentError(
                    "%s is held: %s" % (path, _holder(descriptor)), "try again when it has ended", kind="refused"
                ) from None
        except OSError as error:
            if error.errno in _NO_LOCKS_HERE:
                return
            raise
        time.sleep(0.05)


def _holder(descriptor: int) -> str:
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
        return "process %s on %s, for: %s" % (holder["pid"], holder["node"], holder["doing"])
    except (OSError, ValueError, KeyError, TypeError):
        return "by a process that has not said who it is"


def _sign(descriptor: int, text: bytes) -> None:
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text, 0)
    except OSError:  # a full disk takes no name; the lock itself holds
        pass
