"""Which way leads to a host, and the connections of one command."""

from __future__ import annotations

import subprocess
import threading
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from orchestrator.errors import AuthenticationFailed, ConfigError
from orchestrator.model import Host, Timeouts
from orchestrator.ssh import masters, resolve, suitability
from orchestrator.ssh.connection import Connection
from orchestrator.ssh.resolve import Settings

if TYPE_CHECKING:
    from orchestrator.ssh.fabric import FabricConnection
    from orchestrator.ssh.openssh import OpenSshConnection


def connect(host: Host, timeouts: Timeouts, *, interactive: bool) -> Connection:
    """An open connection to `host` by its `transport`. `interactive` lets ssh ask at the terminal, once.

    Raises HostUnreachable, AuthenticationFailed, HostKeyError or ConfigError.
    """
    if host.transport == "local":
        from orchestrator.ssh.local import LocalConnection

        return LocalConnection(host, timeouts)
    settings = resolve.resolve(host.ssh, resolve.config_file())
    if host.transport == "openssh":
        if settings.source != "openssh":
            raise ConfigError(f"{host.name}: transport: openssh, but there is no `ssh` here", host=host.name)
        return _openssh(host, timeouts, settings, "transport: openssh", interactive)
    if host.transport == "fabric":
        return _fabric(host, timeouts, settings, "transport: fabric")
    return _best(host, timeouts, settings, interactive)


def _best(host: Host, timeouts: Timeouts, settings: Settings, interactive: bool) -> Connection:
    if settings.source != "openssh":
        return _fabric(host, timeouts, settings, "there is no OpenSSH here")
    if reasons := suitability.cannot(settings):
        return _openssh(host, timeouts, settings, f"paramiko lacks: {'; '.join(reasons)}", interactive)
    if masters.living(settings, timeouts):
        why = "a connection that you logged in to is open (ControlMaster)"
        return _openssh(host, timeouts, settings, why, interactive)
    try:
        return _fabric(host, timeouts, settings, "nothing in its ssh settings needs OpenSSH")
    except AuthenticationFailed as error:
        if settings.on("gssapiauthentication") and _has_ticket():
            why = "keys were refused, and there is a Kerberos ticket"
        elif interactive:
            why = "keys alone do not log in, so ssh may ask you"
        else:
            if settings.command not in error.hint:
                error.hint = "; or: ".join(filter(None, (error.hint, settings.command)))
            raise
    return _openssh(host, timeouts, settings, why, interactive)


def _fabric(host: Host, timeouts: Timeouts, settings: Settings, why: str) -> Connection:
    from orchestrator.ssh.fabric import FabricConnection
    from orchestrator.ssh.openssh import own_channel

    bulk = partial(own_channel, host, timeouts, settings) if settings.source == "openssh" else None
    connection = FabricConnection(host, timeouts, settings=settings, why=why, config=settings.config, bulk=bulk)
    return _opened(connection)


def _openssh(host: Host, timeouts: Timeouts, settings: Settings, why: str, interactive: bool) -> Connection:
    from orchestrator.ssh.openssh import OpenSshConnection

    return _opened(OpenSshConnection(host, timeouts, settings=settings, why=why, interactive=interactive))


C = TypeVar("C", bound="FabricConnection | OpenSshConnection")


def _opened(connection: C) -> C:
    try:
        connection.connect()
    except BaseException:
        connection.close()
        raise
    return connection


def _has_ticket() -> bool:
    with suppress(OSError, subprocess.TimeoutExpired):
        asked = subprocess.run(["klist", "-s"], stdin=subprocess.DEVNULL, capture_output=True, timeout=5)
        return asked.returncode == 0
    return False


class Connections:
    """The connections of one command: opened on first use, one a host, closed together. Safe to use from threads."""

    def __init__(self, timeouts: Timeouts, *, interactive: bool = False) -> None:
        self._timeouts, self._interactive = timeouts, interactive
        self._lock = threading.Lock()
        self._opening: dict[str, threading.Lock] = {}
        self._open: dict[str, Connection] = {}
        self._closed = False

    def __enter__(self) -> Connections:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def to(self, host: Host) -> Connection:
        """The connection to a host. Hosts are opened side by side, each one only once. Raises as `connect` does."""
        with self._lock:
            opening = self._opening.setdefault(host.name, threading.Lock())
        with opening:
            if host.name not in self._open:
                self._keep(host, connect(host, self._timeouts, interactive=self._interactive))
            return self._open[host.name]

    def _keep(self, host: Host, connection: Connection) -> None:
        with self._lock:
            if not self._closed:
                self._open[host.name] = connection
                return
        connection.close()  # a thread that nobody waited for came too late
        raise RuntimeError("these connections are closed")

    def forget(self, host: Host) -> None:
        """Close a host's connection, if there is one; the next `to` opens a new one."""
        with self._lock:
            connection = self._open.pop(host.name, None)
        if connection is not None:
            connection.close()

    def opened(self) -> list[Connection]:
        """Those that are open, by name."""
        with self._lock:
            return [self._open[name] for name in sorted(self._open)]

    def close(self) -> None:
        """Close them all, side by side. Never raises."""
        with self._lock:
            self._closed = True
            open_now, self._open = list(self._open.values()), {}
        closing = [threading.Thread(target=connection.close, daemon=True) for connection in open_now]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
