"""A client of the user's ssh-agent: what keys it holds, and signatures. Unlike paramiko's it takes any socket path
(IdentityAgent) and gives up on an agent that does not answer. Protocol: draft-miller-ssh-agent."""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass

from orchestrator.ssh.resolve import Settings

_REQUEST_IDENTITIES, _IDENTITIES, _SIGN_REQUEST, _SIGNATURE = 11, 12, 13, 14
_RSA_FLAGS = {"rsa-sha2-256": 2, "rsa-sha2-512": 4}
_MAX_ANSWER = 1 << 20
ASK_LIMIT = 3.0
"""seconds for the list of keys"""
SIGN_LIMIT = 30.0
"""seconds for a signature: a person may have to touch a key or to confirm"""


class KeyAgentError(Exception):
    """The agent is not there, does not answer, or refuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A key that the agent holds: public blob (or certificate) and comment."""

    blob: bytes
    comment: str

    @property
    def type(self) -> str:
        return _read_string(self.blob, 0)[0].decode("ascii", "replace")


def agent_path(settings: Settings) -> str:
    """The agent's socket: IdentityAgent, else SSH_AUTH_SOCK; empty for none."""
    values = settings.options.get("identityagent", ())
    named = values[-1] if values else "SSH_AUTH_SOCK"
    if named.lower() == "none":
        return ""
    if named == "SSH_AUTH_SOCK" or (named.startswith("$") and not named.startswith("${")):
        return os.environ.get(named.lstrip("$"), "")
    return settings.expand(named)


def identities(path: str) -> list[Identity]:
    """The keys that the agent holds. Raises KeyAgentError."""
    answer = _ask(path, bytes([_REQUEST_IDENTITIES]), ASK_LIMIT)
    if answer[0] != _IDENTITIES:
        raise KeyAgentError("it does not list its keys")
    try:
        (count,) = struct.unpack_from(">I", answer, 1)
        at, found = 5, []
        for _ in range(count):
            blob, at = _read_string(answer, at)
            comment, at = _read_string(answer, at)
            found.append(Identity(blob=blob, comment=comment.decode("utf-8", "replace")))
    except struct.error:
        raise KeyAgentError("its answer is cut short") from None
    return found


def sign(path: str, blob: bytes, data: bytes, algorithm: str) -> bytes:
    """The agent's signature of `data` by the key `blob`. Raises KeyAgentError."""
    flags = _RSA_FLAGS.get(algorithm.removesuffix("-cert-v01@openssh.com"), 0)
    question = bytes([_SIGN_REQUEST]) + _string(blob) + _string(data) + struct.pack(">I", flags)
    answer = _ask(path, question, SIGN_LIMIT)
    if answer[0] != _SIGNATURE:
        raise KeyAgentError("it refuses to sign (locked, or not confirmed?)")
    return _read_string(answer, 1)[0]


def _ask(path: str, question: bytes, limit: float) -> bytes:
    """One question on a connection of its own: agents answer in order, and threads must not wait for each other."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(limit)
            sock.connect(path)
            sock.sendall(_string(question))
            with sock.makefile("rb") as stream:
                (size,) = struct.unpack(">I", stream.read(4))
                answer = stream.read(min(size, _MAX_ANSWER))
    except TimeoutError:
        raise KeyAgentError(f"it does not answer within {limit:.0f} s") from None
    except (OSError, struct.error) as error:
        raise KeyAgentError(str(error)) from None
    if not answer or len(answer) != size:
        raise KeyAgentError("its answer is cut short")
    return answer


def _string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _read_string(data: bytes, at: int) -> tuple[bytes, int]:
    (size,) = struct.unpack_from(">I", data, at)
    return data[at + 4 : at + 4 + size], at + 4 + size
