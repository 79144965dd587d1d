"""The start of a connection that needs no paramiko: known host keys and a wire to the first hop.

It comes before paramiko is imported, so that sshd starts and sends its greeting in the meantime.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.model import Timeouts
from orchestrator.ssh.hostkeys import KnownKey, known_keys
from orchestrator.ssh.resolve import Settings
from orchestrator.ssh.wires import HopWire, ProxyWire, Wire, connect


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A host that was reached, with the keys that it may show."""

    known: tuple[KnownKey, ...]
    wire: Wire | HopWire


def begin_chain(settings: Settings, where: str, timeouts: Timeouts) -> Begun:
    """`begin` with the first hop on the way to a host, which may be the host itself."""
    if settings.hops:
        return begin(settings.hops[0], hop_name(where, settings.hops[0]), timeouts)
    return begin(settings, where, timeouts)


def begin(settings: Settings, where: str, timeouts: Timeouts) -> Begun:
    """Reach a host through its ProxyCommand, or directly. Raises HostUnreachable, HostKeyError."""
    known = known_keys(settings)
    if settings.one("proxycommand"):
        return Begun(known=known, wire=ProxyWire(settings.expand(settings.one("proxycommand"))))
    return Begun(known=known, wire=connect(settings, where, timeouts.connect, timeouts.dead))


def hop_name(where: str, hop: Settings) -> str:
    """What begins each sentence about a jump host."""
    return f"{where}: jump host {hop.target}"
