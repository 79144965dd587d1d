"""The one narrow door to a host: a Connection runs commands (argv lists, bytes in, bytes out) and opens channels.

Three implementations pass one conformance suite (tests/hosts/test_conformance.py): fabric, openssh, local.
A command's own failure is a value (`Completed.exit`); a lost transport is an exception (`ConnectionLost`), never a
result.
"""

from __future__ import annotations

import re
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


class Opener(Protocol):
    """What a conversation needs of a connection."""

    def open(self, argv: Sequence[str], *, bulk: bool = False) -> Channel:
        """See Connection.open."""


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


_BARE = re.compile(r"[A-Za-z0-9_./:+,-]+")
_QUOTABLE = re.compile(r"[ \"-&(-\[\]-~]*")
"""printable ASCII without ! ' and backslash"""
_DECODE = r'for w do shift; w=$(printf %b. "$w"); set -- "$@" "${w%.}"; done; exec "$@"'
"""read by /bin/sh: each argument's \\0ooo become bytes. The dot keeps line ends, which $() would cut off."""


def command_line(argv: Sequence[str]) -> str:
    """The one place that quotes. POSIX shells, fish and tcsh read the result as the same argv, and become it.

    Single quotes mean the same in all three for printable ASCII save `'`, `\\` (fish) and `!` (tcsh), and tcsh takes
    no line end in them. Any other word travels as octal through /bin/sh. `exec` keeps functions, aliases and builtins
    of the login shell away. A `str` with surrogates from os.fsdecode gives back its bytes.

    Raises ValueError for NUL, for no command, and for one whose name begins with `-`.
    """
    for word in argv:
        if "\0" in word:
            raise ValueError(f"a NUL byte can't be part of a command: {word!r}")
    if not argv or not argv[0] or argv[0].startswith("-"):
        raise ValueError(f"not a command: {list(argv)!r}")
    if all(map(_QUOTABLE.fullmatch, argv)):
        return " ".join(["exec", *map(_quoted, argv)])
    return " ".join(["exec /bin/sh -c", f"'{_DECODE}'", "sh", *(_quoted(_octal(word)) for word in argv)])


def _quoted(word: str) -> str:
    return word if _BARE.fullmatch(word) else f"'{word}'"


def _octal(word: str) -> str:
    """A word for `printf %b`: what is not plain becomes \\0ooo, byte by byte."""
    plain = set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 _./:+,-=@%")
    return "".join(chr(byte) if byte in plain else f"\\0{byte:03o}" for byte in word.encode("utf-8", "surrogateescape"))
