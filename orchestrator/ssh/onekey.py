"""What a box needs to send to another one by itself: a key pair made for one shipment, and the host key to expect."""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass, field

from orchestrator.model import Host
from orchestrator.ssh import bundle, hostkeys
from orchestrator.ssh.connection import command_line
from orchestrator.ssh.resolve import Settings

ALIAS = "orch-evaluation-host"
"""the name that the sender's ssh looks its host key up under"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneUseKey:
    """An ed25519 key pair in memory. The private half goes over stdin into the sender's memory, and nowhere else."""

    id: str
    """what the receiver's line in authorized_keys is tagged with, after `orch-`"""
    socket: str
    """name of the receiver's socket, without a file"""
    public: str
    private: str = field(repr=False)

    @classmethod
    def make(cls) -> OneUseKey:
        """A new pair."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

        key = Ed25519PrivateKey.generate()
        private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        return cls(
            id=secrets.token_hex(8),
            socket=f"orch-{secrets.token_hex(16)}",
            public=public.decode("ascii"),
            private=private.decode("ascii"),
        )

    def credentials(self, settings: Settings) -> dict[str, str]:
        """What the sender gets."""
        return {"key": self.private, "known_hosts": trusted_lines(settings)}

    def door(self, host: Host) -> dict[str, str]:
        """What the receiver gets: whom to let in, and the only command that this opens."""
        command = command_line(bundle.door_argv(host.python, self.socket))
        return {"id": self.id, "name": self.socket, "public": self.public, "command": command}


def trusted_lines(settings: Settings) -> str:
    """The host's keys as this machine trusts them, as a known_hosts file; empty where it knows no plain one."""
    known = hostkeys.known_keys(settings)
    lines = [
        " ".join(filter(None, (line.marker, ALIAS, line.key.type, base64.b64encode(line.key.blob).decode("ascii"))))
        for line in known
        if line.marker in ("", "@revoked")
    ]
    plain = any(line.marker == "" for line in known)
    return "".join(f"{line}\n" for line in dict.fromkeys(lines)) if plain else ""
