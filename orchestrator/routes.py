"""Which way a shipment goes. Pure: from what both boxes and this machine's ssh settings say, to an ordered choice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.model import Host, Route, TransferName

WINDOW = 2_000_000
"""bytes: one OpenSSH stream carries no more than this in a round trip (its channel window)"""
LINK = 125e6
"""bytes a second that several connections together are meant to reach: a gigabit"""
MOST_LANES = 8
ONE_CORE = 300e6
"""bytes a second below which one OpenSSH process, which uses one core, is no limit"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """What is known of the ways between two boxes."""

    source: Host
    target: Host
    from_source: Mapping[str, Any]
    """the training box's answer to `reach`"""
    from_target: Mapping[str, Any]
    """the evaluation host's answer to `reach`"""
    straight: bool
    """whether this machine reaches it without a jump host or a ProxyCommand"""
    openssh: bool
    """whether there is an `ssh` on this machine"""
    trusted: bool
    """whether this machine knows a plain host key of it"""
    tunnels: int
    """connections that a tunnel is made of; each carries two of the shipment's own"""


def choose(transfer: TransferName, ways: Ways, limit_rate: int | None) -> tuple[tuple[Route, ...], tuple[str, ...]]:
    """The routes to try, in order, and why those that were wanted are not among them."""
    direct, tunnel = _direct(ways, limit_rate), _tunnel(ways)
    if isinstance(direct, str) and isinstance(tunnel, Route) and transfer == "auto":
        tunnel = replace(tunnel, why=f"{direct}; {tunnel.why}")
    why = {name: found for name, found in (("direct", direct), ("tunnel", tunnel)) if isinstance(found, str)}
    why_not = tuple(
        f"{name}: {why[name]}" for name in ("direct", "tunnel") if name in why and transfer in (name, "auto")
    )
    relay = Route(kind="relay", why=_passing(ways, limit_rate, why_not or ("asked for",)))
    wanted = {"direct": (direct,), "tunnel": (tunnel,), "relay": (relay,), "auto": (direct, tunnel, relay)}[transfer]
    return tuple(route for route in wanted if isinstance(route, Route)), why_not


def lanes(rtt: float, limit_rate: int | None) -> int:
    """Connections that fill a link with this round trip (s): each carries one window in it.

    At least two, on the shortest way too: while one stands still at a pipe, a disk or a core, the other goes on.
    """
    rate = min(LINK, limit_rate or LINK)
    least = 1 if limit_rate and limit_rate < ONE_CORE else 2
    return max(least, min(MOST_LANES, math.ceil(rate * rtt / WINDOW)))


def _keys(ways: Ways) -> str:
    """Why no one-use key can be used, or nothing."""
    for host in (ways.source, ways.target):
        if host.transport == "local":
            return f"{host.name} is this machine"
        if not host.one_use_keys:
            return f"one_use_keys is off for {host.name}"
    if not ways.trusted:
        return f"no plain host key of {ways.target.name} is known here"
    if not ways.from_source.get("ssh"):
        return f"there is no ssh on {ways.source.name}"
    if not ways.from_source.get("memory_files"):
        return f"{ways.source.name} has no memory files for a key"
    return ""


def _direct(ways: Ways, limit_rate: int | None) -> Route | str:
    if reason := _keys(ways):
        return reason
    tried = ways.from_source.get("places", [])
    for place in tried:
        if "error" not in place:
            count = lanes(place["rtt"], limit_rate)
            between = f"{ways.source.name} reaches {ways.target.name} at {place['address']} in {_ms(place['rtt'])}"
            how = f"{count} connection{'s' if count > 1 else ''}"
            return Route(
                kind="direct",
                why=f"{between}, {how}; nothing passes this machine; {_key_notice(ways)}",
                places=((place["address"], place["port"]),),
                source=place["from"],
                lanes=count,
            )
    errors = "; ".join(f"{place['address']}: {place['error']}" for place in tried)
    return f"{ways.source.name} does not reach {ways.target.name} ({errors or 'no address'})"


def _tunnel(ways: Ways) -> Route | str:
    if reason := _keys(ways):
        return reason
    if not ways.openssh:
        return "there is no ssh on this machine"
    if not ways.straight:
        return f"{ways.target.name} is behind a jump host"
    came_from = list(ways.from_target.get("connection", ()))
    if not came_from:
        return f"{ways.target.name} does not say from where it sees this machine"
    what = "encrypted from box to box, so nothing can be read here, but all bytes pass this machine"
    return Route(
        kind="tunnel",
        why=f"{what}; {_normal_priority(ways.source)}; {_key_notice(ways)}",
        source=came_from[0],
        lanes=2 * ways.tunnels,
    )


def _passing(ways: Ways, limit_rate: int | None, reasons: tuple[str, ...]) -> str:
    if "local" in (ways.source.transport, ways.target.transport):
        return "through this machine's memory, without landing on its disk"
    what = f"all bytes pass this machine's memory, not its disk; {_normal_priority(ways.source)}"
    return f"{'; '.join(reasons)}; {what}" if reasons else what


def _key_notice(ways: Ways) -> str:
    return f"a one-use key stands in authorized_keys on {ways.target.name} meanwhile, on a line tagged orch-ID"


def _normal_priority(source: Host) -> str:
    return f"sshd on {source.name} encrypts them at normal priority, where only limit_rate can hold it back"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"
