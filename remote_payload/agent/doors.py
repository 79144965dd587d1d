"""Connections of a shipment's own into the evaluation host, received by the one process that holds the shipment.

Each is an `ssh` of the training box, logged in with a one-use key whose line in authorized_keys allows one command: a
few lines of Python that hand the connection's stdin over to this process, through a socket that has no file and takes
only this user's processes, and wait until it is done. So there is one writer, and when it ends every door is shut.
"""

import array
import fcntl
import os
import socket
import struct
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from remote_payload.agent import authorizedkeys, chunks
from remote_payload.agent.errors import AgentError
from remote_payload.agent.incoming import Incoming

_F_SETPIPE_SZ = 1031
_PIPE = 1 << 20
MOST = 16
"""connections at once"""
DRAIN = 2.0
"""seconds for connections to end once the sender has: one that ended well was read out before that, and a cut one is
nobody's any more (this host's sshd may not notice for hours)"""


class Doors:
    """Takes connections in. asked {"id", "name", "public", "command", "life"?}: `name` is the socket's, `id` the tag of
    the line in authorized_keys, `command` what that line runs."""

    def __init__(self, asked: Dict[str, Any], coming: Incoming, tell: Callable[[], None], talk: Any) -> None:
        self._asked = asked
        self._coming = coming
        self._tell = tell
        self._lock = threading.Lock()
        self._connections: List[threading.Thread] = []
        self._problem: Optional[Exception] = None
        self._entered: Optional[List[str]] = None
        self._over = threading.Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(b"\0" + str(asked["name"]).encode("ascii"))
        self._socket.listen(MOST)
        talk.at_end(self.close)
        for work in (self._accept, self._renew):
            threading.Thread(target=work, daemon=True).start()

    def open(self, addresses: List[str]) -> Dict[str, Any]:
        """Let the key in from these addresses. {"line": where it stands} or {"error": why not}."""
        try:
            with self._lock:
                self._enter(addresses)
        except AgentError as error:
            return {"error": error.message}
        return {"line": "%s: orch-%s" % (authorizedkeys.path(), self._asked["id"])}

    def wait(self) -> None:
        """Until what came so far is written. Raises what went wrong in a connection: OSError, AgentError."""
        deadline = time.monotonic() + DRAIN
        for thread in list(self._connections):
            thread.join(max(0.0, deadline - time.monotonic()))
        self._connections = [thread for thread in self._connections if thread.is_alive()]
        if self._problem is not None:
            raise self._problem

    def close(self) -> None:
        """Shut every door and take the line away. A second call does nothing."""
        self._over.set()
        with self._lock:
            entered, self._entered = self._entered, None
            if entered is not None:
                authorizedkeys.remove(self._asked["id"])
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept: that keeps a closed socket open
        except OSError:
            pass  # shut before
        self._socket.close()

    def _enter(self, addresses: List[str]) -> None:
        if self._over.is_set():
            return
        asked = self._asked
        life = float(asked.get("life") or authorizedkeys.LIFE)
        authorizedkeys.enter(asked["id"], asked["public"], addresses, asked["command"], life)
        self._entered = addresses

    def _renew(self) -> None:
        life = min(authorizedkeys.LIFE, float(self._asked.get("life") or authorizedkeys.LIFE))
        while not self._over.wait(life / 2):
            with self._lock:
                if self._entered is not None:
                    try:
                        self._enter(self._entered)
                    except AgentError:
                        return  # connections that stand live on; a new one may be refused, and that is said then

    def _accept(self) -> None:
        while True:
            try:
                door, _ = self._socket.accept()
            except OSError:
                return  # closed
            thread = threading.Thread(target=self._serve, args=(door,), daemon=True)
            self._connections.append(thread)
            thread.start()

    def _serve(self, door: socket.socket) -> None:
        with door:
            _, user, _ = struct.unpack("3i", door.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if user != os.getuid():
                return
            stream = _handed_over(door)
            if stream is None:
                return
            try:
                self._take(stream)
            except chunks.BadFrame:
                pass  # cut off; what is missing is asked for again
            except (OSError, AgentError) as error:
                self._problem = error
            finally:
                os.close(stream)

    def _take(self, stream: int) -> None:
        try:
            fcntl.fcntl(stream, _F_SETPIPE_SZ, _PIPE)
        except OSError:
            pass  # not a pipe, or more than this user may have: smaller reads work too
        for found in chunks.Frames(lambda buffer: os.readv(stream, [buffer])):
            if self._problem is not None:
                return
            self._coming.take(*found)
            self._tell()


def _handed_over(door: socket.socket) -> Optional[int]:
    """The descriptor that came through a door."""
    door.settimeout(10.0)
    found = array.array("i")
    try:
        _, ancillary, _, _ = door.recvmsg(1, socket.CMSG_LEN(found.itemsize))
    except OSError:
        return None
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: found.itemsize])
    return found[0] if found else None
