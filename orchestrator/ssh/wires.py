"""What an SSH transport runs over: a tuned TCP socket, a channel through a jump host, or a ProxyCommand.

Each stamps when the other side was last heard. Once a time limit is set, the reader that waits on a silent wire
gets a ConnectionAbortedError: that is how a cut path is noticed, for paramiko itself notices none.
"""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import subprocess
import tempfile
import threading
import time
from typing import Any

from orchestrator.errors import HostUnreachable
from orchestrator.ssh.platform import ack_at_once, tune_socket
from orchestrator.ssh.resolve import Settings


class Pulse:
    """When the other side was last heard. `limit` is the silence in seconds after which it counts as dead."""

    def __init__(self) -> None:
        self.limit = math.inf
        self._heard = time.monotonic()

    def heard(self) -> None:
        self._heard = time.monotonic()

    def silence(self) -> float:
        return time.monotonic() - self._heard

    def patience(self) -> float:
        """Seconds until it is worth to check again."""
        return min(PATIENCE, max(0.05, self.limit - self.silence()))

    def check(self) -> None:
        """Raises ConnectionAbortedError when the other side is dead."""
        if self.silence() > self.limit:
            raise ConnectionAbortedError(errno.ECONNABORTED, f"nothing was heard for {self.limit:.0f} s")


PATIENCE = 1.0
"""seconds that a reader waits before it looks up; paramiko's own tenth of one costs seconds of CPU an hour"""


class Wire(socket.socket):
    """A socket whose reads keep a Pulse."""

    _arrivals: select.poll | None = None

    def __init__(self, plain: socket.socket) -> None:
        super().__init__(plain.family, plain.type, plain.proto, fileno=plain.detach())
        self.pulse = Pulse()
        self._tcp = self.family in (socket.AF_INET, socket.AF_INET6)

    def be_patient(self) -> None:
        """From now on a reader waits longer; a shutdown still wakes it at once."""
        arrivals = select.poll()
        arrivals.register(self, select.POLLIN)
        self._arrivals = arrivals

    def recv(self, size: int, flags: int = 0) -> bytes:
        try:
            if self._arrivals is not None and not self._arrivals.poll(1000 * self.pulse.patience()):
                raise TimeoutError
            data = super().recv(size, flags)
        except TimeoutError:
            self.pulse.check()
            raise
        self.pulse.heard()
        if self._tcp and data:
            ack_at_once(self)
        return data


class ProxyWire(Wire):
    """One end of a socket pair; a ProxyCommand holds the other. Closing ends the command."""

    def __init__(self, command: str) -> None:
        ours, theirs = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `end`)
        self._process = subprocess.Popen(
            [os.environ.get("SHELL") or "/bin/sh", "-c", f"exec {command}"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=self._stderr,
            start_new_session=True,
        )
        theirs.close()
        super().__init__(ours)

    def complaint(self) -> str:
        """The last line that the command wrote to stderr."""
        if self._stderr.closed:
            return ""
        self._stderr.seek(0)
        lines = self._stderr.read(65536).decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else ""

    def end(self) -> None:
        """Close, and wait until the command is gone."""
        self.close()
        self._process.terminate()
        try:
            self._process.wait(1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()


class HopWire:
    """A channel through a jump host (paramiko's Channel) as a socket with a Pulse."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._patient = False
        self.pulse = Pulse()

    def be_patient(self) -> None:
        """From now on a reader waits longer."""
        self._patient = True

    def recv(self, size: int) -> bytes:
        if self._patient:
            self._channel.settimeout(self.pulse.patience())
        try:
            data: bytes = self._channel.recv(size)
        except TimeoutError:
            self.pulse.check()
            raise
        self.pulse.heard()
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


def connect(settings: Settings, where: str, limit: float, dead: float) -> Wire:
    """A TCP connection to the host itself, within `limit` seconds; the kernel gives it up after `dead` seconds.

    Raises HostUnreachable, with one sentence for each cause.
    """
    place = f"{settings.hostname} port {settings.port}"
    until = time.monotonic() + limit
    problem: OSError = OSError(errno.EADDRNOTAVAIL, "no address")
    for family, kind, proto, address in _addresses(settings, where, limit):
        sock = socket.socket(family, kind, proto)
        try:
            sock.settimeout(max(0.1, until - time.monotonic()))
            if settings.one("bindaddress"):
                sock.bind((settings.one("bindaddress"), 0))
            sock.connect(address)
            tune_socket(sock, dead)
            return Wire(sock)
        except OSError as error:
            sock.close()
            problem = error
    raise HostUnreachable(f"{where}: {_tcp_failure(problem, place, limit)}", hint=settings.command)


def _tcp_failure(problem: OSError, place: str, limit: float) -> str:
    if isinstance(problem, ConnectionRefusedError):
        return f"{place} refuses connections (no sshd on that port)"
    if isinstance(problem, TimeoutError):
        return f"{place} does not answer within {limit:.0f} s"
    if problem.errno == errno.EHOSTUNREACH:
        return f"{place} cannot be reached (no route to it)"
    if problem.errno == errno.ENETUNREACH:
        return f"{place} cannot be reached (this machine has no network that leads there)"
    return f"{place}: {problem.strerror or problem}"


_Address = tuple[int, int, int, Any]


def _addresses(settings: Settings, where: str, limit: float) -> list[_Address]:
    """The host's addresses. The resolver knows no time limit, so it is asked in a thread of its own."""
    families = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
    family = families.get(settings.one("addressfamily"), socket.AF_UNSPEC)
    found: list[_Address] = []
    problem: list[OSError] = []

    def ask() -> None:
        try:
            answer = socket.getaddrinfo(settings.hostname, settings.port, family, socket.SOCK_STREAM)
            found.extend((entry[0], entry[1], entry[2], entry[4]) for entry in answer)
        except OSError as error:
            problem.append(error)
        except UnicodeError as error:
            problem.append(OSError(errno.EINVAL, str(error)))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(limit)
    if not found:
        why = (
            f"no address for the name {settings.hostname}"
            if problem
            else f"no name server answers for {settings.hostname}"
        )
        raise HostUnreachable(f"{where}: {why}", hint=f"{settings.command}  (is the name right?)")
    return found
