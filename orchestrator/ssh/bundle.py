"""The agent as one text: all its modules' sources and their loader, sent over stdin with each question."""

from __future__ import annotations

import threading
import zlib
from functools import cache
from pathlib import Path

import remote_payload

STAGE = (
    "import sys,zlib;"
    'sys.version_info<(3,8)and sys.exit("orch-old-python %d.%d"%sys.version_info[:2]);'
    "i=sys.stdin.buffer;n=int(i.readline());s=zlib.decompress(i.read(n)).decode();"
    'g={"__name__":"agent"};exec(s,g);g["main"](i,s)'
)
"""No quote, backslash, dollar, `!` or newline that a login shell could read its own way."""

DOOR = (
    "import array,os,socket,sys;s=socket.socket(socket.AF_UNIX);s.connect(bytes(1)+sys.argv[1].encode());"
    "u=s.getsockopt(socket.SOL_SOCKET,socket.SO_PEERCRED,12);"
    "int.from_bytes(u[4:8],sys.byteorder)==os.getuid()or sys.exit(1);"
    "s.sendmsg([bytes(1)],[(socket.SOL_SOCKET,socket.SCM_RIGHTS,array.array(chr(105),[0]))]);s.recv(1)"
)
"""Connect to a socket without a file, see that it is this user's, hand over stdin, wait for the end. Plain as STAGE."""


FLAGS = ("-I", "-S", "-B")
"""Nothing of the user's own, no .pth file of its environment (they may run code, and cost 4 ms), nothing written."""


@cache
def source() -> str:
    """Python source that, executed with __name__ == "agent", makes remote_payload.agent importable."""
    root = Path(remote_payload.__file__).parent
    sources = {"remote_payload.__init__": ""}
    for file in sorted((root / "agent").rglob("*.py")):
        name = ".".join(("remote_payload", *file.relative_to(root).with_suffix("").parts))
        sources[name] = file.read_text(encoding="utf-8")
    loader = sources.pop("remote_payload.agent.loader")
    return f"{loader}\nSOURCES.update({sources!r})\nimport sys\nsys.meta_path.insert(0, Sources())\n"


_packing = threading.Lock()
"""held by the first thread that wants the preamble; the others then find it ready"""


def preamble() -> bytes:
    """What goes over stdin before the request: the length of the compressed bundle, a newline, the bundle."""
    with _packing:
        return _packed()


@cache
def _packed() -> bytes:
    packed = zlib.compress(source().encode("utf-8"), 1)  # a third of the time of level 6, a fifth more bytes
    return b"%d\n" % len(packed) + packed


def start_argv(python: str) -> list[str]:
    """The command that starts the agent with a host's python."""
    return python_argv(python, STAGE)


def door_argv(python: str, name: str) -> list[str]:
    """The command of a connection that hands itself over to the receiver that listens on this socket."""
    return python_argv(python, DOOR, name)


def python_argv(python: str, code: str, *words: str) -> list[str]:
    """A host's python with some code. A leading `~/` is the remote user's home."""
    if python.startswith("~/"):
        shell = 'p=$1; shift; exec "$HOME/$p" "$@"'
        return ["/bin/sh", "-c", shell, "sh", python[2:], *FLAGS, "-c", code, *words]
    return [python, *FLAGS, "-c", code, *words]
