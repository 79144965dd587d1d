"""A command on a paramiko channel. EOF is not success there: only the server's own EOF and exit status are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import paramiko

from orchestrator.errors import ConnectionLost
from orchestrator.ssh.connection import Completed
from orchestrator.ssh.ending import signal_or_status

_TICK = 1.0
"""seconds between two looks at the deadline; data and ends wake the reader at once"""
_SLICE = 32 * 1024
_STDERR_TAIL = 64 * 1024
_SMALL = 16 * 1024
"""bytes of stdin that fit the server's window before it must be read"""


class FabricChannel:
    """A running command: a Channel over paramiko, whose stderr is drained by a thread."""

    def __init__(
        self,
        host: str,
        argv: Sequence[str],
        channel: paramiko.Channel,
        release: Callable[[], None],
        *,
        stderr_limit: int | None = _STDERR_TAIL,
    ) -> None:
        """`release` is called once, when the channel's place among the host's channels is free again."""
        self._host = host
        self._argv = tuple(argv)
        self._channel = channel
        self._release = release
        self._let_go = threading.Event()
        self._stderr = bytearray()
        self._stderr_limit = stderr_limit
        self._drain = threading.Thread(target=self._drain_stderr, daemon=True, name=f"stderr of {host}")
        channel.settimeout(_TICK)
        self._drain.start()

    def read(self, size: int, timeout: float | None = None) -> bytes:
        """Up to `size` bytes of stdout; b"" once the command closed it. Raises TimeoutError, ConnectionLost."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            self._channel.settimeout(_tick(until))
            try:
                data = self._channel.recv(size)
            except TimeoutError:
                self._check(until, f"nothing came for {timeout} s")
                continue
            except (EOFError, OSError, paramiko.SSHException):
                raise self._lost() from None
            if not data and not self._ended_by_the_server():
                raise self._lost()
            return data

    def write(self, data: bytes | memoryview) -> None:
        """All of `data` to stdin. Raises BrokenPipeError, ConnectionLost."""
        view = memoryview(data).cast("B")
        while view:
            try:
                sent = self._channel.send(bytes(view[:_SLICE]))
            except TimeoutError:
                continue
            except (EOFError, OSError, paramiko.SSHException):
                sent = 0
            if not sent:
                if self._let_go.is_set() or self._ended_by_the_server():
                    raise BrokenPipeError(f"{self._host}: {self._argv[0]} no longer reads")
                raise self._lost()
            view = view[sent:]

    def close_stdin(self) -> None:
        """EOF to the command. May be called twice."""
        try:
            self._channel.shutdown_write()
        except (EOFError, OSError, paramiko.SSHException):
            pass  # the next read says what became of the command

    def wait(self, timeout: float | None = None) -> Completed:
        """The exit status. Raises TimeoutError, or ConnectionLost where the status is unknown."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._channel.status_event.wait(_tick(until)):
            self._check(until, f"no end after {timeout} s")
        return self._completed(b"")

    def finish(self, stdin: bytes, timeout: float) -> Completed:
        """Give the command its stdin, and take all that it says until its end. Raises as `read` and `wait` do."""
        until = time.monotonic() + timeout
        feeding: threading.Thread | None = None
        if len(stdin) <= _SMALL:
            self._feed(stdin)
        else:
            feeding = threading.Thread(target=self._feed, args=(stdin,), daemon=True, name=f"stdin of {self._host}")
            feeding.start()
        parts: list[bytes] = []
        try:
            while part := self.read(_SLICE * 4, max(0.0, until - time.monotonic())):
                parts.append(part)
            self.wait(max(0.0, until - time.monotonic()))
        except TimeoutError:
            raise TimeoutError(f"{self._host}: {self._argv[0]}: no end after {timeout:.0f} s; it may go on") from None
        self._drain.join(max(0.0, until - time.monotonic()))
        return self._completed(b"".join(parts))

    def close(self) -> None:
        """Let go: the command sees EOF on stdin. Never raises."""
        self._let_go.set()
        try:
            self._channel.close()
        except (EOFError, OSError, paramiko.SSHException):
            pass
        if threading.current_thread() is not self._drain:
            self._drain.join(1)
        self._free()

    def _ended_by_the_server(self) -> bool:
        """Whether the stream ended by the server's word. paramiko ends it in the same way when the transport dies.

        Some servers close without an EOF, after the exit status. sshd may send that status before the last output, so
        the transport must prove that it still lives: then the close was the server's, and all before it has come.
        """
        if self._channel.eof_received:
            return True
        transport = self._channel.get_transport()
        if self._channel.exit_status < 0 or not transport.is_active():
            return False
        try:
            transport.global_request("keepalive@openssh.com", wait=True)
        except (EOFError, OSError, paramiko.SSHException):
            return False
        return transport.is_active()

    def _feed(self, stdin: bytes) -> None:
        try:
            self.write(stdin)
        except (BrokenPipeError, ConnectionLost):
            pass  # the command may well end before it has read all; a lost path is met by the reader
        self.close_stdin()

    def _drain_stderr(self) -> None:
        while True:
            try:
                data = self._channel.recv_stderr(_SLICE)
            except TimeoutError:
                continue
            except (EOFError, OSError, paramiko.SSHException):
                return
            if not data:
                return
            self._stderr += data
            if self._stderr_limit is not None:
                del self._stderr[: -self._stderr_limit]

    def _completed(self, stdout: bytes) -> Completed:
        if self._channel.exit_status < 0:
            raise self._lost()
        self._drain.join(_TICK)
        self._free()
        ended = signal_or_status(self._channel.exit_status)
        return Completed(argv=self._argv, exit=ended, stdout=stdout, stderr=bytes(self._stderr))

    def _free(self) -> None:
        release, self._release = self._release, _nothing
        release()

    def _check(self, until: float | None, what: str) -> None:
        if until is not None and time.monotonic() >= until:
            raise TimeoutError(f"{self._host}: {self._argv[0]}: {what}")

    def _lost(self) -> ConnectionLost:
        """Without an exit status from the server nothing is known, not even when the transport still lives."""
        self._free()
        if self._channel.eof_received:
            why = f"{self._argv[0]} ended without an exit status (a signal?), result unknown"
        else:
            why = "connection lost, result unknown"
        return ConnectionLost(f"{self._host}: {why}", host=self._host, hint="run the same command again")


def _nothing() -> None:
    """What is left to release once a channel's place is free."""


def _tick(until: float | None) -> float:
    return _TICK if until is None else min(_TICK, max(0.0, until - time.monotonic()))
