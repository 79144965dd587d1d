"""The one narrow door to a host: a Connection runs commands (argv lists, bytes in, bytes out) and opens channels.

Three implementations pass one conformance suite (tests/hosts/test_conformance.py): fabric, openssh, local.
A command's own failure is a value (`Completed.exit`); a lost transport is an exception (`ConnectionLost`), never a
result.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A command that ended by itself. `exit` is its exit status, or minus the signal that ended it."""

    argv: tuple[str, ...]
    exit: int
    stdout: bytes
    stderr: bytes


class Channel(Protocol):
    """A running command with open pipes. Back-pressure holds in both directions; stderr is drained meanwhile."""

    def read(self, size: int, timeout: float | None = None) -> bytes:
        """Up to `size` bytes of stdout as soon as there are any; b"" once the command closed stdout.

        Raises TimeoutError when nothing came for `timeout` seconds, ConnectionLost when the transport died.
        """

    def write(self, data: bytes | memoryview) -> None:
        """All of `data` to stdin. Raises BrokenPipeError when the command no longer reads, ConnectionLost as above."""

    def close_stdin(self) -> None:
        """EOF to the command. May be called twice."""

    def wait(self, timeout: float | None = None) -> Completed:
        """The exit status (`stdout` is b"": it was for `read`; `stderr` holds at most the last 64 KiB).

        Raises TimeoutError, or ConnectionLost where the status is unknown.
        """

    def close(self) -> None:
        """Let go: the command sees EOF on stdin. Never raises, returns within a second."""


class Connection(Protocol):
    """A way to one host. Safe to use from several threads. Opened on first use or on construction, closed once."""

    @property
    def host(self) -> str:
        """The inventory's name of the host, for messages."""

    @property
    def transport(self) -> str:
        """fabric, openssh or local."""

    @property
    def why(self) -> str:
        """One sentence for `orch -v`: why this transport."""

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        """Run one command to its end.

        Raises TimeoutError after `timeout` seconds (the command may go on), ConnectionLost, or what opening raises:
        HostUnreachable, AuthenticationFailed, HostKeyError.
        """

    def open(self, argv: Sequence[str], *, bulk: bool = False) -> Channel:
        """Start one command with open pipes.

        `bulk` announces many bytes: they go through an `ssh` process where OpenSSH is there.
        """

    def close(self) -> None:
        """End the connection and what belongs to it. Never raises."""


def command_line(argv: Sequence[str]) -> str:
    """The one place that quotes. POSIX shells, fish and tcsh read the result as the same argv.

    Raises ValueError for NUL, and for what some login shell can't be given safely.
    """
    for word in argv:
        if "\0" in word:
            raise ValueError(f"a NUL byte can't be part of a command: {word!r}")
    return shlex.join(argv)
