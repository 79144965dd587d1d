"""Whether this host reaches another one's sshd, how far it is, and what it would need to send there by itself."""

import os
import shutil
import socket
import time
from typing import Any, Dict

PATIENCE = 4.0
"""seconds for an address to answer"""
PAUSE = 0.5
"""seconds between two tries. Right after a cut "No route to host" comes at once where the kernel's last ARP question
was lost to it, and the next try finds the way"""
_HELLO = b"SSH-2.0-orch_probe\r\n"


def reach_answer(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """args {"places": [[address, port]], "patience": seconds for each, PATIENCE where it is missing}. Answers {"ssh":
    path or None, "memory_files": bool, "connection": the four words of SSH_CONNECTION, "places": [{"address", "port",
    "rtt", "from"} or {"address", "port", "error"}]}, tried in their order up to the first that answers. Nothing is sent
    but a greeting."""
    tried = []
    for address, port in args.get("places", []):
        tried.append(_reached(str(address), int(port), float(args.get("patience") or PATIENCE)))
        if "error" not in tried[-1]:
            break
    return {
        "ssh": shutil.which("ssh"),
        "memory_files": hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"),
        "connection": os.environ.get("SSH_CONNECTION", "").split(),
        "places": tried,
    }


def _reached(address: str, port: int, patience: float) -> Dict[str, Any]:
    """One place, tried again and again until it answers or patience is at its end; the error says how often."""
    until = time.monotonic() + patience
    count = 0
    while True:
        count += 1
        place = _try(address, port)
        if "error" not in place or time.monotonic() + PAUSE >= until:
            break
        time.sleep(PAUSE)
    if "error" in place and count > 1:
        place["error"] += ", tried %d times" % count
    return place


def _try(address: str, port: int) -> Dict[str, Any]:
    place: Dict[str, Any] = {"address": address, "port": port}
    try:
        with socket.create_connection((address, port), PATIENCE) as connection:
            connection.settimeout(PATIENCE)
            mine = connection.getsockname()[0]
            if not _until(connection, b"SSH-"):
                return dict(place, error="what answers there is no sshd")
            began = time.monotonic()
            connection.sendall(_HELLO)
            if not connection.recv(256):  # its list of algorithms: it is sent in answer to ours
                return dict(place, error="sshd there closed the connection")
            return dict(place, rtt=time.monotonic() - began, **{"from": mine})
    except socket.timeout:
        return dict(place, error="no answer within %d s" % PATIENCE)
    except OSError as error:
        return dict(place, error=error.strerror or str(error))


def _until(connection: socket.socket, beginning: bytes) -> bool:
    """Whether a line that begins so comes, after at most a few others, and is then taken whole."""
    heard = b""
    while len(heard) < 8192:
        part = connection.recv(1)
        if not part:
            return False
        heard += part
        if part == b"\n":
            if heard.startswith(beginning):
                return True
            heard = b""
    return False


def hold_answer(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """Be there until the controller says so: what it forwards through this connection ends with this process."""
    talk.progress({"held": True})
    talk.message()
    return {}
