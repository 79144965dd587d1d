"""What differs between Linux and macOS laptops. Every option is asked for by name, so a missing one is skipped."""

from __future__ import annotations

import socket


def tune_socket(sock: socket.socket, dead_s: float) -> None:
    """Send small packets at once, and let the kernel give up on a peer that is silent for `dead_s` seconds.

    Linux counts unacknowledged bytes (TCP_USER_TIMEOUT); elsewhere only an idle socket is probed by the kernel.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    seconds = max(1, round(dead_s / 3))
    for option, value in (
        ("TCP_USER_TIMEOUT", round(dead_s * 1000)),
        ("TCP_KEEPIDLE", seconds),
        ("TCP_KEEPALIVE", seconds),  # macOS's name of TCP_KEEPIDLE
        ("TCP_KEEPINTVL", seconds),
        ("TCP_KEEPCNT", 2),
    ):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def ack_at_once(sock: socket.socket) -> None:
    """Acknowledge what came without the usual delay of 40 ms. Linux forgets it, so it is asked for after each read."""
    if hasattr(socket, "TCP_QUICKACK"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
