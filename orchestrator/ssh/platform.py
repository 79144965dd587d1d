"""All that differs between a Linux and a macOS laptop. Nothing else in orchestrator/ asks which of them it runs on.

Every function takes the system's name as an argument, so that a test on one system runs the branch of another.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

SOCKET_PATH_LIMIT = 100
"""bytes of a Unix socket's path that every system accepts (Linux takes 107, macOS 103)"""
SOCKET_NAME_ROOM = 1 + 40 + 17
"""slash, ssh's %C, and the suffix that ssh adds while it makes the socket"""

# <netinet/tcp.h> of macOS; Python has no name for them
_DARWIN_TCP_KEEPALIVE = 0x10
_DARWIN_TCP_CONNECTIONTIMEOUT = 0x20
_DARWIN_TCP_RXT_CONNDROPTIME = 0x80


def tune_socket(sock: socket.socket, dead_s: float, *, system: str = sys.platform) -> None:
    """Make a TCP socket send at once, and give up after `dead_s` seconds in which the peer acknowledged nothing.

    Every option is a wish: a system that lacks one keeps its own (longer) limits, and the heartbeats in the agent's
    frames remain. Sockets that are not TCP (a ProxyCommand's) are left as they are.
    """
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    seconds = max(1, round(dead_s))
    _set(sock, socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _set(sock, socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _dead_path_options(seconds, system):
        _set(sock, socket.IPPROTO_TCP, option, value)
    ack_at_once(sock, system=system)


def _dead_path_options(seconds: int, system: str) -> list[tuple[int, int]]:
    interval = max(1, seconds // 3)
    probes = [(getattr(socket, "TCP_KEEPINTVL", None), interval), (getattr(socket, "TCP_KEEPCNT", None), 3)]
    known = [(option, value) for option, value in probes if option is not None]
    if system.startswith("linux"):
        return [(socket.TCP_KEEPIDLE, interval), *known, (socket.TCP_USER_TIMEOUT, seconds * 1000)]
    if system == "darwin":
        return [
            (_DARWIN_TCP_KEEPALIVE, interval),
            *known,
            (_DARWIN_TCP_CONNECTIONTIMEOUT, seconds),
            (_DARWIN_TCP_RXT_CONNDROPTIME, seconds),
        ]
    return known


def ack_at_once(sock: socket.socket, *, system: str = sys.platform) -> None:
    """Ask the kernel not to delay its next acknowledgements. Linux forgets it, so it is repeated after each packet."""
    if system.startswith("linux"):
        _set(sock, socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _set(sock: socket.socket, level: int, option: int, value: int) -> None:
    with suppress(OSError):
        sock.setsockopt(level, option, value)


def enlarge_pipe(descriptor: int, size: int = 1 << 20, *, system: str = sys.platform) -> None:
    """A larger pipe buffer means fewer switches between this process and `ssh`. Elsewhere than on Linux: nothing."""
    if system.startswith("linux"):
        with suppress(OSError):  # past the user's share of pipe memory
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, size)


def runtime_dir(*, environ: Mapping[str, str] = os.environ, system: str = sys.platform) -> Path | None:
    """A folder of the user's own (mode 0700) for sockets, short enough for them. None where there is none.

    macOS has no XDG_RUNTIME_DIR and a $TMPDIR that is too long for a socket; /tmp is there on both.
    """
    candidates = [Path("/tmp") / f"orch-{os.geteuid()}"]
    given = environ.get("XDG_RUNTIME_DIR", "")
    if given and system != "darwin":
        candidates.insert(0, Path(given) / "orch")
    return next((folder for folder in candidates if _short(folder) and _made_private(folder)), None)


def _short(folder: Path) -> bool:
    return len(os.fsencode(folder)) + SOCKET_NAME_ROOM <= SOCKET_PATH_LIMIT


def _made_private(folder: Path) -> bool:
    """Whether `folder` is now a real folder of ours that nobody else may enter: in /tmp, anyone may make it first."""
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
