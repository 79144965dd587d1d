"""A shipment goes slower while the training feels it: real processes on one core, and the kernel's count."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from observing import ROOT, ask, running

from remote_payload.agent import identity, pace, trainers
from remote_payload.agent.pace import Pace

BURN = "import time; print('ready', flush=True)\nwhile True: pass\n"
STEP = """
import os, time
print("ready", flush=True)
while True:
    until = time.perf_counter() + 0.02
    while time.perf_counter() < until: pass
    time.sleep(0.005)
"""
"""a training of one thread that keeps its core busy, as most do"""
ENCRYPT = """
import sys, time
print("ready", flush=True)
for line in sys.stdin:
    until = time.process_time() + float(line)
    while time.process_time() < until: pass
"""
"""stands for sshd: at normal priority, out of our reach, it works for every chunk that goes out"""
CHUNK = 2 << 20


@contextmanager
def on_core(core: int, code: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    with running(sys.executable, "-c", code, **options) as child:
        os.sched_setaffinity(child.pid, {core})
        yield child
        if child.stdin is not None:
            child.stdin.close()


def training_of(pid: int) -> dict[str, Any]:
    return {"identity": identity.of_pid(pid), "ranks": [pid]}


@pytest.fixture
def core() -> Iterator[int]:
    """One core for the training; this process, like everything else of the test, stays off it."""
    everywhere = os.sched_getaffinity(0)
    if len(everywhere) < 2:
        pytest.skip("one core only")
    own = max(everywhere)
    os.sched_setaffinity(0, everywhere - {own})
    yield own
    os.sched_setaffinity(0, everywhere)


def send_for(seconds: float, pacing: Pace, cost: float, encryptor: subprocess.Popen[str]) -> float:
    """Send chunks that each cost the encryptor so much; bytes a second."""
    assert encryptor.stdin is not None
    began, sent = time.monotonic(), 0
    while time.monotonic() < began + seconds:
        encryptor.stdin.write(f"{cost}\n")
        encryptor.stdin.flush()
        pacing.sent(CHUNK)
        sent += CHUNK
    return sent / (time.monotonic() - began)


def test_sending_that_the_training_feels_backs_off_until_it_hardly_does(core: int) -> None:
    with on_core(core, STEP) as trainer, on_core(core, ENCRYPT, stdin=subprocess.PIPE) as encryptor:
        pacing = Pace(None, training_of(trainer.pid))
        pacing.begin()
        send_for(5.0, pacing, 0.1, encryptor)  # 16 MB/s to begin with: 0.8 of the core
        rate = send_for(3.0, pacing, 0.1, encryptor)
        told = pacing.account()
    assert told["watched"] and told["backed_off"] >= 1 and told["slept"] > 1
    assert told["wait_highest"] > told["wait_before"] + pace.WAIT
    assert rate < 0.6 * pace.START


def test_a_neighbour_that_is_not_ours_does_not_hold_a_shipment_back(core: int) -> None:
    with on_core(core, STEP) as trainer, on_core(core, BURN), on_core(core, ENCRYPT, stdin=subprocess.PIPE) as idle:
        for _ in range(3):  # a neighbour that comes just then, as other work of this machine does, looks like us
            pacing = Pace(None, training_of(trainer.pid))
            pacing.begin()
            assert pacing.account()["wait_before"] > 0.1
            rate = send_for(4.0, pacing, 0.0, idle)
            if rate > 1.5 * pace.START:
                return
    raise AssertionError(f"held back to {rate / 1e6:.0f} MB/s")


def test_a_rate_limit_holds_with_and_without_a_training() -> None:
    for training in (None, training_of(os.getpid())):
        pacing = Pace(40e6, training)
        pacing.begin()
        began = time.monotonic()
        for _ in range(20):
            pacing.sent(CHUNK)
        assert time.monotonic() - began > 20 * CHUNK / 40e6 - 0.1


def test_an_ended_training_and_none_at_all_limit_nothing() -> None:
    with running(sys.executable, "-c", BURN) as child:
        pacing = Pace(None, training_of(child.pid))
        pacing.begin()
    began = time.monotonic()
    for _ in range(200):
        pacing.sent(CHUNK)
    assert time.monotonic() - began < 5, "16 MB/s would take 26 s"
    free = Pace(None, None)
    free.begin()
    free.sent(1 << 40)
    assert free.account()["watched"] is False and time.monotonic() - began < 6


def test_a_training_is_all_that_its_leader_started_as_long_as_it_is_itself() -> None:
    code = "import os, time\nos.fork()\nprint('ready', flush=True) if os.getppid() == %d else None\ntime.sleep(60)"
    with running(sys.executable, "-c", code % os.getpid()) as child:
        trainer = trainers.Trainer(identity.of_pid(child.pid), [child.pid])
        deadline = time.monotonic() + 5
        while len(trainer.pids()) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        found = trainer.pids()
        assert found[0] == child.pid and len(found) == 2 and trainer.alive()
        recycled = trainers.Trainer({**identity.of_pid(child.pid), "start_ticks": 1}, [])
        assert not recycled.alive()
        for pid in found[1:]:
            os.kill(pid, 9)
    assert not trainer.alive() and trainer.pids() == [] and trainer.now().threads == {}


def test_looking_at_a_pinned_training_is_done_from_other_cores(core: int, tmp_path: Path) -> None:
    os.sched_setaffinity(0, os.sched_getaffinity(0) | {core})
    with on_core(core, STEP) as trainer:
        code = (
            "import os, sys; sys.path.insert(0, %r); from remote_payload.agent import questions_observe as q\n"
            "told = q._runs([{'name': 'r', 'process': {'pid': %d}}], False, None)\n"
            "print(told['r']['process']['state'], sorted(os.sched_getaffinity(0)))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code % (str(ROOT), trainer.pid)], capture_output=True, text=True, check=True
        )
    assert done.stdout.split(" ", 1)[0] == "running" and str(core) not in done.stdout.split(" ", 1)[1]


def test_own_addresses_are_told_without_asking_anybody() -> None:
    assert all(address != "127.0.0.1" for address in ask("hostinfo", "addresses"))
