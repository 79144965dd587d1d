"""Master connections of OpenSSH (ControlMaster): the user's own, one kept after asking the user, or one of ours.

Masters of ours are put in the background by ssh itself and end after some idleness, so none stays behind for good
even where orch was killed.
"""

from __future__ import annotations

import secrets
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import AuthenticationFailed, HostUnreachable, OrchError
from orchestrator.model import Timeouts
from orchestrator.ssh import failures, platform
from orchestrator.ssh.arguments import NO_MULTIPLEXING, ssh_argv
from orchestrator.ssh.resolve import Settings

KEPT_FOR = 600
"""seconds of idleness that a master lives on for which the user typed a password or touched a key"""
IDLE_FOR = 60
"""the same for any other, which is closed with its connection unless orch was killed"""
SLACK = 0.5
"""seconds in which ssh's own ConnectTimeout, which knows the address, may speak before ours"""
ASK_LIMIT = 5.0
"""seconds in which a master answers a question about itself"""
HASH_LENGTH = 40
"""letters of ssh's %C"""
_TERMINAL = threading.Lock()
"""one question to the user at a time"""


class StartDropped(Exception):
    """sshd dropped the connection before log-in; worth another try. `error` says so to the user."""

    def __init__(self, error: OrchError) -> None:
        super().__init__(error.message)
        self.error = error


@dataclass(frozen=True, slots=True, kw_only=True)
class Master:
    """A connection that commands share."""

    control: tuple[str, ...]
    """ssh's arguments for sharing it"""
    logged_in_by_hand: bool = False
    """true where a connection of its own might not be let in"""
    socket: Path | None = None
    """set for a master of ours, to be ended with the connection"""

    def alive(self) -> bool:
        """False once a master of ours has ended."""
        return self.socket is None or self.socket.exists()


def living(settings: Settings, timeouts: Timeouts) -> Master | None:
    """A master that is already there: the user's own, or one kept from an earlier command."""
    candidates = [("-S", settings.one("controlpath"))] if settings.one("controlpath") else []
    folder = platform.runtime_dir()
    if folder is not None and any(len(entry.name) == HASH_LENGTH for entry in folder.iterdir()):
        candidates.append(_kept(folder))
    for control in candidates:
        if _tell(settings, timeouts, control, "check"):
            return Master(control=control, logged_in_by_hand=True)
    return None


def start(settings: Settings, timeouts: Timeouts, asked: failures.Asked) -> Master:
    """A master of ours, logged in. Without a place for its socket, a stand-in: each command then connects by itself.

    Raises StartDropped, HostUnreachable, AuthenticationFailed, HostKeyError, ConfigError.
    """
    folder = platform.runtime_dir()
    if folder is None:
        return Master(control=NO_MULTIPLEXING)
    socket = folder / f"m{secrets.token_hex(6)}"
    control = ("-S", str(socket))
    words = _log_in(ssh_argv(settings, timeouts, None, control=(*_in_background(IDLE_FOR), *control)), asked)
    if words is None:
        return Master(control=control, socket=socket)
    error = failures.could_not_connect(asked, words)
    raise StartDropped(error) if failures.start_was_dropped(words) else error


def start_by_hand(settings: Settings, timeouts: Timeouts, asked: failures.Asked) -> Master:
    """Let ssh ask at the terminal, and keep that master. Raises AuthenticationFailed, or what `ssh` met."""
    folder = platform.runtime_dir()
    if folder is None:
        raise AuthenticationFailed(
            f"{asked.name}: there is no folder for the socket of a shared connection",
            hint="set XDG_RUNTIME_DIR to a short path of your own",
            host=asked.name,
        )
    control = (*_in_background(KEPT_FOR), *_kept(folder))
    with _TERMINAL:
        words = _log_in(ssh_argv(settings, timeouts, None, control=control, batch=False), asked, by_hand=True)
    if words is not None:
        raise failures.could_not_connect(asked, words)
    return Master(control=_kept(folder), logged_in_by_hand=True)


def end(master: Master, settings: Settings, timeouts: Timeouts) -> None:
    """End a master of ours; others live on. Never raises."""
    if master.socket is not None and master.alive():
        _tell(settings, timeouts, master.control, "exit")


def _kept(folder: Path) -> tuple[str, str]:
    return "-S", str(folder / "%C")


def _in_background(idle: int) -> tuple[str, ...]:
    return "-M", "-f", "-o", f"ControlPersist={idle}"


def _log_in(argv: list[str], asked: failures.Asked, *, by_hand: bool = False) -> str | None:
    """Run ssh until it is logged in and in the background. What it said where it failed, else None."""
    with tempfile.TemporaryFile() as said:  # a pipe would stay open as long as the master
        try:
            ended = subprocess.run(
                argv,
                stdin=None if by_hand else subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                timeout=None if by_hand else asked.seconds + SLACK,
                start_new_session=not by_hand,
            )
        except subprocess.TimeoutExpired:
            raise HostUnreachable(
                f"{asked.name}: did not answer within {asked.seconds:.0f} s",
                hint=f"try: {asked.typed}",
                host=asked.name,
            ) from None
        said.seek(0)
        return said.read().decode("utf-8", "replace") if ended.returncode else None


def _tell(settings: Settings, timeouts: Timeouts, control: tuple[str, ...], word: str) -> bool:
    argv = ssh_argv(settings, timeouts, None, control=(*control, "-O", word))
    try:
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=ASK_LIMIT).returncode == 0
    except subprocess.TimeoutExpired:
        return False
