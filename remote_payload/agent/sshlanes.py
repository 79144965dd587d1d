"""Connections to the evaluation host that this process starts itself: `ssh` with a one-use key and nothing else.

No configuration file, no other identity, no agent, no shared connection; the host key must be the one that the
controller trusts. Each is a child of this process and ends with it.
"""

import fcntl
import os
import subprocess
import threading
from typing import Any, Dict, List

from remote_payload.agent import credentials
from remote_payload.agent.ways import Lane

ALIAS = "orch-evaluation-host"
"""the name under which the host's key stands in the known_hosts that came with the question"""
_F_SETPIPE_SZ = 1031
_PIPE = 1 << 20
CONNECT = 10
ALIVE_EVERY, ALIVE_MISSED = 3, 5
"""seconds between two signs of life of the evaluation host's sshd, and how many may be missed"""
ENDING = 60.0
"""seconds for the other end to write down what is under way, once all was sent"""


def open_lanes(asked: Dict[str, Any], talk: Any) -> List[Lane]:
    """asked {"places": [[address, port]], "user", "lanes"}: so many connections, spread over the places."""
    places = asked["places"]
    lanes = range(int(asked["lanes"]))
    return [SshLane(argv(*places[lane % len(places)], user=asked["user"]), talk) for lane in lanes]


def argv(address: str, port: int, *, user: str) -> List[str]:
    """The whole command. What it runs there is laid down beside the key, in authorized_keys."""
    options = {
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "PreferredAuthentications": "publickey",
        "BatchMode": "yes",
        "ControlMaster": "no",
        "ControlPath": "none",
        "ForwardAgent": "no",
        "ClearAllForwardings": "yes",
        "PermitLocalCommand": "no",
        "UpdateHostKeys": "no",
        "StrictHostKeyChecking": "yes",
        "CheckHostIP": "no",
        "UserKnownHostsFile": credentials.place("known_hosts"),
        "GlobalKnownHostsFile": "/dev/null",
        "HostKeyAlias": ALIAS,
        "Ciphers": "aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com",
        "KexAlgorithms": "curve25519-sha256,curve25519-sha256@libssh.org,ecdh-sha2-nistp256",
        "Compression": "no",
        "ConnectTimeout": str(CONNECT),
        "ServerAliveInterval": str(ALIVE_EVERY),
        "ServerAliveCountMax": str(ALIVE_MISSED),
        "LogLevel": "ERROR",
    }
    words = [word for name, value in options.items() for word in ("-o", "%s=%s" % (name, value))]
    place = ["-p", str(int(port)), "-l", user, "--", address]
    return ["ssh", "-F", "none", "-T", "-x", "-a", "-i", credentials.place("key"), *words, *place]


class SshLane(Lane):
    """One `ssh` whose stdin carries chunks. What the other end's login shell prints is thrown away."""

    def __init__(self, command: List[str], talk: Any) -> None:
        self._child = talk.spawn(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, bufsize=0
        )
        self._stdin = self._child.stdin.fileno()
        self._said = b""
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()
        try:
            fcntl.fcntl(self._stdin, _F_SETPIPE_SZ, _PIPE)
        except OSError:
            pass  # a limit of this user's pipes: smaller ones work too

    def write(self, data: memoryview) -> None:
        while data:
            data = data[os.write(self._stdin, data) :]

    def end(self) -> str:
        self._child.stdin.close()
        try:
            status = self._child.wait(timeout=ENDING)
        except subprocess.TimeoutExpired:
            self._child.kill()
            status = self._child.wait()
        self._hearing.join(1.0)
        if status == 0:
            return ""
        lines = self._said.decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else "ssh ended with %d" % status

    def _hear(self) -> None:
        while True:
            part = os.read(self._child.stderr.fileno(), 4096)
            if not part:
                return
            self._said = (self._said + part)[-4096:]
