"""Commands as child processes of the controller: what local and OpenSSH connections are made of."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from orchestrator.ssh import platform
from orchestrator.ssh.connection import Completed

STDERR_KEPT = 64 * 1024
"""bytes: the end of what a command said on stderr"""
GRACE = 0.3
"""seconds between asking a process to end and ending it"""
EOF_PATIENCE = 1.0
"""seconds in which a process that closed its stdout may still tell how it ended"""

Judge = Callable[[int, bytes], tuple[int, bytes]]
"""Turns a process' own exit status and stderr into the command's; raises where they mean a lost transport."""


def as_they_are(status: int, stderr: bytes) -> tuple[int, bytes]:
    """The judge for a process that is itself the command."""
    return status, stderr


class Children:
    """The processes that one connection started. Each has a session of its own; `end_all` ends those that still run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """A child with three pipes."""
        child = subprocess.Popen(
            argv,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
        with self._lock:
            self._running = {other for other in self._running if other.returncode is None} | {child}
        return child

    def end_all(self) -> None:
        """End those that still run, at once and together. Never raises."""
        with self._lock:
            running = [child for child in self._running if child.poll() is None]
        end(running)


def end(children: Sequence[subprocess.Popen[bytes]], grace: float = GRACE) -> None:
    """Ask each child and its process group to end, then end them. A child that was already waited for is left alone."""
    for child in children:
        _signal_group(child, signal.SIGTERM)
    deadline = time.monotonic() + grace
    for child in children:
        with suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, deadline - time.monotonic()))
        _signal_group(child, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE)


def _signal_group(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    # Its number is its own only until it was waited for.
    if child.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)


def run(
    children: Children,
    argv: Sequence[str],
    *,
    stdin: bytes,
    timeout: float,
    judge: Judge,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> tuple[int, bytes, bytes]:
    """Run a child to its end: exit status, stdout, stderr.

    Raises TimeoutError, the child then being ended, or what `judge` raises.
    """
    child = children.start(argv, env=env, cwd=cwd)
    try:
        stdout, stderr = child.communicate(stdin, timeout)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"no end after {timeout:.0f} s") from None
    finally:
        end([child])
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe:
                with suppress(OSError):
                    pipe.close()
    status, stderr = judge(child.returncode, stderr)
    return status, stdout, stderr


class ProcessChannel:
    """A Channel (see connection.py) over the three pipes of a child process."""

    def __init__(self, child: subprocess.Popen[bytes], argv: Sequence[str], judge: Judge = as_they_are) -> None:
        assert child.stdin and child.stdout and child.stderr
        self._child, self._argv, self._judge = child, tuple(argv), judge
        self._stdin, self._stdout, self._stderr = child.stdin, child.stdout, child.stderr
        self._reading, self._writing = threading.Lock(), threading.Lock()
        self._tail = bytearray()
        self._let_go = False
        self._drain = threading.Thread(target=self._drain_stderr, daemon=True)
        self._drain.start()
        for pipe in (child.stdin, child.stdout):
            platform.enlarge_pipe(pipe.fileno())

    def _drain_stderr(self) -> None:
        with self._stderr:
            while data := os.read(self._stderr.fileno(), STDERR_KEPT):
                self._tail += data
                del self._tail[:-STDERR_KEPT]

    def read(self, size: int, timeout: float | None = None) -> bytes:
        """See Channel.read."""
        with self._reading:
            if self._stdout.closed:
                return b""
            if not _ready(self._stdout.fileno(), timeout):
                raise TimeoutError(f"nothing came for {timeout:.0f} s")
            data = os.read(self._stdout.fileno(), size)
        if self._let_go:
            self._close_pipes()
        elif not data:
            self._raise_if_lost()
        return data

    def write(self, data: bytes | memoryview) -> None:
        """See Channel.write."""
        left = memoryview(data).cast("B")
        try:
            with self._writing:
                if self._stdin.closed:
                    raise BrokenPipeError("stdin is closed")
                while left:
                    left = left[os.write(self._stdin.fileno(), left) :]
        except BrokenPipeError:
            if self._let_go:
                self._close_pipes()
            else:
                self._raise_if_lost()
            raise

    def _raise_if_lost(self) -> None:
        with suppress(TimeoutError):
            self.wait(EOF_PATIENCE)

    def close_stdin(self) -> None:
        """See Channel.close_stdin."""
        with self._writing:
            self._stdin.close()

    def wait(self, timeout: float | None = None) -> Completed:
        """See Channel.wait."""
        try:
            self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"no end after {timeout:.0f} s") from None
        self._drain.join(EOF_PATIENCE)  # a child of the command may hold stderr open for longer
        status, stderr = self._judge(self._child.returncode, bytes(self._tail))
        return Completed(argv=self._argv, exit=status, stdout=b"", stderr=stderr)

    def close(self) -> None:
        """See Channel.close."""
        self._let_go = True
        if self._writing.acquire(blocking=False):  # else a writer is stuck, and the end of the child frees it
            with suppress(OSError):
                self._stdin.close()
            self._writing.release()
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(GRACE)
        end([self._child])
        self._close_pipes()
        self._drain.join(GRACE)

    def _close_pipes(self) -> None:
        """Close what no thread uses; one that does (a master may hold the other end a while longer) closes it then."""
        for lock, pipe in ((self._writing, self._stdin), (self._reading, self._stdout)):
            if lock.acquire(timeout=GRACE / 3):
                with suppress(OSError):
                    pipe.close()
                lock.release()


def _ready(descriptor: int, timeout: float | None) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout is None else max(0, round(timeout * 1000))))
