"""A wire's reader waits patiently, and still notices at once what it must."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from orchestrator.ssh.wires import Wire


@pytest.fixture
def ends() -> Iterator[tuple[Wire, socket.socket]]:
    ours, theirs = socket.socketpair()
    wire = Wire(ours)
    wire.settimeout(0.1)  # as paramiko sets it
    wire.be_patient()
    yield wire, theirs
    wire.close()
    theirs.close()


def test_a_reader_looks_up_once_a_second_and_hears_data_at_once(ends: tuple[Wire, socket.socket]) -> None:
    wire, theirs = ends
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        wire.recv(10)
    assert 0.9 < time.monotonic() - began < 5
    threading.Timer(0.2, lambda: theirs.send(b"here")).start()
    began = time.monotonic()
    assert wire.recv(10) == b"here" and time.monotonic() - began < 0.9


def test_a_silent_other_side_is_noticed_when_its_time_is_over(ends: tuple[Wire, socket.socket]) -> None:
    wire, _ = ends
    wire.pulse.limit = 0.3
    began = time.monotonic()
    with pytest.raises(ConnectionAbortedError):
        while True:
            try:
                wire.recv(10)
            except TimeoutError:
                continue
    assert time.monotonic() - began < 0.9


def test_a_shutdown_wakes_the_reader(ends: tuple[Wire, socket.socket]) -> None:
    wire, _ = ends
    threading.Timer(0.2, lambda: wire.shutdown(socket.SHUT_RDWR)).start()
    began = time.monotonic()
    assert wire.recv(10) == b"" and time.monotonic() - began < 0.9
