"""Fleet: one dead host does not hide the others, and a bug does not hide among them."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import pytest

from orchestrator.errors import HostUnreachable
from orchestrator.ssh.fleet import on_each


@dataclass(frozen=True)
class Box:
    name: str


BOXES = [Box(f"box{number}") for number in range(6)]


def test_a_dead_host_is_a_row_and_the_others_answer_in_order():
    def ask(box):
        if box.name == "box2":
            raise HostUnreachable("box2: no route")
        if box.name == "box3":
            raise TimeoutError("no end after 5 s")
        return box.name.upper()

    outcomes = on_each(BOXES, ask)

    assert [outcome.host for outcome in outcomes] == BOXES
    assert [outcome.value for outcome in outcomes] == ["BOX0", "BOX1", None, None, "BOX4", "BOX5"]
    assert str(outcomes[2].error) == "box2: no route"
    assert isinstance(outcomes[3].error, HostUnreachable)
    assert str(outcomes[3].error) == "box3: no end after 5 s"


def test_all_hosts_are_asked_at_the_same_time():
    together = threading.Barrier(len(BOXES), timeout=10)
    assert all(outcome.value is not None for outcome in on_each(BOXES, lambda box: together.wait()))


def test_no_more_hosts_than_the_limit_are_asked_at_once():
    now, most = [], []

    def ask(box):
        now.append(box)
        most.append(len(now))
        time.sleep(0.01)
        now.remove(box)

    on_each(BOXES, ask, limit=2)
    assert max(most) <= 2


def test_a_bug_is_raised_and_not_shown_as_a_dead_host():
    def ask(box):
        return {}["missing"] if box.name == "box4" else None

    with pytest.raises(KeyError):
        on_each(BOXES, ask)


def test_no_hosts_no_rows():
    assert on_each([], lambda box: None) == []


def test_ctrl_c_does_not_wait_for_silent_hosts():
    program = (
        "import time, types\n"
        "from orchestrator.ssh.fleet import on_each\n"
        "print('asking', flush=True)\n"
        "on_each([types.SimpleNamespace(name='silent')], lambda box: time.sleep(60))\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    with child:
        assert child.stdout.readline() == b"asking\n"
        time.sleep(0.2)
        began = time.monotonic()
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=20)
    assert b"KeyboardInterrupt" in said
    assert time.monotonic() - began < 2
