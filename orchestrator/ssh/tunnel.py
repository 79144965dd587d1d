"""Ways from a host back to another one, through this machine: `ssh -R`, alive only as long as an agent on the host is.

The forwarding belongs to the connection that carries the agent's question `hold`. So it hangs on the heartbeat like
everything that orch starts on a host, and ends with this process, however that ends.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from types import TracebackType

from orchestrator.errors import HostUnreachable, OrchError
from orchestrator.model import Host, Timeouts
from orchestrator.ssh.agent import Conversation
from orchestrator.ssh.connection import Channel
from orchestrator.ssh.openssh import own_channel
from orchestrator.ssh.resolve import Settings

TRIES = 4
FIRST_PORT, PORTS = 20000, 12000


class Tunnel:
    """One port on the host's loopback that leads to `place` as this machine sees it. A context manager."""

    def __init__(self, host: Host, settings: Settings, place: tuple[str, int], timeouts: Timeouts) -> None:
        """Raises HostUnreachable where sshd there forbids forwarding, or what connecting raises."""
        problem: OrchError = HostUnreachable(f"{host.name}: no port for a tunnel", host=host.name)
        for _ in range(TRIES):
            self.port = FIRST_PORT + secrets.randbelow(PORTS)
            way = _Forwarding(host, settings, timeouts, f"127.0.0.1:{self.port}:{_bracketed(place[0])}:{place[1]}")
            try:
                self._held = Conversation(way, host, "hold", {}, role="train", timeouts=timeouts)
                next(self._held.events())
                return
            except OrchError as error:
                problem = error
        raise problem

    def __enter__(self) -> Tunnel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.__exit__(kind, error, trace)


class _Forwarding:
    """Opens a command beside a forwarded port."""

    def __init__(self, host: Host, settings: Settings, timeouts: Timeouts, forward: str) -> None:
        self._host, self._settings, self._timeouts, self._forward = host, settings, timeouts, forward

    def open(self, argv: Sequence[str], *, bulk: bool = False) -> Channel:
        return own_channel(self._host, self._timeouts, self._settings, argv, forward=self._forward)


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
