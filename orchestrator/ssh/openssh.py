"""A host through OpenSSH's own `ssh`, with one master connection that the commands share (ControlMaster)."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Sequence

from orchestrator.errors import AuthenticationFailed, OrchError
from orchestrator.model import Host, Timeouts
from orchestrator.ssh import ending, failures, lowest, masters, process
from orchestrator.ssh.arguments import NO_MULTIPLEXING, ssh_argv
from orchestrator.ssh.connection import Channel, Completed, command_line
from orchestrator.ssh.resolve import Settings


class OpenSshConnection:
    """A Connection made of `ssh` processes. It connects on first use and again after a loss.

    `interactive` allows ssh to ask at the terminal where keys alone don't let us in: once, since that master is kept
    for ten minutes of idleness. Host keys are never asked about: unknown and changed ones are HostKeyError.
    A command that exits with 129 to 159 counts as ended by signal 1 to 31, as in a shell.
    """

    transport = "openssh"

    def __init__(
        self,
        host: Host,
        timeouts: Timeouts,
        *,
        settings: Settings,
        why: str,
        interactive: bool = False,
    ) -> None:
        self.host = host.name
        self.why = why
        self._settings, self._timeouts = settings, timeouts
        self._before = lowest.before(host)
        self._interactive = interactive
        self._asked = _asked(host, settings, timeouts)
        self._children = process.Children()
        self._opening = threading.Lock()
        self._master: masters.Master | None = None

    def connect(self) -> None:
        """Connect now. Raises HostUnreachable, AuthenticationFailed, HostKeyError or ConfigError."""
        self._connected()

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        """See Connection.run."""
        mark = ending.new_mark()
        status, stdout, stderr = process.run(
            self._children, self._argv(argv, mark), stdin=stdin, timeout=timeout, judge=judge(self._asked, mark)
        )
        return Completed(argv=tuple(argv), exit=status, stdout=stdout, stderr=stderr)

    def open(self, argv: Sequence[str], *, bulk: bool = False) -> Channel:
        """See Connection.open. Bulk has a connection of its own, unless only the master could log in."""
        mark = ending.new_mark()
        child = self._children.start(self._argv(argv, mark, own_connection=bulk))
        return process.ProcessChannel(child, argv, judge(self._asked, mark))

    def close(self) -> None:
        """See Connection.close. A master that is the user's own, or that is kept for them, lives on."""
        self._children.end_all()
        with self._opening:
            if self._master is not None:
                masters.end(self._master, self._settings, self._timeouts)
                self._master = None

    def _argv(self, argv: Sequence[str], mark: str, *, own_connection: bool = False) -> list[str]:
        master = self._connected()
        control = NO_MULTIPLEXING if own_connection and not master.logged_in_by_hand else master.control
        return ssh_argv(
            self._settings, self._timeouts, command_line(ending.told(argv, mark, before=self._before)), control=control
        )

    def _connected(self) -> masters.Master:
        with self._opening:
            if self._master is None or not self._master.alive():
                self._master = self._new_master()
            return self._master

    def _new_master(self) -> masters.Master:
        if found := masters.living(self._settings, self._timeouts):
            return found
        try:
            return self._start_master()
        except failures.UnknownHostKey as error:
            raise self._said_aloud() or error from None
        except AuthenticationFailed:
            if not self._interactive:
                raise
            return masters.start_by_hand(self._settings, self._timeouts, self._asked)

    def _start_master(self) -> masters.Master:
        deadline = time.monotonic() + self._timeouts.connect
        pause = random.uniform(0.1, 0.3)
        while True:
            try:
                return masters.start(self._settings, self._timeouts, self._asked)
            except masters.StartDropped as dropped:
                proxied = self._settings.hops or self._settings.one("proxycommand")
                if proxied and (reason := self._said_aloud()):
                    raise reason from None
                if time.monotonic() + pause > deadline:
                    raise dropped.error from None
                time.sleep(pause)
                pause *= 2

    def _said_aloud(self) -> OrchError | None:
        """Ask again with -v and without a master: only so does ssh name an unknown key's fingerprint, and let the
        words of a jump host through. None where it connects now, or was dropped again."""
        argv = ssh_argv(self._settings, self._timeouts, "exit", verbose=True)
        try:
            ended = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=2 * self._timeouts.connect
            )
        except subprocess.TimeoutExpired:
            return None
        words = ended.stderr.decode("utf-8", "replace")
        if ended.returncode != ending.LOST or failures.start_was_dropped(words):
            return None
        return failures.could_not_connect(self._asked, words)


def own_channel(
    host: Host, timeouts: Timeouts, settings: Settings, argv: Sequence[str], *, forward: str = ""
) -> Channel:
    """One command through an `ssh` process with a connection of its own, which may also forward a port of the host
    (`forward` holds the words of `ssh -R`).

    Failures to connect are raised by the channel's read, write and wait.
    """
    mark = ending.new_mark()
    words = ssh_argv(
        settings, timeouts, command_line(ending.told(argv, mark, before=lowest.before(host))), forward=forward
    )
    child = process.Children().start(words)
    return process.ProcessChannel(child, argv, judge(_asked(host, settings, timeouts), mark))


def _asked(host: Host, settings: Settings, timeouts: Timeouts) -> failures.Asked:
    return failures.Asked(name=host.name, typed=settings.command, seconds=timeouts.connect)


def judge(asked: failures.Asked, mark: str) -> process.Judge:
    """Reads the command's own ending out of that of its `ssh`."""

    def read(status: int, stderr: bytes) -> tuple[int, bytes]:
        told, rest = ending.read_ending(stderr, mark)
        if told is not None:
            return told, rest
        if status == ending.LOST:
            raise failures.ended_with_255(asked, rest.decode("utf-8", "replace"))
        if status < 0:
            raise failures.lost(asked, "")  # this `ssh` itself was ended
        return status, rest  # a login shell that runs nothing, such as nologin

    return read
