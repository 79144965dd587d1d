"""The default connection: fabric and paramiko, over their public names. It carries questions and answers.

Many bytes go through an `ssh` process where there is one (`bulk`). paramiko is imported at the first use only.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import ConnectionLost, HostUnreachable, OrchError
from orchestrator.model import Host, Timeouts
from orchestrator.ssh import lowest, start
from orchestrator.ssh.connection import Channel, Completed, command_line
from orchestrator.ssh.resolve import Settings

if TYPE_CHECKING:
    import paramiko

    from orchestrator.ssh.fabric_channel import FabricChannel
    from orchestrator.ssh.fabric_link import Link

MAX_CHANNELS = 8
"""at once on a host: sshd's own default is 10"""

TELL_SIGNALS = '"$@"; exit $?'
"""paramiko drops sshd's word about a signal, so a shell stays behind and exits with 128 + signal, as shells do"""


class FabricConnection:
    """A Connection over paramiko, opened at first use, and anew when it was lost. No lost question is repeated."""

    transport = "fabric"

    def __init__(
        self,
        host: Host,
        timeouts: Timeouts,
        *,
        settings: Settings,
        why: str,
        config: Path | None,
        bulk: Callable[[Sequence[str]], Channel] | None = None,
    ) -> None:
        self.host = host.name
        self.why = why
        self.config = config
        self._timeouts = timeouts
        self._settings = settings
        self._shell = ("sh", "-c", lowest.before(host) + TELL_SIGNALS, "sh")
        self._bulk = bulk
        self._bulk_channels: list[Channel] = []
        self._link: Link | None = None
        self._closed = False
        self._opening = threading.Lock()
        self._places = threading.BoundedSemaphore(MAX_CHANNELS)
        self._counting = threading.Lock()
        self._running = 0
        """commands on the link now"""

    def connect(self) -> None:
        """Open now what would be opened at first use.

        Raises HostUnreachable, AuthenticationFailed or HostKeyError, each with what to type.
        """
        self._live_link()

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        """Run one command to its end. Raises TimeoutError, ConnectionLost, or what opening raises."""
        channel = self._start(argv, stderr_limit=None)
        try:
            return channel.finish(stdin, timeout)
        finally:
            channel.close()

    def open(self, argv: Sequence[str], *, bulk: bool = False) -> Channel:
        """Start one command with open pipes."""
        if bulk and self._bulk is not None:
            channel = self._bulk(argv)
            self._bulk_channels.append(channel)
            return channel
        return self._start(argv, stderr_limit=64 * 1024)

    def close(self) -> None:
        """End the connection; no thread or process stays behind. Never raises."""
        with self._opening:
            self._closed = True
            if self._link is not None:
                self._link.close()
        for channel in self._bulk_channels:
            channel.close()

    def _start(self, argv: Sequence[str], *, stderr_limit: int | None) -> FabricChannel:
        line = command_line([*self._shell, *argv])
        if not self._places.acquire(timeout=self._timeouts.question):
            raise HostUnreachable(f"{self.host}: {MAX_CHANNELS} commands are running there already", host=self.host)
        self._count(1)
        try:
            from orchestrator.ssh.fabric_channel import FabricChannel

            channel = self._started(line)
            return FabricChannel(self.host, argv, channel, self._release, stderr_limit=stderr_limit)
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        self._count(-1)
        self._places.release()

    def _count(self, change: int) -> None:
        """One command more or less; without any, the link rests."""
        with self._counting:
            self._running += change
            if self._link is not None:
                (self._link.stir if self._running else self._link.rest)()

    def _live_link(self) -> Link:
        """The open link; a lost one is replaced, for the next question is a new one."""
        with self._opening:
            if self._closed:
                raise ConnectionLost(f"{self.host}: the connection was closed", host=self.host)
            if self._link is None or not self._link.is_connected:
                if self._link is not None:
                    self._link.close()
                self._link = None
                try:
                    begun = start.begin_chain(self._settings, self.host, self._timeouts)
                    from orchestrator.ssh.fabric_link import open_link  # sshd starts while this takes its time

                    self._link = open_link(self._settings, self.host, self._timeouts, begun)
                except OrchError as error:
                    error.host = self.host
                    raise
            return self._link

    def _started(self, line: str) -> paramiko.Channel:
        """A channel that runs `line`. Only what has not begun is tried again."""
        import paramiko

        link = self._live_link()
        channel = self._session(link) or self._session(link := self._live_link())  # the first link was just dying
        if channel is None:
            raise self._lost()
        try:
            channel.exec_command(line)
        except (paramiko.SSHException, EOFError, OSError):
            if link.is_connected:
                raise HostUnreachable(f"{self.host}: sshd refuses to run commands", host=self.host) from None
            raise self._lost() from None
        return channel

    def _session(self, link: Link) -> paramiko.Channel | None:
        """A new channel; None on a link that is gone. Waits, with jitter, while sshd refuses one (MaxSessions)."""
        import paramiko

        until = time.monotonic() + self._timeouts.connect
        while True:
            try:
                return link.transport.open_session(timeout=self._timeouts.connect)
            except (paramiko.SSHException, EOFError, OSError):
                # of several that are refused at once, paramiko gives only one thread the reason
                delay = random.uniform(0.05, 0.4)
                if link.silence() > 0.9 * self._timeouts.connect:
                    link.close()  # cut while it rested, as by a laptop's sleep
                if not link.is_connected:
                    return None
                if time.monotonic() + delay > until:
                    refused = f"{self.host}: sshd refuses another session (MaxSessions)"
                    raise HostUnreachable(refused, host=self.host) from None
                time.sleep(delay)

    def _lost(self) -> ConnectionLost:
        text = f"{self.host}: connection lost, result unknown"
        return ConnectionLost(text, host=self.host, hint="run the same command again")
