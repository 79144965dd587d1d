"""Whether one box reaches another's sshd: asked again for a while, and the answer says what was tried."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from remote_payload.agent.reach import reach_answer


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextmanager
def greeter(port: int, after: float, greeting: bytes) -> Iterator[None]:
    """What greets like an sshd on this port, from `after` seconds on."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def serve() -> None:
        time.sleep(after)
        listener.bind(("127.0.0.1", port))
        listener.listen()
        connection, _ = listener.accept()
        with connection:
            connection.sendall(greeting)
            if b"SSH-" in greeting and connection.recv(100):
                connection.sendall(b"algorithms")

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        listener.close()


def asked(port: int, patience: float | None = None) -> dict[str, object]:
    (place,) = reach_answer({"places": [["127.0.0.1", port]], "patience": patience}, None)["places"]
    return dict(place)


def test_a_way_that_comes_back_meanwhile_is_found() -> None:
    port = free_port()
    with greeter(port, 0.7, b"a banner line\r\nSSH-2.0-OpenSSH_9.2\r\n"):
        place = asked(port)
    assert place["from"] == "127.0.0.1" and "error" not in place


def test_a_way_that_stays_away_is_said_with_how_often_it_was_tried() -> None:
    assert asked(free_port(), 1.2)["error"] == "Connection refused, tried 3 times"


def test_what_is_no_sshd_is_told_apart() -> None:
    port = free_port()
    with greeter(port, 0.0, b"HTTP/1.1 400 Bad Request\r\n"):
        time.sleep(0.1)
        assert asked(port, 0.1)["error"] == "what answers there is no sshd"
